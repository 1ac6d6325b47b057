"""Repairs and changes of a running cluster: new disks, topics created again, cancelled reassignments, unregistered
brokers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.rivals.apache_kafka import CLUSTER_ID, STORAGE_TOOL
from tests.support.apache_kafka import run_tool
from tests.support.cluster_clients import WAIT_S, isr
from tests.support.faulty_cluster.amount import MIXES, at_length
from tests.support.faulty_cluster.clients import Pairs, Writer, read_all
from tests.support.faulty_cluster.cluster import CONTROLLER, IDS, FaultyCluster
from tests.support.faulty_cluster.history import History
from tests.support.faulty_cluster.report import conclude
from tests.support.kraft_node import wait_until
from tests.support.member import MemberNode
from tests.support.requirements import missing

pytestmark = [pytest.mark.java, pytest.mark.slow, at_length]
REASSIGN_COMMAND = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECTION_COMMAND = "org.apache.kafka.tools.LeaderElectionCommand"
FEATURE_COMMAND = "org.apache.kafka.tools.FeatureCommand"
CLUSTER_COMMAND = "org.apache.kafka.tools.ClusterTool"
TOPICS = {"kept": 1, "pairs": 2}
LENGTHS = {"longer": (300, 900), "shorter": (900, 300), "empty": (300, 0), "elsewhere": (300, 300), "gone": (300, 0)}
"""Records of topics before and after they are made again; one without a replica on the broker that is away, one not."""
LEVELS = (
    *(f"metadata.version={level}" for level in (26, 27, 28, 29, 30)),
    *(f"{name}.version=0" for name in ("eligible.leader.replicas", "share", "streams", "transaction")),
    "eligible.leader.replicas.version=1", "transaction.version=2", "share.version=1", "streams.version=1",
)  # fmt: skip
RESTARTED = {"metadata.version=26", "metadata.version=30", "transaction.version=0", "streams.version=1"}
"""Levels at which brokers are started again."""
ends = pytest.mark.parametrize("end", [FaultyCluster.stop, FaultyCluster.kill], ids=["stopped", "killed"])
mixes = pytest.mark.parametrize("mix", MIXES)
End = Callable[[FaultyCluster, int], None]


def tool(name: str, *words: str) -> str:
    """Run one of Kafka's tools; what it prints. Fails where the tool does."""
    done = run_tool(name, list(words))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fill(bootstrap: str, topic: str, count: int, size: int = 100) -> None:
    """Produce numbered values with acks=all."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    errors: list[object] = []
    for number in range(count):
        value = f"{number}".ljust(size).encode()
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: errors.append(error))
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert errors == [None] * count


@contextmanager
def judged(cluster: FaultyCluster, name: str) -> Iterator[tuple[Writer, Pairs]]:
    """Have an idempotent and a transactional producer work meanwhile; nothing is lost or doubled, files are equal."""
    history = History()
    for topic, partitions in TOPICS.items():
        cluster.create(topic, partitions=partitions)
    with Writer(cluster.bootstrap, "kept", history) as writer, Pairs(cluster.bootstrap, "pairs", history) as pairs:
        yield writer, pairs
        writer.wait_for(50)
    assert writer.errors == []
    cluster.wait_equal_files(*TOPICS)
    findings = history.findings(read_all(cluster.bootstrap, TOPICS))
    conclude(name, cluster.mix, history, findings, [], transactions=pairs.committed)


def wait_for_progress(cluster: FaultyCluster, writer: Writer, pairs: Pairs) -> None:
    """Wait until all replicas are in sync, and both producers have written more."""
    for topic in TOPICS:
        cluster.wait_isr(topic)
    writer.wait_for(50)
    pairs.wait_for(2)


@ends
@mixes
def test_a_broker_returns_with_an_empty_disk(mix: str, end: End, tmp_path: Path) -> None:
    """Each in turn: at the last one the two others lead by what they have copied onto their new disks."""
    with FaultyCluster(tmp_path, mix) as cluster, judged(cluster, "empty-disk") as (writer, pairs):
        for node_id in IDS:
            writer.wait_for(50)
            end(cluster, node_id)
            shutil.rmtree(cluster.brokers[node_id].data_directory)
            cluster.start(node_id)
            wait_for_progress(cluster, writer, pairs)


@mixes
def test_the_last_broker_to_stop_returns_with_an_empty_disk(mix: str, tmp_path: Path) -> None:
    """The metadata count on it alone: it is not elected over the others' copies, until one of these is."""
    with FaultyCluster(tmp_path, mix) as cluster:
        cluster.create("kept", min_insync_replicas="1")
        fill(cluster.bootstrap, "kept", 300)
        cluster.stop(2, 3, 1)
        shutil.rmtree(cluster.brokers[1].data_directory)
        cluster.start(*IDS)
        wait_until(lambda: "logs are empty" in cluster.brokers[1].output(), "a warning", WAIT_S)
        cluster.stop(2)
        cluster.start(2)  # each start that ends has the controller look for leaders
        assert cluster.leader("kept") == -1
        words = ["--bootstrap-server", cluster.bootstrap, "--election-type", "unclean", "--topic", "kept"]
        tool(ELECTION_COMMAND, *words, "--partition", "0")
        cluster.wait_isr("kept")
        cluster.wait_equal_files("kept")
        assert len(read_all(cluster.bootstrap, {"kept": 1})) == 300


