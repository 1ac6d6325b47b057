"""Look-up by time: the first record at or after a timestamp (ListOffsets).

Segments are asked oldest first for their largest timestamp; the time index says from which batch on to look, batch
headers which batch to open, and only that one is read record by record. Timestamps are as producers sent them, in any
order: the answer is the first *offset* whose timestamp is large enough, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.records.lookup import first_at_or_after
from tidelog.log.segment.segment import LogSegment
from tidelog.log.segment.segments import LogSegments
from tidelog.protocol.record.record_batch import NO_TIMESTAMP, iter_batches

if TYPE_CHECKING:
    from tidelog.log.unified_log import UnifiedLog

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
UNKNOWN_OFFSET = -1


class TimestampAndOffset(NamedTuple):
    """An answer of ListOffsets: timestamp in ms (-1 for the special requests), offset, leader epoch (-1: unknown)."""

    timestamp: int
    offset: int
    leader_epoch: int


def find_offset_by_timestamp(log: UnifiedLog, timestamp: int) -> TimestampAndOffset | None:
    """See :meth:`tidelog.log.unified_log.UnifiedLog.fetch_offset_by_timestamp`. LATEST is the log end; callers clip by
    isolation."""
    if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        start = log.log_start_offset
        return TimestampAndOffset(NO_TIMESTAMP, start, log.leader_epochs.epoch_for_offset(start))
    if timestamp == LATEST_TIMESTAMP:
        return TimestampAndOffset(NO_TIMESTAMP, log.log_end_offset, log.leader_epochs.latest_epoch)
    if timestamp == LATEST_TIERED_TIMESTAMP:
        return TimestampAndOffset(NO_TIMESTAMP, UNKNOWN_OFFSET, -1)
    if timestamp == MAX_TIMESTAMP:
        return _find_max(log, log.segments)
    for segment in log.segments:
        if segment.size and segment.largest.timestamp >= timestamp:
            found = _find_in_segment(log, segment, timestamp)
            if found is not None:
                return found
    return None


def _find_max(log: UnifiedLog, segments: LogSegments) -> TimestampAndOffset | None:
    candidates = [segment for segment in segments if segment.size and segment.largest.timestamp >= 0]
    if not candidates:
        return None
    latest = max(candidates, key=lambda segment: segment.largest.timestamp)
    return _find_in_segment(log, latest, latest.largest.timestamp)


def _find_in_segment(log: UnifiedLog, segment: LogSegment, timestamp: int) -> TimestampAndOffset | None:
    start_offset = log.log_start_offset
    # The entry is of a maximum <= the target: everything at or before its offset is not later than the target, but
    # may equal it, so look from the entry *below* the target on.
    entry = segment.time_index.lookup(timestamp - 1)
    position = segment.offset_index.lookup(max(entry.offset, start_offset)).position
    for header, batch in segment.batches(position):
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
            found = _find_in_batch(log, batch, timestamp)
            if found is not None:
                return found
    return None


def _find_in_batch(log: UnifiedLog, batch: memoryview, timestamp: int) -> TimestampAndOffset | None:
    for entry in iter_batches(batch):
        found = first_at_or_after(entry, timestamp, log.log_start_offset, log.environment.max_decompressed_bytes)
        if found is not None:
            epoch = log.leader_epochs.epoch_for_offset(found.offset)
            return TimestampAndOffset(found.timestamp, found.offset, epoch)
    return None
