"""Known ways to lose records or to diverge, as scenarios; most are also run with a planted bug, which they must find.

Source: J. Gustafson's models of Kafka replication (hachikuji/kafka-specification): Kip101, Kip279, Kip320, AsyncIsr;
KIP-903.
"""

from __future__ import annotations

import pytest

from tests.simulation.planted import BUGS
from tests.simulation.scenario import ACK_LEADER, Scenario, scenario
from tests.simulation.settings import TOPIC_ID
from tests.simulation.truth import ViolationError
from tidelog.broker.metadata.image import LOST_DIRECTORY
from tidelog.broker.metadata.metadata_image import NO_LEADER
from tidelog.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)


def lead_elsewhere(cluster: Scenario, old: int) -> int:
    """Wait until another broker than ``old`` is elected and leads; return it."""
    cluster.until(lambda: cluster.state.leader not in (old, NO_LEADER))
    leader = cluster.state.leader
    cluster.until(lambda: cluster.replica(leader).leader is not None)
    return leader


# ---- Kip101: a follower that does not know the last high watermark becomes leader


def lose_leader_before_high_watermark_travels() -> None:
    with scenario(min_isr=2) as cluster:
        write = cluster.write(1)
        cluster.until(lambda: write.is_acknowledged)
        cluster.isolate(1)  # the followers have the record, and do not know that it is committed
        assert [cluster.replica(node).log.high_watermark for node in (2, 3)] == [0, 0]
        leader = lead_elsewhere(cluster, 1)
        cluster.brokers[1].kill(power=True)
        cluster.pause(500)
        assert cluster.values(leader) == [write.value]
        cluster.heal()
        assert [cluster.values(node)[0] for node in (1, 2, 3)] == [write.value] * 3


def test_kip101_a_committed_record_survives_a_new_leader_that_did_not_know() -> None:
    lose_leader_before_high_watermark_travels()


def test_kip101_finds_truncation_by_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS["truncation by high watermark"].plant(monkeypatch)
    with pytest.raises(ViolationError, match="Completeness"):
        lose_leader_before_high_watermark_travels()


# ---- Kip279: two fail-overs, and a replica that was isolated during both has records of its own


def fail_over_twice() -> None:
    with scenario(min_isr=1) as cluster:
        first = cluster.write(1)
        cluster.until(lambda: first.is_acknowledged)
        cluster.settle()
        cluster.isolate(1)
        stale = [cluster.write(1, ACK_LEADER) for _ in range(3)]
        second_leader = lead_elsewhere(cluster, 1)
        assert cluster.values(1) == [first.value, *(one.value for one in stale)]
        cluster.isolate(second_leader)  # it leads an epoch without a record
        third_leader = lead_elsewhere(cluster, second_leader)
        later = [cluster.write(third_leader, ACK_LEADER) for _ in range(2)]
        cluster.heal()
        for node in (1, 2, 3):
            assert cluster.values(node)[:3] == [first.value, *(one.value for one in later)]
            assert [entry.epoch for entry in cluster.entries(node)[:3]] == [0, 2, 2]


def test_kip279_logs_are_equal_after_two_fail_overs() -> None:
    fail_over_twice()


def lead_two_epochs_without_a_record() -> None:
    with scenario() as cluster:
        write = cluster.write(1)
        cluster.until(lambda: write.is_acknowledged)
        cluster.brokers[1].begin_stop()
        assert lead_elsewhere(cluster, 1) == 2
        cluster.until(lambda: not cluster.brokers[1].is_alive)
        cluster.brokers[1].start()
        cluster.settle()
        cluster.quorum.decide(lambda: cluster.controller.elect(TOPIC_ID, 0))
        assert lead_elsewhere(cluster, 2) == 1
        cluster.pause(1500)
        cluster.settle()
        assert not cluster.truth.explain_unhealed()


def test_kip279_a_follower_gets_rid_of_an_epoch_that_it_led_without_a_record() -> None:
    lead_two_epochs_without_a_record()


def test_kip279_finds_an_election_without_an_epoch_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS["no epoch entry on election"].plant(monkeypatch)
    with pytest.raises(ViolationError, match="state of the scenario"):
        lead_two_epochs_without_a_record()


# ---- Kip320: the old log after an unclean election is longer or shorter than the new leader's


@pytest.mark.parametrize("written", [1, 5])
def test_kip320_an_old_leader_with_another_log_is_cut_by_epoch(written: int) -> None:
    with scenario(min_isr=1, allows_unclean=True) as cluster:
        first = cluster.write(1)
        cluster.until(lambda: first.is_acknowledged)
        cluster.settle()
        for node in (2, 3):
            cluster.brokers[node].kill(power=False)
        cluster.until(lambda: cluster.state.isr == (1,))
        lost = [cluster.write(1) for _ in range(3)]
        cluster.until(lambda: all(one.is_acknowledged for one in lost))
        cluster.brokers[1].kill(power=False)
        cluster.until(lambda: cluster.state.leader == NO_LEADER or not cluster._live())
        cluster.brokers[2].start()
        cluster.until(lambda: 2 in cluster._live())
        cluster.quorum.decide(cluster.controller.elect_uncleanly)
        assert lead_elsewhere(cluster, 1) == 2
        for _ in range(written):
            cluster.write(2, ACK_LEADER)
        cluster.heal()
        assert cluster.truth.lost == 3
        assert cluster.values(1) == cluster.values(2) == cluster.values(3)
        assert cluster.values(1)[0] == first.value
        assert not {one.value for one in lost} & set(cluster.values(1))


