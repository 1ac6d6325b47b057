"""Follower's side of a partition: the work of a fetch loop on its log.

    Append               only if the log ends at the offset that was fetched. Then the high watermark is the
                         leader's, at most the log's end, and the log start moves up to the leader's, unless that is
                         above the high watermark
    TruncateToEpochEnd   to the end of the epoch in this log or the leader's, the lower one
    TruncateTo, StartAt  to the leader's log end; an empty log at the leader's log start

A truncation begins with a lower recovery point in the checkpoint, and is synced before the next append: see
:mod:`tidelog.log.follower.truncation`. Any thread, but one at a time for each partition. This broker may become the
leader meanwhile, in another thread. So appends and truncations of a leader whose epoch is below the log's latest do
nothing.

Source: ReplicaFetcherThread.processPartitionData, UnifiedLog.maybeUpdateHighWatermark of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from tidelog.protocol.errors import KafkaStorageError

if TYPE_CHECKING:
    from tidelog.broker.replica.partition import Partition

Cut = StartAt | TruncateTo | TruncateToEpochEnd


def following_of(partition: Partition, write_checkpoints: Callable[[UnifiedLog], object]) -> Following:
    """Return the follower's side of a partition. Opens the log if it is not open yet. ``write_checkpoints`` gets the
    log.

    Raises what ``Partition.local_log`` raises, and KafkaStorageError if the log has failed.
    """
    log = partition.local_log
    if not log.is_serving:
        raise KafkaStorageError(f"{log.topic_partition} is out of service: {log.failure}")
    return Following(log, partial(write_checkpoints, log), partition.offsets_moved)


class Following:
    """Follower's side of one partition. ``write_checkpoints`` is called before and after a truncation. ``note_moved``
    is called on the loop once the log's offsets have changed: consumers may wait for that (KIP-392)."""

    __slots__ = ("_write_checkpoints", "log", "note_moved")

    def __init__(
        self, log: UnifiedLog, write_checkpoints: Callable[[], object], note_moved: Callable[[], object] = lambda: None
    ) -> None:
        self.log = log
        self.note_moved = note_moved
        self._write_checkpoints = write_checkpoints

    @property
    def position(self) -> LogPosition:
        """Start, end and latest leader epoch of the log at one moment."""
        log = self.log
        with log.lock:
            return LogPosition(log.log_end_offset, log.leader_epochs.latest_epoch, log.log_start_offset)

    @property
    def is_synced_at_once(self) -> bool:
        """True if the topic has ``flush.messages``: an append may then end with a sync."""
        return self.log.config.flush_messages != NEVER

    def do(self, work: Work) -> bool:
        """Do one piece of work. Return False if it was in vain, and the next fetch would bring the same: the fetch loop
        then pauses.

        Raises CorruptMessageError for damaged records of the leader, KafkaStorageError.
        """
        if isinstance(work, Append):
            return self._append(work)
        before = self.position
        with lowered_recovery_point(self.log, self._end_after(work), self._write_checkpoints):
            if not self._cut(work):
                return False  # this broker leads by now, or the work is from a former leader: fetch again after a pause
            sync_cut(self.log)
        self._write_checkpoints()
        return self.position != before

    def _cut(self, work: Cut) -> bool:
        """Truncate the log; return False if its latest epoch is later than ``work.leader_epoch``, that of a former
        leader."""
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
        """Return the offset to which this work truncates the log; -1 if it removes all records."""
        if isinstance(work, StartAt):
            return -1
        if isinstance(work, TruncateTo):
            return work.offset
        return end_of_epoch(self.log, work.epoch, work.end_offset)

    def _append(self, work: Append) -> bool:
        log = self.log
        with log.lock:
            if log.log_end_offset != work.offset:
                return True  # the log has moved: the next fetch begins at its end
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
