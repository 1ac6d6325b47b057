"""Leader's side of a partition with several replicas: its ``LeaderState``, and the waits for followers.

    append       to the log, then ``note_append``; with flush.messages ``note_unsynced``, and ``note_synced`` after the
                 sync
    fetch        ``note_fetch`` moves the high watermark, which settles waits; ``note_joinable`` is called if the
                 follower may join the ISR
    rest         a partition of which a follower has everything is not read for it until something moves: see
                 :mod:`tidelog.broker.replica.replication.resting`
    acks=all     answered at the high watermark; NOT_ENOUGH_REPLICAS_AFTER_APPEND if the ISR shrank below
                 min.insync.replicas meanwhile, REQUEST_TIMED_OUT after the request's timeout
    deletion     of records completes when the log starts of all live replicas have reached its offset

Loop thread only. Source: Partition, DelayedProduce and DelayedDeleteRecords of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.cluster.alter_partition import PartitionKey
from tidelog.broker.cluster.partition_state import Brokers, IsrAnswer, IsrProposal, LeaderState
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.replica.offset_waits import OffsetWaits
from tidelog.broker.replica.replication.quotas import PartitionThrottle, ReplicationQuota
from tidelog.broker.replica.replication.resting import Rests
from tidelog.protocol.errors import (
    KafkaError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    RequestTimedOutError,
)

if TYPE_CHECKING:
    from tidelog.broker.metadata.metadata_image import PartitionState
    from tidelog.broker.replica.partition import Partition
    from tidelog.log.unified_log import UnifiedLog

ALL_REPLICAS = -1


class LeaderParts(NamedTuple):
    """Parts that all led partitions of a broker share."""

    timers: TimerQueue
    lag_time_max_ms: float
    note_joinable: Callable[[Leading], object]
    """Called with the leader's side of a partition whose ISR should be proposed now."""
    save_later: Callable[[UnifiedLog], object]
    """Called with a log whose leader epochs a thread is to write."""
    quota: ReplicationQuota | None = None
    """Throttle of followers outside the ISR."""


