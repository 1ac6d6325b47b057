"""Validation of message sets of magic 0 and 1, in the same three passes as ``tidelog.log.validation.validator``.

    validate   a wrapper's inner messages (CRC, magic, no nesting), keys and timestamps; the validator has checked the
               CRC of each entry before
    assign     in the topic's format and codec, uncompressed: every entry's offset, in place
               in the topic's format and codec, a magic 1 wrapper with inner offsets 0..n-1: its offset, in place
               else: decoded and rebuilt in the topic's format and codec
    restamp    magic 1: append time (every entry, or the wrapper alone), or a wrapper's largest timestamp; new CRCs

Magic 0 wrappers hold absolute inner offsets, so they are always rebuilt.
"""

from __future__ import annotations

import struct

from tidelog.log.records.work_budget import TURN_OLD_BYTES, WorkBudget
from tidelog.log.validation.params import AppendContext, ValidationParams
from tidelog.log.validation.rebuilding import check_each_record, rebuild, result_from
from tidelog.log.validation.result import BatchSummary, ValidationResult
from tidelog.protocol.errors import CorruptMessageError, MessageTooLargeError
from tidelog.protocol.record.crc import crc32
from tidelog.protocol.record.message_set import LegacyRecordBatch
from tidelog.protocol.record.record_batch import (
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_V0,
    MAGIC_V1,
    TIMESTAMP_TYPE_MASK,
    BatchOptions,
    Record,
)

_OFFSET = struct.Struct(">q")
_CRC = struct.Struct(">I")
_CRC_POSITION = LOG_OVERHEAD
_MAGIC_POSITION = LOG_OVERHEAD + 4
_ATTRIBUTES_POSITION = LOG_OVERHEAD + 5
_TIMESTAMP_POSITION = LOG_OVERHEAD + 6


def validate_message_set(
    view: memoryview, entries: list[LegacyRecordBatch], params: ValidationParams, context: AppendContext
) -> ValidationResult:
    """Validate, assign and restamp the message set at the start of ``view``. Its ``entries`` are complete, and have one
    magic and right CRCs; a compressed one is the only entry.

    Raises what ``LogValidator.validate_and_assign_offsets`` raises.
    """
    first, last = entries[0], entries[-1]
    view = view[: last.position + last.size_in_bytes]
    source_codec = first.compression_type
    inner = _inner_messages(first, params, context.budget) if first.is_compressed else []
    context.budget.rebuild_old(len(inner or entries))
    check_inner_messages(inner, params)
    records = list(first.effective_records(inner)) if inner else [next(entry.records()) for entry in entries]
    timestamp_type = max(entry.timestamp_type for entry in entries)
    check_each_record(records, timestamp_type, params, context)
    codec = source_codec if params.compression is None else params.compression
    if first.magic == params.magic and codec == source_codec and _can_stay(first, inner):
        return _finish_in_place(view, entries, records, params, context)
    return rebuild(records, _options(codec, params, context), params)


def _inner_messages(
    wrapper: LegacyRecordBatch, params: ValidationParams, budget: WorkBudget
) -> list[LegacyRecordBatch]:
    """Parse a wrapper's messages, within the request's work budget. Raises what ``inner_messages`` raises, and
    TooMuchForTurnError."""
    bound = params.decompressed_bound
    try:
        inner = wrapper.inner_messages(budget.plain_limit(bound, TURN_OLD_BYTES), budget.rebuilt_records)
    except MessageTooLargeError:
        budget.ensure_not_turn_limit(bound, TURN_OLD_BYTES)
        raise
    budget.spend_plain_bytes(inner[-1].position + inner[-1].size_in_bytes)
    return inner


def check_inner_messages(inner: list[LegacyRecordBatch], params: ValidationParams) -> None:
    """Check the CRCs of a wrapper's inner messages, which consumers will check too. Raises CorruptMessageError."""
    for message in inner:
        if not message.is_valid():
            raise CorruptMessageError(f"Inner message is corrupt in topic partition {params.topic_partition}")


def _can_stay(entry: LegacyRecordBatch, inner: list[LegacyRecordBatch]) -> bool:
    """Return whether offsets can be assigned in place, for an entry that has the topic's format and codec already."""
    if not entry.is_compressed:
        return True
    if entry.magic == MAGIC_V0:
        return False
    return all(message.offset == index for index, message in enumerate(inner))


def _options(codec: int, params: ValidationParams, context: AppendContext) -> BatchOptions:
    return BatchOptions(
        base_offset=context.next_offset,
        partition_leader_epoch=context.leader_epoch,
        compression=codec,
        level=params.compression_level,
        log_append_time=context.now_ms if params.timestamp_type == LOG_APPEND_TIME else None,
    )


def _finish_in_place(
    view: memoryview,
    entries: list[LegacyRecordBatch],
    records: list[Record],
    params: ValidationParams,
    context: AppendContext,
) -> ValidationResult:
    if view.readonly:
        view = memoryview(bytearray(view))
    offset = context.next_offset
    summaries = []
    for entry in entries:
        count = len(records) if entry.is_compressed else 1
        last_offset = offset + count - 1
        _OFFSET.pack_into(view, entry.position, last_offset)
        timestamp = entry.max_timestamp
        if entry.magic == MAGIC_V1:
            timestamp = _stamp(view, entry, records, params, context)
        summaries.append(
            BatchSummary(
                entry.position, entry.size_in_bytes, offset, last_offset, timestamp, -1, -1, -1, -1, False, False
            )
        )
        offset += count
    return result_from(view, tuple(summaries), params, sizes_changed=False)


def _stamp(
    view: memoryview,
    entry: LegacyRecordBatch,
    records: list[Record],
    params: ValidationParams,
    context: AppendContext,
) -> int:
    """Write the timestamp that a magic 1 entry must have, and return it: the append time, the entry's own, or for a
    wrapper the largest of ``records``."""
    timestamp = context.now_ms
    if params.timestamp_type != LOG_APPEND_TIME:
        timestamp = max(record.timestamp for record in records) if entry.is_compressed else entry.max_timestamp
    if entry.timestamp_type != params.timestamp_type or entry.max_timestamp != timestamp:
        restamp_message(view[entry.position : entry.position + entry.size_in_bytes], params.timestamp_type, timestamp)
    return timestamp


def restamp_message(part: memoryview, timestamp_type: int, timestamp: int) -> None:
    """Set timestamp type and timestamp (ms) of the magic 1 entry ``part`` in place, with a new CRC."""
    attributes = part[_ATTRIBUTES_POSITION] & ~TIMESTAMP_TYPE_MASK
    if timestamp_type == LOG_APPEND_TIME:
        attributes |= TIMESTAMP_TYPE_MASK
    part[_ATTRIBUTES_POSITION] = attributes
    _OFFSET.pack_into(part, _TIMESTAMP_POSITION, timestamp)
    _CRC.pack_into(part, _CRC_POSITION, crc32(part[_MAGIC_POSITION:]))
