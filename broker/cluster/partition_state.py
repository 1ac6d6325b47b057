"""Leader's state of one partition with several replicas, in one leader epoch: followers, ISR, high watermark.

    fetch of a follower   updates the follower's state, then the high watermark
    high watermark        smallest of ``committed_end`` and the log ends of followers in the maximal ISR or about to
                          join it; never falls; does not move while the ISR is smaller than min.insync.replicas
                          (KIP-966)
    maximal ISR           the committed ISR and the members of the one proposal that may be pending: a follower that
                          is to join counts at once, one that is to leave until the controller has committed that
                          (KIP-497)
    image                 its brokers are taken over; its state of the partition is ignored unless it has this leader
                          epoch and a newer partition epoch; a follower that the image removes from the ISR counts
                          only after its next fetch: its log directory may have failed
    answer                ignored unless its proposal is still pending

Invariants: the maximal ISR contains each ISR that the controller may have committed; each of its members has all
records below the high watermark. Each leader epoch has an object of its own: what followers had in an older epoch
proves nothing.

Sans-io; the log's offsets, times in ms and brokers are passed in. Loop thread only.
Source: Partition of Kafka 4.3; KIP-497, KIP-841, KIP-903, KIP-966.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.broker.cluster.follower_state import NEVER, UNKNOWN, FollowerState
from tidelog.broker.metadata.metadata_image import BrokerRegistration, PartitionState
from tidelog.protocol.errors import (
    NONE,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NewLeaderElectedError,
    NotLeaderOrFollowerError,
    OperationNotAttemptedError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)

Brokers = Mapping[int, BrokerRegistration]

REFUSED = frozenset({IneligibleReplicaError.code, OperationNotAttemptedError.code})
"""Errors that reject a proposal: the next one starts from the committed ISR again."""
OVERTAKEN = frozenset(
    error.code
    for error in (
        FencedLeaderEpochError,
        InvalidRequestError,
        InvalidUpdateVersionError,
        NewLeaderElectedError,
        UnknownTopicIdError,
        UnknownTopicOrPartitionError,
    )
)
"""Errors that leave open what the controller has committed: the proposal stays pending until a newer image comes."""


class IsrMember(NamedTuple):
    """One proposed member. A follower's broker epoch is that of its last fetch; -1: not known (KIP-903)."""

    broker_id: int
    broker_epoch: int


class IsrProposal(NamedTuple):
    """An ISR that the leader proposes to the controller, based on the partition epoch that it knows."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """The members' broker ids."""
        return tuple(member.broker_id for member in self.isr)


class IsrAnswer(NamedTuple):
    """The controller's answer to one proposal; the fields after the error are the partition's state as committed."""

    error_code: int
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()
    is_recovering: bool = False