class Leading:
    """The leader's side of one partition, in one leader epoch."""

    __slots__ = ("_deletions", "_partition", "_parts", "_syncs", "leader_state", "rests", "throttle")

    def __init__(self, partition: Partition, leader_state: LeaderState, parts: LeaderParts) -> None:
        self._partition = partition
        self._parts = parts
        self._syncs = OffsetWaits()
        self._deletions = OffsetWaits()
        self.leader_state = leader_state
        self.rests = Rests(leader_state)
        self.throttle: PartitionThrottle | None = None
        """Withholds records from followers outside the ISR, for which acks=all does not wait (KIP-73)."""
        if parts.quota is not None:
            config_of = partial(config_values, partition.local_log)
            number = partition.topic_partition.partition
            self.throttle = PartitionThrottle(parts.quota, number, config_of, parts.timers.monotonic_ms)

    @property
    def key(self) -> PartitionKey:
        """The partition's topic id and number."""
        return PartitionKey(self._partition.topic_id, self._partition.topic_partition.partition)

    @property
    def _now_ms(self) -> float:
        return self._parts.timers.monotonic_ms()

    # ---- appends

    def check_in_sync_replicas(self) -> None:
        """Raise NotEnoughReplicasError while the ISR is too small for acks=all."""
        state = self.leader_state
        if state.is_under_min_isr:
            raise NotEnoughReplicasError(
                f"The size of the current ISR : {len(state.isr)} is insufficient to satisfy the min.isr requirement of "
                f"{state.effective_min_isr} for partition {self._partition.topic_partition}"
            )

    def note_append(self, log_end_offset: int) -> None:
        """Note an append that needs no sync."""
        self._note_end(log_end_offset, log_end_offset)

    def note_unsynced(self, log_end_offset: int) -> None:
        """Note an append of records that this replica has to sync before they may be committed."""
        self._note_end(log_end_offset, self.leader_state.committed_end)

    def _note_end(self, log_end_offset: int, committed_end: int) -> None:
        """Note the log's end and the end of the records that need no sync any more, and wake waiting fetches."""
        self.rests.end_all()
        if not self._advance_if(self.leader_state.note_append(log_end_offset, self._now_ms, committed_end)):
            self._partition.offsets_moved()  # followers wait for records, whether or not they are committed

    def note_synced(self, offset: int) -> None:
        """Note that this replica's records below ``offset`` are synced, or need no sync."""
        self._advance_if(self.leader_state.note_append(self._partition.log_end_offset, self._now_ms, offset))
        self._syncs.advance(offset)

    def fail_syncs(self, error: KafkaError) -> None:
        """Fail the waits for this replica's sync alone (acks=1): it failed."""
        self._syncs.fail(error)

    def when_acknowledged(self, offset: int, acks: int, timeout_ms: float) -> Deferred[None] | None:
        """Return a Deferred that settles when a produce request with its last record at ``offset`` may be answered;
        None when it may be now.

        Fails with NotEnoughReplicasAfterAppendError, NotLeaderOrFollowerError, RequestTimedOutError,
        KafkaStorageError, UnknownTopicOrPartitionError.
        """
        if acks != ALL_REPLICAS:
            return self._syncs.wait(offset) if offset >= self.leader_state.committed_end else None
        committed = self._partition.when_committed(offset).map(self._check_committed)
        return limit_time(self._parts.timers, committed, timeout_ms)

    def _check_committed(self, _: None) -> None:
        leading = self._partition.leading  # of a later epoch, if this broker was elected again meanwhile
        if leading is not None and len(leading.leader_state.maximal_isr) < leading.leader_state.effective_min_isr:
            raise NotEnoughReplicasAfterAppendError

    # ---- followers

    def note_fetch(
        self, replica: tuple[int, int], fetch_offset: int, log_start_offset: int, leader_end_offset: int
    ) -> None:
        """Take over a fetch of a replica (id, broker epoch). Raises NotLeaderOrFollowerError."""
        state, (replica_id, broker_epoch) = self.leader_state, replica
        self.rests.end(replica_id)
        self._advance_if(
            state.note_fetch(replica_id, broker_epoch, fetch_offset, log_start_offset, leader_end_offset, self._now_ms)
        )
        if replica_id not in state.isr and state.can_join(replica_id):
            self._parts.note_joinable(self)
        self._settle_deletions()

    def when_deleted(self, offset: int, timeout_ms: float) -> Deferred[int]:
        """Return a Deferred of the low watermark, which settles once that has reached ``offset``.

        Fails with NotLeaderOrFollowerError, RequestTimedOutError.
        """
        if self.low_watermark >= offset:
            return deferred_value(self.low_watermark)
        waiting = self._deletions.wait(offset - 1)
        return limit_time(self._parts.timers, waiting, timeout_ms).map(lambda _: self.low_watermark)

    @property
    def low_watermark(self) -> int:
        """The smallest log start of the live replicas; -1 if one of them has not fetched yet."""
        return self.leader_state.low_watermark(self._partition.log_start_offset)

    def _settle_deletions(self) -> None:
        if self._deletions.has_waits:
            self._deletions.advance(self.low_watermark)

    # ---- metadata

    def take_image(self, state: PartitionState, brokers: Brokers) -> None:
        """Take over a newer image of the same leader epoch."""
        self.rests.end_outside(state.isr)  # before the leader state forgets what removed followers had
        self._apply_change(self.leader_state.take_image(state, brokers, self._now_ms))

    def take_brokers(self, brokers: Brokers) -> None:
        """Take over the brokers of a newer image."""
        self._apply_change(self.leader_state.take_brokers(brokers, self._now_ms))

    def take_answer(self, proposal: IsrProposal, answer: IsrAnswer) -> None:
        """Take over the controller's answer to a proposal."""
        self._apply_change(self.leader_state.take_answer(proposal, answer, self._now_ms))

    def take_min_isr(self, min_isr: int) -> None:
        """Take over another ``min.insync.replicas``."""
        self._advance_if(self.leader_state.take_min_isr(min_isr, self._now_ms))

    def propose(self) -> IsrProposal | None:
        """Return an ISR to propose to the controller, pending from now on; None if it need not change, a proposal is
        pending, or this log has failed: its followers cannot fetch, and without them in the ISR no other replica could
        lead.
        """
        return self.leader_state.propose(self._now_ms) if self._partition.local_log.is_serving else None

    def close(self, error: KafkaError) -> None:
        """End leadership: fail the waits for this replica's syncs and for deletions with ``error``."""
        self.rests.end_all()
        self._syncs.fail(error)
        self._deletions.fail(error)

    def _apply_change(self, moved: bool) -> None:
        self.rests.end_outside(self.leader_state.isr)
        self._partition.isr = self.leader_state.isr
        self._advance_if(moved)
        self._settle_deletions()

    def _advance_if(self, moved: bool) -> bool:
        if moved:
            self._partition.advance(self.leader_state.high_watermark)
        return moved


def begin_leading(partition: Partition, state: PartitionState, brokers: Brokers, parts: LeaderParts) -> Leading:
    """Begin a leader epoch. The log has it before any fetch of the epoch is answered, even if the log is empty.

    A thread writes the file of epochs, because one election may be of thousands of partitions. Raises
    KafkaStorageError.
    """
    log = partition.local_log
    with log.lock:
        log.leader_epochs.assign(state.leader_epoch, log.log_end_offset, write=False)
    parts.save_later(log)
    leader_state = LeaderState(
        partition.node_id,
        state,
        log.log_end_offset,
        log.high_watermark,
        parts.timers.monotonic_ms(),
        parts.lag_time_max_ms,
        log.config.min_insync_replicas,
        brokers,
    )
    return Leading(partition, leader_state, parts)


def config_values(log: UnifiedLog) -> Mapping[str, Any]:
    """Return a log's configuration as it is now, by Kafka's names."""
    return log.config.values


def limit_time(timers: TimerQueue, work: Deferred[None], timeout_ms: float) -> Deferred[None]:
    """Return a Deferred that settles as ``work`` does; after ``timeout_ms`` it fails with RequestTimedOutError."""
    if work.done:
        return work
    limited: Deferred[None] = Deferred()
    timer = timers.schedule(timeout_ms, partial(_expire, limited))

    def settle(done: Deferred[None]) -> None:
        timer.cancel()
        if not limited.done:
            done.pass_to(limited)

    work.on_done(settle, limited.refuse)
    return limited


def _expire(limited: Deferred[None]) -> None:
    if not limited.done and not limited.abandoned:
        limited.fail(RequestTimedOutError())
