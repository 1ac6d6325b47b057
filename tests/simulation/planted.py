"""Bugs that are planted by patching the broker, to check that the simulation finds them; BUGS has their names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.simulation.broker import SimulatedBroker
from tidelog.broker.cluster.follower_state import UNKNOWN, FollowerState
from tidelog.broker.cluster.partition_state import LeaderState
from tidelog.broker.member import replication
from tidelog.broker.member.connections.directories import DirectoryReports
from tidelog.broker.member.replication import ReplicaFetcher
from tidelog.broker.member.roles import MemberRoles
from tidelog.broker.metadata.metadata_image import PartitionState
from tidelog.broker.replica.partition import Partition
from tidelog.broker.replica.replication import following
from tidelog.broker.replica.replication.following import Following
from tidelog.broker.replica.replication.resting import Rests
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.follower import append, truncation
from tidelog.log.follower.append import append_as_follower
from tidelog.log.leader_epochs import LeaderEpochCache
from tidelog.log.unified_log import LogAppendInfo, UnifiedLog

LATEST = 1 << 30
"""A leader epoch that is larger than all others."""


class Bug(NamedTuple):
    """A bug, and the seed of a schedule that finds it; None if only a scenario does."""

    plant: Callable[[pytest.MonkeyPatch], None]
    seed: int | None


def count_shrunk_isr_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let leaders compute the high watermark with a smaller ISR as soon as they propose it, before it is committed."""

    def maximal_isr(self: LeaderState) -> frozenset[int]:
        return frozenset(self.isr if self._pending is None else self._pending.ids)

    patch.setattr(LeaderState, "maximal_isr", property(maximal_isr))


def note_no_epoch_on_election(patch: pytest.MonkeyPatch) -> None:
    """Let broker 1 add no epoch entry when it is elected, only with the first record; the other brokers are right."""
    lead = MemberRoles._lead

    def lead_without_epoch(self: MemberRoles, partition: Partition, state: PartitionState) -> None:
        with pytest.MonkeyPatch.context() as inner:
            if partition.node_id == 1:
                inner.setattr(LeaderEpochCache, "assign", lambda *_, **__: None)
            lead(self, partition, state)

    patch.setattr(MemberRoles, "_lead", lead_without_epoch)


def take_roles_of_old_images(patch: pytest.MonkeyPatch) -> None:
    """Let brokers take roles from the first image, which may still have the registration of their last process."""
    patch.setattr(SimulatedBroker, "is_ready_for_roles", property(lambda self: self._lifecycle is not None))