class LeaderState:
    """One led partition in one leader epoch."""

    __slots__ = (
        "_brokers",
        "_followers",
        "_lag_time_max_ms",
        "_leader_epoch",
        "_min_isr",
        "_node_id",
        "_partition_epoch",
        "_pending",
        "committed_end",
        "epoch_start_offset",
        "expands_total",
        "high_watermark",
        "is_recovering",
        "isr",
        "log_end_offset",
        "replicas",
        "shrinks_total",
    )

    def __init__(
        self,
        node_id: int,
        state: PartitionState,
        log_end_offset: int,
        high_watermark: int,
        now_ms: float,
        lag_time_max_ms: float,
        min_isr: int,
        brokers: Brokers,
    ) -> None:
        """``log_end_offset`` is the present end of the log: the leader epoch begins there."""
        self._node_id = node_id
        self._leader_epoch = state.leader_epoch
        self._lag_time_max_ms = lag_time_max_ms
        self._min_isr = min_isr
        self._brokers = brokers
        self._pending: IsrProposal | None = None
        self._followers: dict[int, FollowerState] = {}
        self.log_end_offset = self.committed_end = self.epoch_start_offset = log_end_offset
        """``committed_end`` is below the log end while this replica's own records wait for a sync."""
        self.high_watermark = high_watermark
        self.expands_total = self.shrinks_total = 0
        self._commit(state, now_ms)

    def _commit(self, state: PartitionState, now_ms: float) -> None:
        self._partition_epoch = state.partition_epoch
        self.replicas, self.isr, self.is_recovering = state.replicas, state.isr, state.is_recovering
        self._pending = None
        before = self._followers
        self._followers = {
            replica: before.get(replica) or FollowerState(now_ms if replica in state.isr else NEVER)
            for replica in state.replicas
            if replica != self._node_id
        }

    # ---- present state

    @property
    def partition_epoch(self) -> int:
        """The newest partition epoch that an image or an answer had."""
        return self._partition_epoch

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of this object."""
        return self._leader_epoch

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The committed ISR and the members of a pending proposal, which the controller may have committed already."""
        return frozenset(self.isr if self._pending is None else (*self.isr, *self._pending.ids))

    @property
    def effective_min_isr(self) -> int:
        """``min.insync.replicas``, at most the number of replicas."""
        return min(self._min_isr, len(self.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        """True while the committed ISR is too small for acks=all."""
        return len(self.isr) < self.effective_min_isr

    @property
    def is_settling(self) -> bool:
        """True until the high watermark reaches the start of this leader epoch. Until then, the high watermark that
        clients saw at an earlier leader may have been larger (KIP-207).
        """
        return self.high_watermark < self.epoch_start_offset

    def follower(self, replica_id: int) -> FollowerState | None:
        """Return the state of a follower, None for a broker that has no replica."""
        return self._followers.get(replica_id)

    def low_watermark(self, log_start_offset: int) -> int:
        """Return the smallest log start of this replica and the live followers; -1 if one of them has not fetched
        yet.
        """
        starts = [one.log_start_offset for replica, one in self._followers.items() if self._is_alive(replica)]
        return min([log_start_offset, *starts])

    # ---- events; each method returns whether the high watermark moved

    def note_append(self, log_end_offset: int, now_ms: float, committed_end: int | None = None) -> bool:
        """Note this replica's log end; where commits wait for syncs, ``committed_end`` is the end of its synced
        records.
        """
        self.log_end_offset = log_end_offset
        self.committed_end = log_end_offset if committed_end is None else committed_end
        return self._advance(now_ms)

    def note_fetch(
        self,
        replica_id: int,
        broker_epoch: int,
        fetch_offset: int,
        log_start_offset: int,
        leader_end_offset: int,
        now_ms: float,
    ) -> bool:
        """Note a follower's fetch. Raises NotLeaderOrFollowerError for a broker that has no replica, and for an earlier
        process of a follower.
        """
        follower = self._followers.get(replica_id)
        registered = self._brokers.get(replica_id)
        if follower is None or (registered is not None and UNKNOWN < broker_epoch < registered.broker_epoch):
            raise NotLeaderOrFollowerError
        if follower.broker_epoch > broker_epoch > UNKNOWN:
            raise NotLeaderOrFollowerError
        follower.note_fetch(broker_epoch, fetch_offset, log_start_offset, leader_end_offset, now_ms)
        return self._advance(now_ms)

    def take_image(self, state: PartitionState, brokers: Brokers, now_ms: float) -> bool:
        """Take over the brokers of a newer image. Take over its state of the partition, if that has this leader epoch
        and a newer partition epoch.
        """
        self._brokers = brokers
        if state.leader_epoch == self._leader_epoch and state.partition_epoch > self._partition_epoch:
            self._count(state.isr)
            for replica, follower in self._followers.items():
                if replica in self.isr and replica not in state.isr:
                    follower.forget_position()
            self._commit(state, now_ms)
        return self._advance(now_ms)

    def take_brokers(self, brokers: Brokers, now_ms: float) -> bool:
        """Take over the brokers of a newer image, in which this partition did not change."""
        self._brokers = brokers
        return self._advance(now_ms)

    def take_min_isr(self, min_isr: int, now_ms: float) -> bool:
        """Take over another ``min.insync.replicas``."""
        self._min_isr = min_isr
        return self._advance(now_ms)

    def take_answer(self, proposal: IsrProposal, answer: IsrAnswer, now_ms: float) -> bool:
        """Take over the controller's answer to ``proposal``, unless a newer image has ended the proposal already."""
        if self._pending != proposal:
            return False
        if answer.error_code in REFUSED:
            self._pending = None
        elif answer.error_code == NONE and answer.leader_epoch == self._leader_epoch:
            self._count(answer.isr)
            self._pending = None
            self._partition_epoch = answer.partition_epoch
            self.isr, self.is_recovering = answer.isr, answer.is_recovering
        return self._advance(now_ms)

    # ---- the ISR

    def can_join(self, replica_id: int) -> bool:
        """Return whether a follower is outside the ISR, and may be proposed now."""
        follower = self._followers.get(replica_id)
        return (
            follower is not None
            and self._pending is None
            and replica_id not in self.isr
            and follower.log_end_offset >= max(self.high_watermark, self.epoch_start_offset)
            and self._is_eligible(replica_id, follower)
        )

    def propose(self, now_ms: float) -> IsrProposal | None:
        """Return an ISR to propose to the controller, pending from now on. None if the committed ISR is right, or a
        proposal is pending.
        """
        if self._pending is not None:
            return None
        if self.is_recovering:
            members = [self._node_id]  # the only ISR that Kafka accepts after an unclean election (KIP-704)
        else:
            lag_ms = self._lag_time_max_ms
            joining = [replica for replica, one in self._followers.items() if one.has_fetched(now_ms, lag_ms)]
            joining = [replica for replica in joining if self.can_join(replica)]
            members = [replica for replica in self.isr if not self._is_lagging(replica, now_ms)] + joining
            if set(members) == set(self.isr):
                return None
        isr = tuple(IsrMember(replica, self._epoch_of(replica)) for replica in members)
        self._pending = IsrProposal(self._leader_epoch, self._partition_epoch, isr)
        return self._pending

    def _is_lagging(self, replica_id: int, now_ms: float) -> bool:
        follower = self._followers.get(replica_id)
        if follower is None:
            return False  # this replica itself
        return not follower.is_caught_up(self.log_end_offset, now_ms, self._lag_time_max_ms)

    def _epoch_of(self, replica_id: int) -> int:
        if replica_id == self._node_id:
            own = self._brokers.get(replica_id)
            return UNKNOWN if own is None else own.broker_epoch
        return self._followers[replica_id].broker_epoch

    def _count(self, isr: tuple[int, ...]) -> None:
        self.expands_total += bool(set(isr) - set(self.isr))
        self.shrinks_total += bool(set(self.isr) - set(isr))

    def _is_alive(self, replica_id: int) -> bool:
        broker = self._brokers.get(replica_id)
        return broker is not None and not broker.is_fenced

    def _is_eligible(self, replica_id: int, follower: FollowerState) -> bool:
        """Return whether a follower's process is the registered one, not fenced and not in a controlled shutdown."""
        broker = self._brokers.get(replica_id)
        return (
            broker is not None
            and not broker.is_fenced
            and not broker.in_controlled_shutdown
            and follower.broker_epoch in (UNKNOWN, broker.broker_epoch)
        )

    # ---- the high watermark

    def _advance(self, now_ms: float) -> bool:
        if self.committed_end <= self.high_watermark or self.is_under_min_isr:
            return False
        new, maximal = self.committed_end, self.maximal_isr
        for replica, follower in self._followers.items():
            if follower.log_end_offset < new and (replica in maximal or self._is_about_to_join(replica, now_ms)):
                new = follower.log_end_offset
        if new <= self.high_watermark:
            return False
        self.high_watermark = new
        return True

    def _is_about_to_join(self, replica_id: int, now_ms: float) -> bool:
        follower = self._followers[replica_id]
        is_caught_up = follower.is_caught_up(self.log_end_offset, now_ms, self._lag_time_max_ms)
        return is_caught_up and self._is_eligible(replica_id, follower)
