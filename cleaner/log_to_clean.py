"""Sections of a log, its cleanable ratio, and the age of its oldest dirty record.

    log start        first dirty offset            first uncleanable offset        log end
        |  clean section   |        dirty section            |   uncleanable tail    |

The uncleanable tail begins with the first segment that is active, holds the last stable offset or a later one, or has a
record younger than ``min.compaction.lag.ms``. In the clean section ages do not count. The tail begins at a segment's
base offset.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.segment.segment import LogSegment
from tidelog.log.unified_log import UnifiedLog

_NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogToClean:
    """A log and the offsets of its sections: clean below ``first_dirty_offset``, dirty up to
    ``first_uncleanable_offset``, not cleanable from there on.

    ``compaction_lag_ms`` is the age of the oldest dirty record that can be cleaned, taken from the first batch of each
    segment as in Kafka; ``overdue`` says whether it is above ``max.compaction.lag.ms``.
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
        """True if the log needs a round now by its configuration: overdue, or above ``min.cleanable.dirty.ratio``."""
        if not self.cleanable_bytes:
            return False
        return self.overdue or self.cleanable_ratio > self.log.config.min_cleanable_dirty_ratio


def first_dirty_offset(log: UnifiedLog, checkpoint: int | None) -> int:
    """Return the first dirty offset: the checkpoint, or the log start offset if that is missing or outside the log."""
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


def measure_log(log: UnifiedLog, checkpoint: int | None, now_ms: int) -> LogToClean:
    """Measure the sections of a log. Any thread, no lock: appends may change them meanwhile. Raises
    KafkaStorageError."""
    first_dirty = first_dirty_offset(log, checkpoint)
    uncleanable = _first_uncleanable_offset(log, first_dirty, now_ms)
    first_dirty = min(first_dirty, uncleanable)  # the checkpoint may be within the tail, after a lost or truncated end
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
    """Close the active segment if its first batch is older than ``max.compaction.lag.ms``, as an active segment cannot
    be cleaned. Return whether it was closed.

    Kafka does this only at the next append, so a partition without appends keeps records for longer than the limit.
    Source: KIP-354. Raises KafkaStorageError.
    """
    active = log.segments.active
    if not active.size or now_ms - active.first_batch_timestamp <= log.config.max_compaction_lag_ms:
        return False
    log.roll()
    return True
