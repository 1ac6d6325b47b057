"""Search by time inside one stored batch of any format: the last step of ListOffsets (KIP-33). A batch header has the
batch's largest timestamp; a search for that timestamp finds the record that has it (KIP-734).

A magic 2 batch under create time is searched by ``tidelog.log.records.engine`` without making record objects, all
others record by record. Under log append time every record of a batch has the batch's time, so only the offset decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.records import engine
from tidelog.protocol.record.record_batch import LOG_APPEND_TIME, RecordBatch

if TYPE_CHECKING:
    from tidelog.protocol.record.message_set import LegacyRecordBatch


class FoundRecord(NamedTuple):
    """A record's timestamp in ms and its offset."""

    timestamp: int
    offset: int


def first_at_or_after(
    batch: RecordBatch | LegacyRecordBatch, timestamp: int, min_offset: int, max_decompressed_bytes: int
) -> FoundRecord | None:
    """Find the first record at or after ``timestamp`` (ms) whose offset is at least ``min_offset``; None if there is
    none.

    Raises InvalidRecordError, MessageTooLargeError, UnsupportedCompressionTypeError and, for an old format only,
    CorruptMessageError, as reading the batch does.
    """
    if not isinstance(batch, RecordBatch) or batch.timestamp_type == LOG_APPEND_TIME:
        for record in batch.records(max_decompressed_bytes):
            if record.timestamp >= timestamp and record.offset >= min_offset:
                return FoundRecord(record.timestamp, record.offset)
        return None
    base_timestamp, base_offset = batch.base_timestamp, batch.base_offset
    section = batch.uncompressed_section(max_decompressed_bytes)
    found = engine.first_at_or_after(
        section, batch.record_count, _as_delta(timestamp - base_timestamp), _as_delta(min_offset - base_offset)
    )
    if found is None:
        return None
    return FoundRecord(base_timestamp + found.timestamp_delta, base_offset + found.offset_delta)


def _as_delta(difference: int) -> int:
    """Keep a difference of two 64-bit numbers within 64 bits, for compiled code; no delta of a record is larger."""
    return max(-(1 << 63), min(difference, (1 << 63) - 1))
