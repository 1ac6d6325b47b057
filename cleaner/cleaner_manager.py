"""Cleaning state of every partition, and the choice of the log to clean next.

    state         entered from        meaning
    idle          in progress         no thread works on the partition, as at first
    in progress   idle, quarantined   a round runs
    quarantined   in progress         the last round failed, or the log could not be measured

The next round of a quarantined partition comes after a back-off, which each failure doubles, or with a request.

In Apache Kafka truncation and deletion wait until a round has stopped. Here they do not: the round stops at its next
check, and at the latest before it changes the log.

One lock guards the table; it is never held while a log is read or a file is written. ``tidelog.cleaner.checkpoint``
keeps the first dirty offsets; if one lies outside its log, for example after retention, the log start offset is used
instead.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from tidelog.cleaner.checkpoint import CleanerCheckpoint
from tidelog.cleaner.log_to_clean import LogToClean, measure_log, roll_if_overdue
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import FileSystem
from tidelog.log.system.retention_clock import RetentionClock
from tidelog.log.system.time import Time
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

#: Back-off after the first failure of a partition, which each further failure doubles, and the longest back-off.
FIRST_RETRY_MS = 15_000
LONGEST_RETRY_MS = 3_600_000

#: Function that returns the open compacted logs. It may open logs first, and is called without the lock.
LogSource = Callable[[], Iterable[UnifiedLog]]


class CleaningState(Enum):
    """State of one partition; see the module's table."""

    IDLE = "idle"
    IN_PROGRESS = "in progress"
    QUARANTINED = "quarantined"


VALID_PREVIOUS: Mapping[CleaningState, frozenset[CleaningState]] = {
    CleaningState.IDLE: frozenset({CleaningState.IN_PROGRESS}),
    CleaningState.IN_PROGRESS: frozenset({CleaningState.IDLE, CleaningState.QUARANTINED}),
    CleaningState.QUARANTINED: frozenset({CleaningState.IN_PROGRESS}),
}


class InvalidCleaningStateError(Exception):
    """A call that the partition's state does not allow, which is a programming error."""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """Result of one round: its time and duration, and the cleaned part of the log before and after it. Sizes in
    bytes."""

    finished_ms: int
    duration_ms: int
    dry_run: bool
    first_dirty_offset: int
    end_offset: int
    bytes_before: int
    bytes_after: int
    bytes_read: int
    bytes_written: int
    records_before: int
    records_after: int
    map_utilization: float
    collision_rate: float
    spilled_bytes: int
    unreadable: tuple[str, ...]
    unreadable_batches: int
    keyless_records: int
    engine: str


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Status of one compacted partition: its sections (``tidelog.cleaner.log_to_clean``), state and last round. Sizes
    in bytes."""

    topic_partition: TopicPartition
    state: CleaningState
    cleanable_ratio: float
    dirty_bytes: int
    clean_bytes: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    compaction_lag_ms: int
    last_round: RoundReport | None
    last_error: str | None
    failures: int
    retry_in_ms: int | None


@dataclass(frozen=True, slots=True)
class _Entry:
    """State of one partition in the manager's table. Entries are replaced, never changed."""

    state: CleaningState = CleaningState.IDLE
    last_round: RoundReport | None = None
    last_error: str | None = None
    failures: int = 0
    retry_at_ms: float = 0.0


_NEW = _Entry()


