"""Apache Kafka on the directories that members have formatted and filled: it reads each file without a warning."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.apache_kafka import dump_log_segments, run_tool
from tests.support.faulty_cluster.amount import MIXES, at_length
from tests.support.faulty_cluster.clients import Pairs, Writer, read_all
from tests.support.faulty_cluster.cluster import FaultyCluster
from tests.support.faulty_cluster.history import History
from tests.support.faulty_cluster.report import conclude
from tests.support.kraft_node import KraftNode
from tests.support.member import MemberNode

pytestmark = [pytest.mark.java, pytest.mark.slow, at_length]
TOPICS = {"kept": 1, "pairs": 2}
FAULT = re.compile(
    r"mismatch|out of order|Missing offset|invalid|corrupt|Non-consecutive|isvalid: false|Error", re.IGNORECASE
)
PEERS = re.compile("NetworkClient|ReplicaFetcher|Raft|disconnected|log4j", re.IGNORECASE)
"""Warnings of connections, not of files."""
ENDINGS = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")


class InPlace(KraftNode):
    """Apache Kafka on the directory, the addresses and the id of a member."""

    def __init__(self, member: MemberNode) -> None:
        super().__init__(
            member.directory, member.node_id, member.controllers, is_broker=True, overrides=member.overrides
        )
        self.directory, self.port = member.directory, member.port
        self.log_path = member.directory / "apache-kafka.out"

    def stdout(self) -> int:
        """Return the file of standard error: log4j writes its warnings to standard output."""
        return os.open(self.log_path, os.O_WRONLY | os.O_APPEND)


def files(data: Path) -> list[Path]:
    """Return the files of partitions that Kafka's tool can show."""
    return sorted(path for path in data.glob("*-*/*") if path.suffix in ENDINGS and "__cluster" not in path.parent.name)


@pytest.mark.parametrize("mix", MIXES)
def test_kafka_and_members_take_over_each_others_directories(mix: str, tmp_path: Path) -> None:
    """A member that was stopped and one, if there are two, that was killed, while producers work; then back so."""
    history = History()
    with FaultyCluster(tmp_path, mix) as cluster:
        for topic, partitions in TOPICS.items():
            cluster.create(topic, partitions=partitions, segment_bytes="1048576", index_interval_bytes="64")
        members = {node_id: node for node_id, node in cluster.brokers.items() if isinstance(node, MemberNode)}
        with Writer(cluster.bootstrap, "kept", history) as writer, Pairs(cluster.bootstrap, "pairs", history) as pairs:
            for node_id, ending in ((1, cluster.stop), (2 if 2 in members else 1, cluster.kill)):
                writer.wait_for(200)
                ending(node_id)
                member = members[node_id]
                read_by_kafka(Path(member.data_directory))
                java = InPlace(member)
                for node in (java, member):
                    cluster.brokers[node_id] = node
                    cluster.start(node_id)
                    wait_for_progress(cluster, writer, pairs)
                    cluster.stop(node_id)
                cluster.start(node_id)
                wait_for_progress(cluster, writer, pairs)
                lines = java.output().splitlines()
                print(*lines, sep="\n")
                assert [line for line in lines if "log" in line.lower() and not PEERS.search(line)] == []
        assert writer.errors == []
        cluster.wait_equal_files(*TOPICS)
        findings = history.findings(read_all(cluster.bootstrap, TOPICS))
    conclude("returns", mix, history, findings, [], transactions=pairs.committed)


def wait_for_progress(cluster: FaultyCluster, writer: Writer, pairs: Pairs) -> None:
    """Wait until all replicas are in sync, and both producers have written more."""
    for topic in TOPICS:
        cluster.wait_isr(topic)
    writer.wait_for(50)
    pairs.wait_for(2)


def read_by_kafka(data: Path) -> None:
    """Have kafka-dump-log read each file of partitions, indices held against the records."""
    found = files(data)
    assert {path.suffix for path in found} >= {".log", ".index", ".timeindex"}
    done = run_tool(dump_log_segments(), ["--deep-iteration", "--files", ",".join(map(str, found))])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    wrong = [line for line in (done.stdout + done.stderr).splitlines() if FAULT.search(line)]
    assert wrong == []
