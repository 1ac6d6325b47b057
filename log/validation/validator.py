# cython: wraparound=True, boundscheck=True
"""Validator of produced records: turns what a producer sent into what the log stores, in three passes.

    validate   sizes, CRC, magic, codec, record structure, keys on compacted topics, timestamps   changes nothing
    assign     offsets and leader epoch: in place when nothing else changes, else the set is rebuilt
    restamp    log append time (or a wrong largest timestamp): in place, with a new CRC

Three kinds of records are changed in place, if they have the topic's format and codec: a magic 2 batch with offset
deltas 0..n-1; an uncompressed set; a magic 1 wrapper whose inner offsets are 0..n-1
(``tidelog.log.validation.message_sets``). If only the codec of a magic 2 batch differs, its records are compressed
again, undecoded. Otherwise the records are decoded and one batch (or set) of the topic's format and codec is built.

The usual request, one magic 2 batch with nothing else to change, takes a short path: one header unpack, one CRC, one
walk over the records, one ``pack_into``; where the package is compiled, ``tidelog.log.validation.single_batch``. A
batch that this path declines is checked again by :func:`validate_generally`, which names any fault.

The same records are refused as by Kafka's LogValidator and UnifiedLog, with the same error codes; errors about single
records have the records' indices (KIP-467). Some rules are stricter. A producer may not set the delete horizon bit.
Timestamps beyond 64 bits are invalid, and under create time those below -1. The work for a batch and for a request has
limits (``ValidationParams.decompressed_bound``, ``tidelog.log.records.work_budget``).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tidelog.log.records import engine
from tidelog.log.records.work_budget import (
    NO_BUDGET,
    TURN_OLD_BYTES,
    TURN_RECOMPRESSED_BYTES,
    TURN_RECORDS,
    TURN_RECORDS_COMPILED,
    WorkBudget,
)
from tidelog.log.validation import single_batch
from tidelog.log.validation.params import (
    UNBOUNDED_MS,
    AppendContext,
    AppendOrigin,
    ValidationParams,
    ensure_size,
)
from tidelog.log.validation.rebuilding import check_each_record, rebuild, result_of
from tidelog.log.validation.result import ValidationResult
from tidelog.log.validation.single_batch import IS_COMPILED as _IS_COMPILED
from tidelog.log.validation.single_batch import NO_CODEC, BatchLimits, CheckedBatch
from tidelog.protocol.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    UnsupportedForMessageFormatError,
)
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.crc import crc32c
from tidelog.protocol.record.record_batch import (
    ATTRIBUTES_OFFSET,
    CONTROL_MASK,
    CREATE_TIME,
    DELETE_HORIZON_MASK,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MAGIC_V2,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchOptions,
    BatchTimes,
    Buffer,
    RecordBatch,
    assemble_batch,
    set_crc,
)

if TYPE_CHECKING:
    from tidelog.protocol.record.message_set import LegacyRecordBatch

_OFFSET_LENGTH_EPOCH = struct.Struct(">qii")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_OFFSET = 35
_SLOW_ATTRIBUTES = TIMESTAMP_TYPE_MASK | CONTROL_MASK | DELETE_HORIZON_MASK


class LogValidator:
    """Validator for one :class:`ValidationParams`. Immutable; any thread, but only one for the same buffer."""

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_codec",
        "_is_fast",
        "_is_keyed",
        "_limits",
        "_max_bytes",
        "_max_plain",
        "params",
    )

    def __init__(self, params: ValidationParams) -> None:
        self.params = params
        self._is_fast = params.magic == MAGIC_V2 and params.timestamp_type == CREATE_TIME
        self._codec = params.compression
        self._max_bytes = params.max_message_bytes
        self._max_plain = params.decompressed_bound
        self._before_ms = params.timestamp_before_max_ms
        self._after_ms = params.timestamp_after_max_ms
        self._is_keyed = params.is_compacted
        self._limits = BatchLimits(
            NO_CODEC if params.compression is None else params.compression,
            params.max_message_bytes,
            params.decompressed_bound,
            params.timestamp_before_max_ms,
            params.timestamp_after_max_ms,
            is_keyed=params.is_compacted,
        )

    def validate_and_assign_offsets(
        self,
        records: memoryview,
        next_offset: int,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        budget: WorkBudget = NO_BUDGET,
    ) -> ValidationResult:
        """Check ``records`` (any magic) and give them offsets from ``next_offset`` on, in place where possible.

        Raises InvalidRecordError, CorruptMessageError, MessageTooLargeError, InvalidTimestampError,
        UnsupportedCompressionTypeError, UnsupportedForMessageFormatError, and TooMuchForTurnError if ``budget`` has the
        limits of a turn. After any error the buffer is unchanged.
        """
        checked = CheckedBatch.__new__(CheckedBatch)
        if self.assign_unchanged(records, next_offset, leader_epoch, now_ms, budget, checked):
            return checked.build_result()
        context = AppendContext(next_offset, leader_epoch, now_ms, origin, budget)
        return validate_generally(records, self.params, context)

    def assign_unchanged(
        self,
        records: memoryview,
        next_offset: int,
        leader_epoch: int,
        now_ms: int,
        budget: WorkBudget,
        checked: CheckedBatch,
    ) -> bool:
        """Check the usual batch and give it offsets in place, noted in ``checked``; return False for any other batch,
        which stays unchanged.

        Raises InvalidRecordError, what ``WorkBudget.decompress`` raises, TooMuchForTurnError.
        """
        if not self._is_fast:
            return False
        if _IS_COMPILED:
            return single_batch.check_and_assign(
                records, next_offset, leader_epoch, now_ms, self._limits, budget, checked
            )
        if len(records) < RECORD_BATCH_OVERHEAD or records[MAGIC_OFFSET] != MAGIC_V2:
            return False
        return self._assign_single(records, next_offset, leader_epoch, now_ms, budget, checked)

    def _assign_single(
        self,
        records: memoryview,
        next_offset: int,
        leader_epoch: int,
        now_ms: int,
        budget: WorkBudget,
        checked: CheckedBatch,
    ) -> bool:
        """Check one magic 2 batch that needs nothing but offset and epoch, and write these; False for any other batch.

        This is the plain Python form of ``single_batch.check_and_assign``.
        """
        (
            base_offset, length, _, _, checksum, attributes, last_delta, base_timestamp, max_timestamp,
            producer_id, producer_epoch, base_sequence, count,
        ) = HEADER.unpack_from(records)  # fmt: skip
        size = length + LOG_OVERHEAD
        codec = attributes & 0x07
        if (
            base_offset != 0
            or size != len(records)
            or size > self._max_bytes
            or attributes & _SLOW_ATTRIBUTES
            or last_delta != count - 1
            or last_delta < 0
            or (base_sequence < 0 and producer_id != NO_PRODUCER_ID)
            or not (self._codec is None or codec == self._codec)
            or records.readonly
            or crc32c(records[ATTRIBUTES_OFFSET:]) != checksum
        ):
            return False
        section: Buffer = records[RECORD_BATCH_OVERHEAD:]
        if count > TURN_RECORDS and budget.in_turn:
            ensure_few_records(count, budget)
        if codec:
            section = budget.decompress(section, codec, self._max_plain, count)
        low, high, first_keyless, is_consecutive = engine.check_section(section, count, budget.header_bytes)
        low += base_timestamp
        if (
            not is_consecutive
            or high + base_timestamp != max_timestamp
            or low < NO_TIMESTAMP
            or low < now_ms - self._before_ms
            or max_timestamp > now_ms + self._after_ms
            or (first_keyless >= 0 and self._is_keyed)
        ):
            if codec:
                budget.give_back(len(section), count)
            return False
        _OFFSET_LENGTH_EPOCH.pack_into(records, 0, next_offset, length, leader_epoch)
        is_transactional = attributes & TRANSACTIONAL_MASK != 0
        checked.note(
            records, next_offset, last_delta, max_timestamp, producer_id, producer_epoch, base_sequence,
            is_transactional,
        )  # fmt: skip
        return True


def validate_and_assign_offsets(
    records: memoryview, params: ValidationParams, context: AppendContext
) -> ValidationResult:
    """Validate records once by :meth:`LogValidator.validate_and_assign_offsets`, with the same errors."""
    return LogValidator(params).validate_and_assign_offsets(records, *context)


def validate_generally(records: memoryview, params: ValidationParams, context: AppendContext) -> ValidationResult:
    """Validate records of any kind, without the short path for the usual batch; the result is the same."""
    batches = _checked_batches(records, params, context)
    first = batches[0]
    if isinstance(first, RecordBatch):
        return _validate_batch(first, params, context)
    from tidelog.log.validation.message_sets import validate_message_set

    entries = [batch for batch in batches if not isinstance(batch, RecordBatch)]
    return validate_message_set(records, entries, params, context)


def _checked_batches(
    records: memoryview, params: ValidationParams, context: AppendContext
) -> list[RecordBatch | LegacyRecordBatch]:
    """Return one batch or wrapper, or the messages of an old set. All have one magic, an allowed size and a right
    checksum."""
    batches: list[RecordBatch | LegacyRecordBatch] = []
    for batch in iter_batches(records):
        magic = batches[0].magic if batches else batch.magic
        if batch.magic != magic:
            raise InvalidRecordError(
                f"Batch magic {batch.magic} differs from the first batch's, {magic}, in {params.topic_partition}"
            )
        ensure_size(batch.size_in_bytes, params)
        if magic != MAGIC_V2:
            context.budget.ensure_for_turn(len(records), TURN_OLD_BYTES)
            context.budget.ensure_rebuildable(len(batches) + 1)
        batch.ensure_valid()
        if batches and (magic == MAGIC_V2 or batch.is_compressed or batches[0].is_compressed):
            raise InvalidRecordError("Compressed outer record has more than one batch")
        batches.append(batch)
    if not batches:
        raise InvalidRecordError(f"Record batch has no batches at all in {params.topic_partition}")
    return batches


# --- magic 2, pass by pass -------------------------------------------------------------------------------------------


def _validate_batch(batch: RecordBatch, params: ValidationParams, context: AppendContext) -> ValidationResult:
    _check_header(batch, params, context)
    section = _section_of(batch, params, context)
    check = engine.check_section(section, batch.record_count, context.budget.header_bytes)
    _check_records(batch, section, check, params, context)
    is_plain_control = batch.is_control and not batch.is_compressed
    codec = batch.compression_type if params.compression is None or is_plain_control else params.compression
    if params.magic == MAGIC_V2 and codec == batch.compression_type and check.is_consecutive:
        return _finish_in_place(batch, batch.base_timestamp + check.max_timestamp_delta, params, context)
    if params.magic == MAGIC_V2 and check.is_consecutive:
        context.budget.ensure_for_turn(len(section), TURN_RECOMPRESSED_BYTES)
        max_timestamp = batch.base_timestamp + check.max_timestamp_delta
        return _recompress(batch, section, max_timestamp, _options(batch, codec, params, context), params)
    context.budget.rebuild(batch.record_count)
    return rebuild(batch.parse(section), _options(batch, codec, params, context), params)


def _section_of(batch: RecordBatch, params: ValidationParams, context: AppendContext) -> Buffer:
    """Return the batch's records section, decompressed within the request's work budget."""
    count = batch.record_count
    ensure_few_records(count, context.budget)
    if not batch.is_compressed:
        return batch.records_section()
    section, bound = batch.records_section(), params.decompressed_bound
    return context.budget.decompress(section, batch.compression_type, bound, max(count, 0))


def ensure_few_records(count: int, budget: WorkBudget) -> None:
    """Raise TooMuchForTurnError if ``count`` records of magic 2 are too many for the limits of a turn."""
    budget.ensure_for_turn(count, TURN_RECORDS_COMPILED if engine.IS_COMPILED else TURN_RECORDS)


def _check_header(batch: RecordBatch, params: ValidationParams, context: AppendContext) -> None:
    where = f"in topic partition {params.topic_partition}"
    if context.origin is AppendOrigin.CLIENT:
        _check_client_header(batch, where)
    if params.magic < MAGIC_V2 and batch.is_transactional:
        raise UnsupportedForMessageFormatError(
            f"Transactional records cannot be used with magic version {params.magic}"
        )
    if params.magic < MAGIC_V2 and batch.producer_id != NO_PRODUCER_ID:
        raise UnsupportedForMessageFormatError(f"Idempotent records cannot be used with magic version {params.magic}")


def _check_client_header(batch: RecordBatch, where: str) -> None:
    if batch.base_offset != 0:
        raise InvalidRecordError(
            f"The baseOffset of the record batch should be 0, but it is {batch.base_offset} {where}"
        )
    if batch.last_offset_delta < 0:
        raise InvalidRecordError(f"Batch has an invalid offset range: [0, {batch.last_offset_delta}] {where}")
    if batch.record_count <= 0:
        raise InvalidRecordError(f"Invalid reported count for record batch: {batch.record_count} {where}")
    if batch.last_offset_delta + 1 != batch.record_count:
        raise InvalidRecordError(
            f"Inconsistent batch offset range [0, {batch.last_offset_delta}] and count {batch.record_count} {where}"
        )
    if batch.is_control:
        raise InvalidRecordError(f"Clients are not allowed to write control records {where}")
    if batch.delete_horizon_ms is not None:
        raise InvalidRecordError(f"Clients are not allowed to set a delete horizon {where}")
    if batch.producer_id != NO_PRODUCER_ID and batch.base_sequence < 0:
        raise InvalidRecordError(
            f"Invalid sequence number {batch.base_sequence} in record batch with producerId {batch.producer_id} {where}"
        )


def _check_records(
    batch: RecordBatch, section: Buffer, check: engine.SectionCheck, params: ValidationParams, context: AppendContext
) -> None:
    """Check the bounds of the whole batch first; only if these fail, check each record, to name the invalid ones."""
    low = batch.base_timestamp + check.min_timestamp_delta
    high = batch.base_timestamp + check.max_timestamp_delta
    if low < -UNBOUNDED_MS - 1 or high > UNBOUNDED_MS:
        raise InvalidTimestampError(f"Timestamps from {low} to {high} do not fit 64 bits")
    suspicious = (
        (params.is_compacted and check.first_keyless_index >= 0)
        or batch.timestamp_type == LOG_APPEND_TIME
        or low < max(NO_TIMESTAMP, context.now_ms - params.timestamp_before_max_ms)
        or high > context.now_ms + params.timestamp_after_max_ms
    )
    if suspicious:
        context.budget.rebuild(batch.record_count)
        check_each_record(batch.parse(section), batch.timestamp_type, params, context)


def _finish_in_place(
    batch: RecordBatch, max_timestamp: int, params: ValidationParams, context: AppendContext
) -> ValidationResult:
    view = batch.view()
    if view.readonly:
        view = memoryview(bytearray(view))
    _OFFSET_LENGTH_EPOCH.pack_into(
        view, 0, context.next_offset, batch.size_in_bytes - LOG_OVERHEAD, context.leader_epoch
    )
    if params.timestamp_type == LOG_APPEND_TIME:
        max_timestamp = context.now_ms
    restamp(view, params.timestamp_type, max_timestamp)
    return result_of(view, params, sizes_changed=False)


def restamp(view: memoryview, timestamp_type: int, max_timestamp: int) -> None:
    """Set timestamp type and largest timestamp (ms) of the magic 2 batch ``view`` in place, with a new CRC if they
    change."""
    batch = RecordBatch(view)
    if batch.timestamp_type == timestamp_type and batch.max_timestamp == max_timestamp:
        return
    attributes = batch.attributes & ~TIMESTAMP_TYPE_MASK
    if timestamp_type == LOG_APPEND_TIME:
        attributes |= TIMESTAMP_TYPE_MASK
    _ATTRIBUTES.pack_into(view, ATTRIBUTES_OFFSET, attributes)
    _MAX_TIMESTAMP.pack_into(view, _MAX_TIMESTAMP_OFFSET, max_timestamp)
    set_crc(view, 0, batch.size_in_bytes)


# --- rebuilding ------------------------------------------------------------------------------------------------------


def _options(batch: RecordBatch, codec: int, params: ValidationParams, context: AppendContext) -> BatchOptions:
    return BatchOptions(
        base_offset=context.next_offset,
        partition_leader_epoch=context.leader_epoch,
        compression=codec,
        level=params.compression_level,
        log_append_time=context.now_ms if params.timestamp_type == LOG_APPEND_TIME else None,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
    )


def _recompress(
    batch: RecordBatch, section: Buffer, max_timestamp: int, options: BatchOptions, params: ValidationParams
) -> ValidationResult:
    """Compress the same well-formed records by another codec; no record is decoded."""
    if options.log_append_time is not None:
        max_timestamp = options.log_append_time
    times = BatchTimes(batch.base_timestamp, max_timestamp)
    assert options.base_offset is not None
    built = assemble_batch(
        section,
        options,
        base_offset=options.base_offset,
        last_offset_delta=batch.last_offset_delta,
        times=times,
        count=batch.record_count,
    )
    return result_of(memoryview(built), params, sizes_changed=True)