def truncate_to_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Let a new follower truncate its log to its high watermark, as before KIP-101."""
    take_over = Partition.take_over

    def take_over_and_cut(self: Partition, state: PartitionState) -> None:
        is_new = state.leader_epoch > getattr(self, "leader_epoch", state.leader_epoch) and state.leader != self.node_id
        take_over(self, state)
        if is_new:
            self.local_log.truncate_to(self.high_watermark)

    patch.setattr(Partition, "take_over", take_over_and_cut)


def append_after_leader_change(patch: pytest.MonkeyPatch) -> None:
    """Let a follower append records that it fetched from a former leader after the leader has changed."""

    def append(log: UnifiedLog, records: memoryview, _: int) -> LogAppendInfo | None:
        return append_rightly(log, records, LATEST)

    append_rightly = append_as_follower
    patch.setattr(following, "append_as_follower", append)
    patch.setattr(ReplicaFetcher, "keep", wait_for_nothing)


async def wait_for_nothing(*_: object) -> None:
    """Replace ``ReplicaFetcher.keep``, so that it does not wait for work in flight."""


def join_without_broker_epoch(patch: pytest.MonkeyPatch) -> None:
    """Let a follower join the ISR by a fetch of an earlier process of its broker, as before KIP-903."""
    note_fetch = LeaderState.note_fetch

    def note_any(self: LeaderState, replica_id: int, _: int, *rest: Any) -> bool:
        return note_fetch(self, replica_id, UNKNOWN, *rest)

    patch.setattr(LeaderState, "note_fetch", note_any)


def claim_clean_stops(patch: pytest.MonkeyPatch) -> None:
    """Let each process register as if the process before it had stopped cleanly, however it ended (KIP-966)."""
    start = SimulatedBroker.start

    def start_and_claim(self: SimulatedBroker) -> None:
        epoch = self.broker_epoch if self.incarnation else UNKNOWN
        start(self)
        self._previous_epoch = epoch

    patch.setattr(SimulatedBroker, "start", start_and_claim)


def commit_below_min_isr(patch: pytest.MonkeyPatch) -> None:
    """Let a leader accept writes and advance its high watermark with fewer in-sync replicas than the minimum."""
    patch.setattr(LeaderState, "effective_min_isr", 1)


def rest_before_the_watermark_is_told(patch: pytest.MonkeyPatch) -> None:
    """Let fetches leave out a partition (see ``resting.py``) once the follower has all records, even if it does not
    know the last high watermark yet."""

    def may_rest(self: Rests, replica: tuple[int, int], fetch_offset: int) -> bool:
        follower = self._leader_state.follower(replica[0])
        return (
            follower is not None
            and replica[0] in self._leader_state.isr
            and fetch_offset == self._leader_state.log_end_offset
        )

    patch.setattr(Rests, "may_rest", may_rest)


def tell_no_divergence(patch: pytest.MonkeyPatch) -> None:
    """Let leaders answer a fetch without comparing the epoch before its offset, as before KIP-595."""
    patch.setattr(Partition, "divergence", lambda *_: None)


def count_syncs_under_another_leader(patch: pytest.MonkeyPatch) -> None:
    """Let a sync that ends after its leader has become a follower advance the high watermark all the same."""

    def note_synced(self: Partition, offset: int) -> None:
        if self.leading is not None:
            self.leading.note_synced(offset)
        else:
            self.advance(offset)

    patch.setattr(Partition, "_note_synced", note_synced)


def fetch_for_failed_logs(patch: pytest.MonkeyPatch) -> None:
    """Let followers go on fetching for logs that have failed: each fetch brings the replica back into the ISR."""

    def follow(partition: Partition, write_checkpoints: Callable[[UnifiedLog], object]) -> Following:
        log = partition.local_log
        return Following(log, partial(write_checkpoints, log), partition.offsets_moved)

    patch.setattr(replication, "following_of", follow)
    patch.setattr(replication, "count_failures", lambda _: 0)


def report_no_failed_logs(patch: pytest.MonkeyPatch) -> None:
    """Let brokers report no log that has failed, so that it goes on leading and counts as in sync."""

    def directory_id_of(self: DirectoryReports, partition: TopicPartition) -> bytes | None:
        return self._log_manager.directory_id_of(partition)

    patch.setattr(DirectoryReports, "_directory_id_of", directory_id_of)


def count_removed_followers(patch: pytest.MonkeyPatch) -> None:
    """Let followers that the controller removes from the ISR join again by their last fetch from before."""
    patch.setattr(FollowerState, "forget_position", lambda _: None)


def keep_no_producers_of_copies(patch: pytest.MonkeyPatch) -> None:
    """Let followers copy records without the state of their producers: as leaders they take retries for new records."""
    patch.setattr(append, "_replay", lambda *_: None)


def keep_producers_of_truncated_records(patch: pytest.MonkeyPatch) -> None:
    """Let a truncation keep the state of producers whose records it removes: their retries count as duplicates."""
    cut = truncation.truncate_as_follower

    def cut_and_keep(log: UnifiedLog, offset: int) -> bool:
        before = dict(log.producer_state.producers)
        is_cut = cut(log, offset)
        log.producer_state.producers.update(before)
        return is_cut

    for module in (truncation, following):
        patch.setattr(module, "truncate_as_follower", cut_and_keep)


BUGS = {
    "high watermark over the shrunk ISR before its commit": Bug(count_shrunk_isr_at_once, 14),
    "no epoch entry on election": Bug(note_no_epoch_on_election, 211),
    "roles before the own registration": Bug(take_roles_of_old_images, 0),
    "truncation by high watermark": Bug(truncate_to_high_watermark, 1),
    "append after a leader change": Bug(append_after_leader_change, 258),
    "ISR join without broker epoch": Bug(join_without_broker_epoch, None),
    "a clean stop is claimed after a kill": Bug(claim_clean_stops, 1),
    "writes below the min ISR": Bug(commit_below_min_isr, 0),
    "rest before the high watermark is told": Bug(rest_before_the_watermark_is_told, 1),
    "divergence that is not told": Bug(tell_no_divergence, 6),
    "a sync counts under another leader": Bug(count_syncs_under_another_leader, 21),
    "fetches for a failed log": Bug(fetch_for_failed_logs, 171),
    "a failed log that is not reported": Bug(report_no_failed_logs, 30),
    "a removed follower joins by an old fetch": Bug(count_removed_followers, 198),
    "copies without their producers": Bug(keep_no_producers_of_copies, 11),
    "producers of truncated records": Bug(keep_producers_of_truncated_records, 226),
}
