"""Bugs that are planted to see whether the simulation finds them: one function for each, by its name in BUGS."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.simulation.broker import SimulatedBroker
from tests.simulation.replicas import Replica
from tidelog.broker.cluster.fetching.fetcher import LeaderFetcher, Stage
from tidelog.broker.cluster.fetching.session import FetchKey
from tidelog.broker.cluster.fetching.work import Append, Work
from tidelog.broker.cluster.follower_state import UNKNOWN, FollowerState
from tidelog.broker.cluster.partition_state import Brokers, LeaderState
from tidelog.broker.metadata.metadata_image import PartitionState
from tidelog.log.leader_epochs import LeaderEpochCache
from tidelog.protocol.errors import NONE
from tidelog.protocol.messages.fetch import PartitionData


class Bug(NamedTuple):
    """A bug, and a seed that finds it."""

    plant: Callable[[pytest.MonkeyPatch], None]
    seed: int


def count_shrunk_isr_at_once(patch: pytest.MonkeyPatch) -> None:
    """The high watermark counts a smaller ISR when it is proposed, not when it is committed."""

    def maximal_isr(self: LeaderState) -> frozenset[int]:
        return frozenset(self.isr if self._pending is None else self._pending.ids)

    patch.setattr(LeaderState, "maximal_isr", property(maximal_isr))


def note_no_epoch_on_election(patch: pytest.MonkeyPatch) -> None:
    """Broker 1 notes the epochs that it leads with their first records only; the others do right."""
    lead = Replica.lead

    def lead_without_epoch(self: Replica, brokers: Brokers, now_ms: float) -> None:
        with pytest.MonkeyPatch.context() as inner:
            if self._node_id == 1:
                inner.setattr(LeaderEpochCache, "assign", lambda *_, **__: None)
            lead(self, brokers, now_ms)

    patch.setattr(Replica, "lead", lead_without_epoch)


def take_roles_of_old_images(patch: pytest.MonkeyPatch) -> None:
    """Roles are taken from the first image, which may show what this broker was in its former life."""
    patch.setattr(SimulatedBroker, "is_ready_for_roles", property(lambda self: self._lifecycle is not None))


def truncate_to_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A new follower cuts its log at its high watermark, as before KIP-101."""
    take = Replica.take

    def take_and_cut(self: Replica, state: PartitionState, brokers: Brokers, now_ms: float) -> None:
        is_new = state.leader_epoch > self.state.leader_epoch and state.leader != self._node_id
        take(self, state, brokers, now_ms)
        if is_new:
            self.log.truncate_to(self.log.high_watermark)

    patch.setattr(Replica, "take", take_and_cut)


def append_after_leader_change(patch: pytest.MonkeyPatch) -> None:
    """Records of an earlier leader are appended, as the offset is still the right one."""

    def follow(self: Replica, work: Work) -> None:
        if isinstance(work, Append) and self.leader is None:
            self.following.do(work)
        else:
            follow_rightly(self, work)

    def take_partition(self: LeaderFetcher, key: FetchKey, answer: PartitionData, now_ms: float) -> Work | None:
        partition = self._partitions.get(key)
        asked = self._session.asked[key]
        if partition is not None and partition.stage is Stage.FETCHING and answer.error_code == NONE:
            ask = partition.ask()
            if asked != ask and asked.fetch_offset == ask.fetch_offset:
                self._session.asked[key] = ask
        return take_rightly(self, key, answer, now_ms)

    follow_rightly, take_rightly = Replica.follow, LeaderFetcher._take_partition
    patch.setattr(Replica, "follow", follow)
    patch.setattr(LeaderFetcher, "_take_partition", take_partition)


def join_without_broker_epoch(patch: pytest.MonkeyPatch) -> None:
    """A follower joins the ISR by what an earlier process of its broker had (before KIP-903)."""

    def is_eligible(self: LeaderState, replica_id: int, follower: FollowerState) -> bool:
        broker = self._brokers.get(replica_id)
        return broker is not None and not broker.is_fenced and not broker.in_controlled_shutdown

    patch.setattr(LeaderState, "_is_eligible", is_eligible)
    patch.setattr(LeaderState, "_epoch_of", lambda self, replica_id: UNKNOWN)


BUGS = {
    "high watermark over the shrunk ISR before its commit": Bug(count_shrunk_isr_at_once, 1),
    "no epoch entry on election": Bug(note_no_epoch_on_election, 46),
    "roles before the own registration": Bug(take_roles_of_old_images, 3),
    "truncation by high watermark": Bug(truncate_to_high_watermark, 12),
    "append after a leader change": Bug(append_after_leader_change, 151),
    "ISR join without broker epoch": Bug(join_without_broker_epoch, 77),
}
