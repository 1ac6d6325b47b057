"""Sections of a log, its cleanable ratio, and the age of its oldest uncompacted record.

    log start        first dirty offset            first uncleanable offset        log end
        |  clean section   |        dirty section            |   uncleanable tail    |

The tail lies in the active segment, beyond the last stable offset, or in a segment with a record younger than
``min.compaction.lag.ms``. The section ends lie at segment boundaries.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.segment.segment import LogSegment
from tidelog.log.unified_log import UnifiedLog

_NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogToClean:
    """A log and the offsets of its sections: clean below the first, dirty up to the second, not cleanable from there
    on.

    ``compaction_lag_ms`` is the age of the oldest dirty record in a closed segment, ``overdue`` whether that is beyond
    ``max.compaction.lag.ms``.
    """

    topic_partition: TopicPartition
    log: UnifiedLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int = 0
    cleanable_bytes: int = 0
    compaction_lag_ms: int = 0
    overdue: bool = False

    @property
    def cleanable_ratio(self) -> float:
        """Cleanable bytes divided by clean and cleanable bytes."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """True when the log's own configuration asks for a round now."""
        if not self.cleanable_bytes:
            return False
        return self.overdue or self.cleanable_ratio > self.log.config.min_cleanable_dirty_ratio


def first_dirty_offset(log: UnifiedLog, checkpoint: int | None) -> int:
    """Return where the dirty section begins: the checkpoint, or the log start when that is outside the log."""
    start = log.log_start_offset
    return checkpoint if checkpoint is not None and start <= checkpoint <= log.log_end_offset else start


def _first_uncleanable_offset(log: UnifiedLog, first_dirty: int, now_ms: int) -> int:
    segments = log.segments
    limit = min(log.last_stable_offset, segments.active.base_offset)
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in segments.values(first_dirty, limit):
            if segment.largest_timestamp > now_ms - lag_ms:
                limit = min(limit, segment.base_offset)
                break
    floor = segments.floor(limit)
    return limit if floor is None else floor.base_offset


def look_at(log: UnifiedLog, checkpoint: int | None, now_ms: int) -> LogToClean:
    """Measure a log. Any thread, no lock: the numbers may be a moment old. Raises KafkaStorageError."""
    first_dirty = first_dirty_offset(log, checkpoint)
    uncleanable = max(_first_uncleanable_offset(log, first_dirty, now_ms), first_dirty)
    segments = [s for s in log.segments.values(log.log_start_offset, uncleanable) if s.base_offset < uncleanable]
    dirty: list[LogSegment] = []
    clean_bytes = 0
    ends = [*(segment.base_offset for segment in segments[1:]), uncleanable][: len(segments)]
    for segment, end in zip(segments, ends, strict=True):
        if end > first_dirty:
            dirty.append(segment)
        else:
            clean_bytes += segment.size
    oldest = min((segment.first_batch_timestamp for segment in dirty if segment.size), default=_NEVER)
    lag_ms = max(0, now_ms - oldest) if oldest != _NEVER else 0
    return LogToClean(
        log.topic_partition,
        log,
        first_dirty,
        uncleanable,
        clean_bytes,
        sum(segment.size for segment in dirty),
        lag_ms,
        lag_ms > log.config.max_compaction_lag_ms,
    )


def roll_if_overdue(log: UnifiedLog, now_ms: int) -> bool:
    """Close an active segment whose oldest record has waited ``max.compaction.lag.ms``; only then can it be cleaned.

    Kafka does this on the next append only, so a quiet partition keeps records for longer than the limit. Source:
    KIP-354. Raises KafkaStorageError.
    """
    active = log.segments.active
    if not active.size or now_ms - active.first_batch_timestamp <= log.config.max_compaction_lag_ms:
        return False
    log.roll()
    return True