class InTwoDirectories(MemberNode):
    """A member with two log directories."""

    def properties(self) -> dict[str, str]:
        return {**super().properties(), "log.dirs": f"{self.data_directory},{self.directory / 'second'}"}


def segments(cluster: FaultyCluster, topic: str) -> list[list[bytes]]:
    """Return the segments of partition 0 at each broker, whichever directory they are in."""
    return [
        [path.read_bytes() for path in sorted(node.directory.glob(f"*/{topic}-0/*.log"))]
        for node in cluster.brokers.values()
    ]


@ends
@mixes
def test_one_of_two_disks_is_replaced(mix: str, end: End, tmp_path: Path) -> None:
    history, topics = History(), {"one": 1, "two": 1, "three": 1, "four": 1}
    with FaultyCluster(tmp_path, mix, make_member=InTwoDirectories) as cluster:
        for topic in topics:
            cluster.create(topic)
        for node_id, place in ((1, "second"), (2, "data"), (1, "data"), (3, "data")):
            for topic in topics:
                with Writer(cluster.bootstrap, topic, history, f"{topic}-{node_id}-{place}") as writer:
                    writer.wait_for(50)
            end(cluster, node_id)
            shutil.rmtree(cluster.brokers[node_id].directory / place)
            cluster.start(node_id)
            for topic in topics:
                cluster.wait_isr(topic)
        for topic in topics:
            first, second, third = segments(cluster, topic)
            assert first == second == third
        findings = history.findings(read_all(cluster.bootstrap, topics))
    conclude("replaced-disk", mix, history, findings, [])


def make_again(cluster: FaultyCluster, away: int) -> None:
    """Delete the topics while a broker is away, and make topics of their names on the others, or on all."""
    others = [node_id for node_id in IDS if node_id != away]
    admin = AdminClient({"bootstrap.servers": cluster.others(away)})
    wait_until(lambda: away not in admin.list_topics(timeout=WAIT_S).brokers, "a controller that is there", WAIT_S)
    for deleted in admin.delete_topics(list(LENGTHS)).values():
        deleted.result()
    wait_until(lambda: not LENGTHS.keys() & admin.list_topics(timeout=WAIT_S).topics.keys(), "deleted", WAIT_S)
    for topic, (_, after) in LENGTHS.items():
        if topic != "gone":
            replicas = others if topic == "elsewhere" else [*others, away]
            (made,) = admin.create_topics([NewTopic(topic, 1, replica_assignment=[replicas])]).values()
            made.result()
            cluster.wait_leader(topic, away)
            fill(cluster.others(away), topic, after)


@ends
@pytest.mark.parametrize("away", IDS)
@mixes
def test_a_topic_is_made_again_while_a_broker_is_away(mix: str, away: int, end: End, tmp_path: Path) -> None:
    """A broker's log of the topic before is no part of the one after, whatever has become of its replicas."""
    with FaultyCluster(tmp_path, mix) as cluster:
        for topic, (before, _) in LENGTHS.items():
            cluster.create(topic)
            fill(cluster.bootstrap, topic, before)
        end(cluster, away)
        for topic in LENGTHS:
            cluster.wait_leader(topic, away)
        make_again(cluster, away)
        cluster.start(away)
        for topic in ("longer", "shorter", "empty"):
            cluster.wait_isr(topic)
            cluster.wait_equal_files(topic)
            assert len(read_all(cluster.bootstrap, {topic: 1})) == LENGTHS[topic][1]
        data = Path(cluster.brokers[away].data_directory)
        wait_until(lambda: not any((data / f"{one}-0").exists() for one in ("elsewhere", "gone")), "no logs", WAIT_S)
        cluster.create("gone")
        fill(cluster.bootstrap, "gone", 10)
        cluster.wait_equal_files("gone")


