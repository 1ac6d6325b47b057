"""Controllers that are down, brokers that restart one by one, snapshots, and a quorum restored from a backup (R6 of
docs/internals/faults.md)."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.rivals.process import BrokerError
from tests.support.cluster_clients import WAIT_S
from tests.support.faulty_cluster.amount import MINUTES, MIXES, at_length, cycles
from tests.support.faulty_cluster.clients import Pairs, Writer, read_all
from tests.support.faulty_cluster.cluster import IDS, FaultyCluster
from tests.support.faulty_cluster.history import History
from tests.support.faulty_cluster.report import conclude
from tests.support.kraft_node import wait_until
from tests.support.member import MemberNode

pytestmark = [pytest.mark.java, pytest.mark.slow, at_length]
MAX_GAP_S = 2.0
"""Longest time without an acknowledgement while the controllers are away: the data path needs none."""
SNAPSHOTS = {"metadata.log.max.snapshot.interval.ms": "2000", "metadata.max.retention.ms": "1000"}


@pytest.mark.parametrize("mix", MIXES)
def test_the_data_path_needs_no_controller(mix: str, tmp_path: Path) -> None:
    history = History()
    with FaultyCluster(tmp_path, mix) as cluster:
        cluster.create("r6")
        with Writer(cluster.bootstrap, "r6", history) as writer:
            writer.wait_for(50)
            cluster.controller.kill()
            since = time.monotonic()
            time.sleep(60 * MINUTES)
            gap = writer.longest_gap(since)
            cluster.controller.start()
            cluster.create("later")
            writer.wait_for(50)
        assert writer.errors == []
        findings = history.findings(read_all(cluster.bootstrap, {"r6": 1}))
    conclude("R6-away", mix, history, findings, [gap], minutes=MINUTES)
    assert gap < MAX_GAP_S


@pytest.mark.parametrize("mix", MIXES)
def test_brokers_restart_one_by_one(mix: str, tmp_path: Path) -> None:
    history, gaps = History(), []
    topics = {"r6": 1, "pairs": 2}
    with FaultyCluster(tmp_path, mix) as cluster:
        for topic, partitions in topics.items():
            cluster.create(topic, partitions=partitions)
        with Writer(cluster.bootstrap, "r6", history) as writer, Pairs(cluster.bootstrap, "pairs", history) as pairs:
            for cycle in range(cycles(3)):
                writer.wait_for(20)
                since = time.monotonic()
                node_id = IDS[cycle % len(IDS)]
                cluster.stop(node_id)
                cluster.start(node_id)
                for topic in topics:
                    cluster.wait_isr(topic)
                gaps.append(writer.longest_gap(since))
                pairs.wait_for(2)
        assert writer.errors == []
        cluster.wait_equal_files(*topics)
        findings = history.findings(read_all(cluster.bootstrap, topics))
    conclude("R6-rolling", mix, history, findings, gaps, transactions=pairs.committed)


def snapshots(cluster: FaultyCluster) -> list[int]:
    """Return the offsets of the controller's snapshots."""
    names = cluster.controller.metadata_directory.glob("*-*.checkpoint")
    return sorted(int(path.name.partition("-")[0]) for path in names)


@pytest.mark.parametrize("mix", MIXES)
def test_a_broker_returns_by_a_snapshot(mix: str, tmp_path: Path) -> None:
    history = History()
    with FaultyCluster(tmp_path, mix, controller=SNAPSHOTS) as cluster:
        cluster.create("r6")
        with Writer(cluster.bootstrap, "r6", history) as writer:
            writer.wait_for(50)
            cluster.stop(1)
            # Asked before, the cluster may name broker 1 as the one to create topics at: the client would wait for it.
            admin = AdminClient({"bootstrap.servers": cluster.others(1)})
            wait_until(lambda: 1 not in admin.list_topics(timeout=WAIT_S).brokers, "a controller that is there", WAIT_S)
            before = max(snapshots(cluster), default=0)
            for number in range(20):
                new = NewTopic(f"t{number}", 1, replica_assignment=[[2, 3]])
                next(iter(admin.create_topics([new]).values())).result()
            wait_until(lambda: min(snapshots(cluster), default=0) > before, "the old log is gone", WAIT_S)
            since = time.monotonic()
            cluster.start(1)
            cluster.wait_isr("r6")
            again = time.monotonic() - since
            writer.wait_for(50)
        shown = AdminClient({"bootstrap.servers": cluster.brokers[1].bootstrap}).list_topics(timeout=WAIT_S).topics
        assert {f"t{number}" for number in range(20)} <= shown.keys()
        findings = history.findings(read_all(cluster.bootstrap, {"r6": 1}))
    conclude("R6-snapshot", mix, history, findings, [again])


@pytest.mark.parametrize("mix", MIXES)
def test_a_quorum_restored_from_a_backup_is_refused(mix: str, tmp_path: Path) -> None:
    """Members end with one line, and do not start, until the newer quorum is back; then all is there.

    Apache Kafka's brokers are stopped before: what they would do is theirs.
    """
    history = History()
    with FaultyCluster(tmp_path, mix) as cluster:
        members = {node_id: node for node_id, node in cluster.brokers.items() if isinstance(node, MemberNode)}
        controller, backup, newer = cluster.controller, tmp_path / "backup", tmp_path / "newer"
        controller.terminate()
        shutil.copytree(controller.data_directory, backup)
        controller.start()
        cluster.create("r6")
        with Writer(cluster.bootstrap, "r6", history) as writer:
            writer.wait_for(50)
        cluster.stop(*(node_id for node_id in IDS if node_id not in members))
        controller.terminate()
        controller.data_directory.rename(newer)
        backup.rename(controller.data_directory)
        controller.start()
        for node_id, node in members.items():
            wait_until(lambda node=node: node.process.poll() is not None, f"{node_id} ends", 2 * WAIT_S)  # type: ignore[misc]
            assert "were committed" in node.output(), node.output()
            node.kill()
            with pytest.raises(BrokerError):
                node.start()
        controller.terminate()
        shutil.rmtree(controller.data_directory)
        newer.rename(controller.data_directory)
        controller.start()
        since = time.monotonic()
        cluster.start(*IDS)
        cluster.wait_isr("r6")
        again = time.monotonic() - since
        findings = history.findings(read_all(cluster.bootstrap, {"r6": 1}))
    conclude("R6-restored", mix, history, findings, [again])
