"""Offsets of a log for clients: all at one moment, one by time, segment starts for ListOffsets v0.

``Partition`` checks leadership and calls these. Any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tidelog.log.unified_log import UnifiedLog

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
"""Timestamps of ListOffsets with special meanings."""
UNKNOWN = -1
_new_tuple = tuple.__new__


class OffsetSnapshot(NamedTuple):
    """The offsets of a log at one moment."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int


class FoundOffset(NamedTuple):
    """Answer of ListOffsets for one partition; each field is -1 where it is unknown."""

    offset: int = UNKNOWN
    timestamp: int = UNKNOWN
    leader_epoch: int = UNKNOWN


def offsets_of(log: UnifiedLog) -> OffsetSnapshot:
    """Return the offsets of a log at this moment."""
    offsets = (log.high_watermark, log.last_stable_offset, log.log_start_offset, log.log_end_offset)
    return _new_tuple(OffsetSnapshot, offsets)


def find_offset(log: UnifiedLog, timestamp: int, limit: int, leader_epoch: int) -> FoundOffset:
    """Return the first offset below ``limit`` whose timestamp is ``timestamp`` (ms, or a special one) or later.

    Raises KafkaStorageError, and for damaged records CorruptMessageError or InvalidRecordError. Raises
    MessageTooLargeError and UnsupportedCompressionTypeError, as decompressing a batch does. Source: ListOffsets v1 to
    v11.
    """
    if timestamp == LATEST:
        return FoundOffset(limit, leader_epoch=leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        epoch = leader_epoch if start == log.log_end_offset else log.leader_epochs.epoch_for_offset(start)
        return FoundOffset(start, leader_epoch=epoch)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):  # nothing is tiered here
        return FoundOffset()
    found = log.fetch_offset_by_timestamp(timestamp)
    if found is None or found.offset >= limit:
        return FoundOffset()
    return FoundOffset(found.offset, found.timestamp, log.leader_epochs.epoch_for_offset(found.offset))


def segment_offsets(log: UnifiedLog, timestamp: int, count: int) -> list[int]:
    """Return at most ``count`` starts of segments that have no record after ``timestamp``, newest first; for LATEST of
    all segments and also the high watermark, for EARLIEST the log start alone. Source: ListOffsets v0."""
    start = log.log_start_offset
    if timestamp == EARLIEST:
        return [start][:count]
    if timestamp == LATEST:
        bases = {max(segment.base_offset, start) for segment in log.segments} | {log.high_watermark}
    else:
        bases = {max(one.base_offset, start) for one in log.segments if one.largest_timestamp <= timestamp}
    return sorted(bases, reverse=True)[:count]