@mixes
def test_a_reassignment_is_given_up(mix: str, tmp_path: Path) -> None:
    """Broker 1 has copied a part when its place is taken back: its log goes, and producers notice nothing."""
    history, plan = History(), tmp_path / "plan.json"
    with FaultyCluster(tmp_path, mix) as cluster:
        log = Path(cluster.brokers[1].data_directory) / "moved-0"
        cluster.create("moved", [2, 3])
        fill(cluster.bootstrap, "moved", 20_000, 1000)
        with Writer(cluster.bootstrap, "moved", history) as writer:
            for stays in (2, 3, 2):
                plan.write_text(
                    json.dumps(
                        {"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [1, stays]}]}
                    )
                )
                words = ["--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan)]
                tool(REASSIGN_COMMAND, *words, "--execute", "--throttle", "1000000")
                wait_until(lambda: sum(one.stat().st_size for one in log.glob("*.log")) > 500_000, "a part", WAIT_S)
                writer.wait_for(50)
                tool(REASSIGN_COMMAND, *words, "--cancel")
                wait_until(lambda: isr(cluster.brokers[2], "moved") == [2, 3], "as before", WAIT_S)
                wait_until(lambda: not log.exists(), "the copy is gone", WAIT_S)
                writer.wait_for(50)
        assert writer.errors == []
        wait_until(lambda: cluster.files("moved")[1] == cluster.files("moved")[2], "equal files", WAIT_S)
        found = [one for one in read_all(cluster.bootstrap, {"moved": 1}) if one.value.startswith(b"w-")]
    conclude("given-up", mix, history, history.findings(found), [])


class HourOff(MemberNode):
    """A member whose clock is wrong by an hour: broker 1's is late, broker 2's early."""

    def environment(self) -> dict[str, str]:
        library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
        if library is None:
            missing("libfaketime", install="apt-get install faketime")
        hours = {1: "-1h", 2: "+1h"}.get(self.node_id, "+0")
        return {
            **super().environment(), "LD_PRELOAD": str(library), "FAKETIME": hours,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }  # fmt: skip


@mixes
def test_clocks_are_wrong_by_an_hour(mix: str, tmp_path: Path) -> None:
    with FaultyCluster(tmp_path, mix, make_member=HourOff) as cluster, judged(cluster, "clocks") as (writer, pairs):
        for node_id in (*IDS, *IDS):
            cluster.kill(node_id)
            writer.wait_for(50)
            cluster.start(node_id)
            wait_for_progress(cluster, writer, pairs)


def format_controller(directory: Path, release: str) -> None:
    """Format the controller's directory for an older release of Kafka."""
    node = directory / f"node-{CONTROLLER}"
    node.mkdir()
    file = node / "format.properties"
    lines = {
        "process.roles": "controller", "node.id": CONTROLLER, "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:1",
        "controller.listener.names": "CONTROLLER", "listeners": "CONTROLLER://127.0.0.1:1", "log.dirs": node / "data",
    }  # fmt: skip
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    tool(STORAGE_TOOL, "format", "-t", CLUSTER_ID, "-c", str(file), "--release-version", release)


@mixes
def test_features_change_while_brokers_run(mix: str, tmp_path: Path) -> None:
    """From the metadata of 4.0 up level by level, other features off and on; brokers start again at some levels."""
    format_controller(tmp_path, "4.0")
    with FaultyCluster(tmp_path, mix) as cluster, judged(cluster, "features") as (writer, pairs):
        words = ["--bootstrap-server", cluster.bootstrap]
        for level in LEVELS:
            tool(FEATURE_COMMAND, *words, "downgrade" if level.endswith("=0") else "upgrade", "--feature", level)
            for node_id in IDS if level in RESTARTED else ():
                cluster.stop(node_id)
                cluster.start(node_id)
                wait_for_progress(cluster, writer, pairs)
            wait_for_progress(cluster, writer, pairs)
        shown = tool(FEATURE_COMMAND, *words, "describe").splitlines()
        assert any("metadata.version" in line and "FinalizedVersionLevel: 4.3" in line for line in shown), shown


@mixes
def test_a_running_broker_is_unregistered(mix: str, tmp_path: Path) -> None:
    """A member ends, with a line that says why, and comes back by a start; Apache Kafka's has to be stopped for it."""
    with FaultyCluster(tmp_path, mix) as cluster, judged(cluster, "unregistered") as (writer, pairs):
        for node_id in IDS:
            writer.wait_for(50)
            tool(CLUSTER_COMMAND, "unregister", "--bootstrap-server", cluster.others(node_id), "--id", str(node_id))
            node = cluster.brokers[node_id]
            if isinstance(node, MemberNode):
                wait_until(lambda node=node: node.process.poll() is not None, "the end of the member", WAIT_S)  # type: ignore[misc]
                assert "or the broker was unregistered" in node.output()
            cluster.kill(node_id)
            writer.wait_for(50)
            cluster.start(node_id)
            wait_for_progress(cluster, writer, pairs)