# ---- AsyncIsr: the controller has another ISR than the leader


def shrink_without_an_answer() -> None:
    """Lose the response to an ISR change that the controller has committed: until the leader learns of it, a record
    counts as committed only with the replicas of both ISRs."""
    with scenario(min_isr=1) as cluster:
        cluster.network.cuts |= {(2, 1), (1, 2), (0, 1)}
        cluster.until(lambda: cluster.state.leader != 1 or 2 not in cluster.state.isr)
        write = cluster.write(1)
        cluster.pause(2000)
        assert not write.is_acknowledged or write.value in cluster.values(cluster.state.leader)
        cluster.heal()


def shrink_that_never_arrives() -> None:
    """Cut off a leader, which then proposes an ISR of itself alone, while another leader is elected."""
    with scenario(min_isr=1) as cluster:
        cluster.isolate(1)
        write = cluster.write(1)
        lead_elsewhere(cluster, 1)
        cluster.pause(1000)
        assert not write.is_acknowledged
        cluster.heal()


def test_async_isr_a_lost_answer_commits_nothing_too_early() -> None:
    shrink_without_an_answer()


def test_async_isr_a_leader_alone_commits_nothing() -> None:
    shrink_that_never_arrives()


def test_async_isr_finds_a_high_watermark_over_the_shrunk_isr(monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS["high watermark over the shrunk ISR before its commit"].plant(monkeypatch)
    with pytest.raises(ViolationError, match="ReplicationQuorumSuperset"):
        shrink_that_never_arrives()


# ---- Kip903: a follower returns without its records, and a fetch of its last process arrives late


def return_empty_before_its_last_fetch_arrives() -> None:
    with scenario(min_isr=2) as cluster:
        write = cluster.write(1)
        cluster.until(lambda: write.is_acknowledged)
        cluster.settle()
        held = cluster.network.held[2, 1] = []
        cluster.until(lambda: bool(held))
        epoch = cluster.brokers[2].broker_epoch
        cluster.brokers[2].kill(power=True)
        cluster.brokers[2].start()
        cluster.until(lambda: 2 in cluster._live() and cluster.brokers[2].broker_epoch > epoch)
        cluster.pause(300)
        assert cluster.state.isr == (1, 3)
        held[0]()
        cluster.pause(300)
        del cluster.network.held[2, 1]
        cluster.heal()


def test_kip903_a_process_joins_the_isr_only_by_its_own_fetches() -> None:
    return_empty_before_its_last_fetch_arrives()


def test_kip903_finds_an_isr_join_without_broker_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS["ISR join without broker epoch"].plant(monkeypatch)
    with pytest.raises(ViolationError, match="LeaderCandidateCompleteness"):
        return_empty_before_its_last_fetch_arrives()


# ---- KIP-966: a broker that may be elected comes back with an empty disk


def return_with_an_empty_disk() -> None:
    with scenario(min_isr=2) as cluster:
        write = cluster.write(1)
        cluster.until(lambda: write.is_acknowledged)
        cluster.settle()
        for node in (1, 2, 3):
            cluster.brokers[node].begin_stop()
            cluster.until(lambda node=node: not cluster.brokers[node].is_alive)  # type: ignore[misc]
        assert (cluster.state.isr, set(cluster.state.elr)) == ((), {2, 3})
        cluster.brokers[2].lose_disk()
        cluster.brokers[2].start()
        cluster.until(lambda: 2 in cluster._live())
        cluster.pause(500)
        assert (cluster.state.leader, cluster.state.elr) == (NO_LEADER, (3,))
        cluster.brokers[3].start()
        cluster.until(lambda: cluster.state.leader == 3)
        cluster.heal()
        assert [cluster.values(node)[0] for node in (1, 2, 3)] == [write.value] * 3


def test_kip966_a_broker_with_an_empty_disk_is_not_elected() -> None:
    return_with_an_empty_disk()


def test_kip966_finds_a_clean_stop_that_is_claimed_after_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS["a clean stop is claimed after a kill"].plant(monkeypatch)
    with pytest.raises(ViolationError, match="Complete"):
        return_with_an_empty_disk()


# ---- KIP-858: the controller learns late that a lost replica is there again


def test_kip858_a_replica_that_was_lost_leads_again() -> None:
    with scenario(min_isr=1) as cluster:
        write = cluster.write(1)
        cluster.until(lambda: write.is_acknowledged)
        cluster.settle()
        for node in (2, 3):
            cluster.brokers[node].kill(power=False)
        cluster.until(lambda: cluster.state.isr == (1,))
        topic = TopicData(topic_id=TOPIC_ID, partitions=[PartitionData(partition_index=0)])
        lost = AssignReplicasToDirsRequest(
            broker_id=1,
            broker_epoch=cluster.brokers[1].broker_epoch,
            directories=[DirectoryData(id=LOST_DIRECTORY, topics=[topic])],
        )
        cluster.quorum.decide(lambda: cluster.controller.assign_directories(lost))
        assert cluster.state.leader == NO_LEADER
        cluster.until(lambda: cluster.state.leader == 1)
        cluster.heal()
        assert [cluster.values(node)[0] for node in (1, 2, 3)] == [write.value] * 3
