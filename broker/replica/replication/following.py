"""A followed partition: the work of a fetch loop on its log.

    Append               only where the log ends at the offset that was asked for (F1); then the high watermark is the
                         leader's, or the log's end where that comes first (F3), and the log start the leader's (F4)
    TruncateToEpochEnd   where the epoch ends, here or there (F2)
    TruncateTo, StartAt  the leader's end, or its start

A cut begins with a lower recovery point in the checkpoint and is synced before the next append: see
:mod:`tidelog.log.follower.truncation`. Any thread; one at a time for a partition, while the leader's side of it may
take over in another: neither an append nor a cut by a leader of an earlier epoch than the log's latest does anything.

Source: ReplicaFetcherThread.processPartitionData, UnifiedLog.maybeUpdateHighWatermark of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.cluster.fetching.work import Append, LogPosition, StartAt, TruncateTo, TruncateToEpochEnd, Work
from tidelog.broker.replica.group_flush import NEVER
from tidelog.log.follower.append import append_as_follower
from tidelog.log.follower.truncation import (
    end_of_epoch,
    lowered_recovery_point,
    sync_cut,
    truncate_as_follower,
    truncate_to_epoch_end,
)
from tidelog.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from tidelog.broker.replica.partition import Partition

Cut = StartAt | TruncateTo | TruncateToEpochEnd


def following_of(partition: Partition, write_checkpoints: Callable[[], object]) -> Following:
    """Return the follower's side of a partition, its log opened now if it was not yet. Raises KafkaStorageError."""
    return Following(partition.local_log, write_checkpoints, partition.offsets_moved)


class Following:
    """The follower's side of one partition. ``write_checkpoints`` is called before and after a cut; ``note_moved``, on
    the loop, once its log has moved: consumers may wait for that (KIP-392)."""

    __slots__ = ("_write_checkpoints", "log", "note_moved")

    def __init__(
        self, log: UnifiedLog, write_checkpoints: Callable[[], object], note_moved: Callable[[], object] = bool
    ) -> None:
        self.log = log
        self.note_moved = note_moved
        self._write_checkpoints = write_checkpoints

    @property
    def position(self) -> LogPosition:
        """The ends of the log and its latest epoch, as they are together."""
        log = self.log
        with log.lock:
            return LogPosition(log.log_end_offset, log.leader_epochs.latest_epoch, log.log_start_offset)

    @property
    def is_synced_at_once(self) -> bool:
        """True when the topic asks for syncs: an append then waits for the disk."""
        return self.log.config.flush_messages != NEVER

    def do(self, work: Work) -> bool:
        """Do one piece of work; False when it brought nothing and would not if it came again at once.

        Raises CorruptMessageError for damaged records of the leader, KafkaStorageError.
        """
        if isinstance(work, Append):
            return self._append(work)
        before = self.position
        with lowered_recovery_point(self.log, self._end_after(work), self._write_checkpoints):
            if not self._cut(work):
                return False  # this broker leads by now, or the leader is a former one: it is asked after a pause
            sync_cut(self.log)
        self._write_checkpoints()
        return self.position != before

    def _cut(self, work: Cut) -> bool:
        """Cut the log; False where it has a later epoch than the work, whose leader has no say over it any more."""
        log = self.log
        with log.lock:
            if work.leader_epoch < log.leader_epochs.latest_epoch:
                return False
            if isinstance(work, StartAt):
                log.truncate_fully_and_start_at(work.offset)
            elif isinstance(work, TruncateTo):
                truncate_as_follower(log, work.offset)
            else:
                truncate_to_epoch_end(log, work.epoch, work.end_offset)
            return True

    def _end_after(self, work: Cut) -> int:
        """Return the offset from which on this work cuts the log."""
        if isinstance(work, StartAt):
            return -1
        if isinstance(work, TruncateTo):
            return work.offset
        return end_of_epoch(self.log, work.epoch, work.end_offset)

    def _append(self, work: Append) -> bool:
        log = self.log
        with log.lock:
            if log.log_end_offset != work.offset:
                return True  # the log has moved: it is asked for where it is
            is_new = append_as_follower(log, work.records, work.leader_epoch) is not None
            self._take_offsets(work)
        if is_new and log.log_end_offset - log.recovery_point >= log.config.flush_messages:
            log.flush()
        return is_new or not work.records

    def _take_offsets(self, work: Append) -> None:
        log = self.log
        if work.high_watermark >= 0 and work.leader_epoch >= log.leader_epochs.latest_epoch:
            log.update_high_watermark(work.high_watermark)
        if log.log_start_offset < work.log_start_offset <= log.high_watermark:
            log.maybe_increment_log_start_offset(work.log_start_offset)
