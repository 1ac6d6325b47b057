"""Look-up by time: the first record at or after a timestamp (ListOffsets).

The first segment is taken whose largest timestamp is large enough. Its time index gives the batch from which to search,
batch headers give the batch to open, and only that is read record by record. Producers may send timestamps in any
order: the result is the lowest *offset* whose timestamp is large enough, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.records.lookup import first_at_or_after
from tidelog.log.segment.segment import LogSegment
from tidelog.log.segment.segments import LogSegments
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import NO_TIMESTAMP

if TYPE_CHECKING:
    from tidelog.log.unified_log import UnifiedLog

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
UNKNOWN_OFFSET = -1


class TimestampAndOffset(NamedTuple):
    """A result for ListOffsets: timestamp in ms, offset (-1: unknown), leader epoch (-1: unknown). The timestamp is -1
    for all special values but MAX_TIMESTAMP."""

    timestamp: int
    offset: int
    leader_epoch: int


def find_offset_by_timestamp(log: UnifiedLog, timestamp: int) -> TimestampAndOffset | None:
    """Find an offset for ``UnifiedLog.fetch_offset_by_timestamp``. LATEST_TIMESTAMP gives the log end offset; callers
    limit it by isolation level."""
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
    # No record at or before an entry's offset has a later timestamp than the entry. So the search begins at the last
    # entry below ``timestamp``: records before it are all earlier.
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