class LogCleanerManager:
    """Table of partition states that chooses the log to clean next. Any thread may call it."""

    def __init__(self, logs: LogSource, file_system: FileSystem, time: Time) -> None:
        self._logs = logs
        self._time = time
        self.clock = RetentionClock(time)
        self._condition = threading.Condition(threading.RLock())
        self._entries: dict[TopicPartition, _Entry] = {}
        self.checkpoint = CleanerCheckpoint(file_system)
        self.dirtiest_ratio = 0.0
        """The largest cleanable ratio of the logs that the last call of :meth:`grab_filthiest` measured."""
        self.max_compaction_delay_ms = 0
        """The longest time by which one of these logs exceeded its ``max.compaction.lag.ms``; 0 if none did."""

    # ---- choice

    def grab_filthiest(self) -> LogToClean | None:
        """Choose the due log with the largest cleanable ratio and put it in progress; None when none is due.

        A log that another thread has taken, or that cannot be measured, is passed over.
        """
        now_ms = self.clock.now()
        candidates = [candidate for log in self._logs() if (candidate := self._look(log, now_ms)) is not None]
        self.dirtiest_ratio = max((c.cleanable_ratio for c in candidates), default=0.0)
        self.max_compaction_delay_ms = max(
            (c.compaction_lag_ms - c.log.config.max_compaction_lag_ms for c in candidates if c.overdue), default=0
        )
        due = [candidate for candidate in candidates if candidate.is_due]
        for candidate in sorted(due, key=lambda c: c.cleanable_ratio, reverse=True):
            if self._try_begin(candidate.topic_partition):
                with contextlib.suppress(KafkaStorageError):  # then the partition is no longer in progress
                    return self._measure_begun(candidate.log)
        return None

    def grab(self, log: UnifiedLog) -> LogToClean | None:
        """Put this log in progress, due or not. Return None if a round works on it.

        Raises KafkaStorageError.
        """
        if not self._try_begin(log.topic_partition, ignore_back_off=True):
            return None
        return self._measure_begun(log)

    def _measure_begun(self, log: UnifiedLog) -> LogToClean:
        """Return the sections of a log in progress; a truncation below their end then ends the round."""
        try:
            self.checkpoint.begin_round(log)
            return self.measure(log)
        except KafkaStorageError as error:
            if log.is_closed:
                self.record_stop(log.topic_partition)
            else:
                self.record_failure(log.topic_partition, str(error))
            raise

    def measure(self, log: UnifiedLog) -> LogToClean:
        """Measure the log's sections. Raises KafkaStorageError."""
        return measure_log(log, self.checkpoint.get(log), self.clock.now())

    def _look(self, log: UnifiedLog, now_ms: int) -> LogToClean | None:
        """Measure the log if it may be cleaned now; quarantine it if it cannot be measured."""
        partition = log.topic_partition
        with self._condition:
            if not self._may_begin(partition, ignore_back_off=False):
                return None
        try:
            roll_if_overdue(log, now_ms)
            return measure_log(log, self.checkpoint.get(log), now_ms)
        except KafkaStorageError as error:
            if not log.is_closed:
                logger.warning("%s cannot be measured for cleaning: %s", partition, error)
                if self._try_begin(partition):
                    self.record_failure(partition, str(error))
            return None

    def _may_begin(self, partition: TopicPartition, *, ignore_back_off: bool) -> bool:
        entry = self._entries.get(partition, _NEW)
        if entry.state is CleaningState.QUARANTINED:
            return ignore_back_off or entry.retry_at_ms <= self._time.monotonic_ms()
        return entry.state is CleaningState.IDLE

    def _try_begin(self, partition: TopicPartition, *, ignore_back_off: bool = False) -> bool:
        with self._condition:
            if not self._may_begin(partition, ignore_back_off=ignore_back_off):
                return False
            self._move(partition, CleaningState.IN_PROGRESS)
            return True

    def _move(self, partition: TopicPartition, state: CleaningState) -> None:
        entry = self._entries.get(partition, _NEW)
        if entry.state not in VALID_PREVIOUS[state]:
            raise InvalidCleaningStateError(f"{partition} cannot go from {entry.state.value} to {state.value}")
        self._entries[partition] = replace(entry, state=state)
        self._condition.notify_all()

    # ---- end of a round

    def record_success(self, partition: TopicPartition, report: RoundReport) -> None:
        """Note the result of a completed round and reset the failure count."""
        with self._condition:
            entry = self._entries.get(partition, _NEW)
            self._entries[partition] = replace(entry, last_round=report, last_error=None, failures=0)
            self._move(partition, CleaningState.IDLE)

    def record_stop(self, partition: TopicPartition) -> None:
        """Note that a round was aborted, which does not count as a failure."""
        with self._condition:
            self._move(partition, CleaningState.IDLE)

    def record_failure(self, partition: TopicPartition, reason: str) -> None:
        """Note that a round failed, and quarantine the partition until a back-off has passed."""
        with self._condition:
            entry = self._entries.get(partition, _NEW)
            retry_ms = min(LONGEST_RETRY_MS, FIRST_RETRY_MS << min(entry.failures, 20))
            self._entries[partition] = replace(
                entry,
                last_error=reason,
                failures=entry.failures + 1,
                retry_at_ms=self._time.monotonic_ms() + retry_ms,
            )
            self._move(partition, CleaningState.QUARANTINED)

    def _state(self, partition: TopicPartition) -> CleaningState:
        return self._entries.get(partition, _NEW).state

    def wait_until_free(self, partition: TopicPartition, timeout_s: float) -> bool:
        """Wait until no round works on the partition; return False after ``timeout_s``."""
        with self._condition:
            return self._condition.wait_for(lambda: self._state(partition) is not CleaningState.IN_PROGRESS, timeout_s)

    def forget(self, partition: TopicPartition, directories: Iterable[str]) -> None:
        """Remove a deleted partition's saved offset, and its state unless a round is still running.

        Raises KafkaStorageError.
        """
        with self._condition:
            if self._state(partition) is not CleaningState.IN_PROGRESS:
                self._entries.pop(partition, None)
        self.checkpoint.forget(partition, directories)

    # ---- status

    def statuses(self) -> list[PartitionStatus]:
        """Return the status of each open compacted log, sorted by name. It reads segments: not for the event loop."""
        return sorted((self.status(log) for log in self._logs()), key=lambda status: status.topic_partition)

    def status(self, log: UnifiedLog) -> PartitionStatus:
        """Return the status of one partition."""
        entry = self._entries.get(log.topic_partition, _NEW)
        error = entry.last_error
        try:
            found = self.measure(log)
        except KafkaStorageError as storage_error:
            error = str(storage_error)
            found = LogToClean(log.topic_partition, log, log.log_start_offset, log.log_start_offset)
        retry_ms = None
        if entry.state is CleaningState.QUARANTINED:
            retry_ms = max(0, int(entry.retry_at_ms - self._time.monotonic_ms()))
        return PartitionStatus(
            topic_partition=log.topic_partition,
            state=entry.state,
            cleanable_ratio=found.cleanable_ratio,
            dirty_bytes=found.cleanable_bytes,
            clean_bytes=found.clean_bytes,
            first_dirty_offset=found.first_dirty_offset,
            first_uncleanable_offset=found.first_uncleanable_offset,
            compaction_lag_ms=found.compaction_lag_ms,
            last_round=entry.last_round,
            last_error=error,
            failures=entry.failures,
            retry_in_ms=retry_ms,
        )
