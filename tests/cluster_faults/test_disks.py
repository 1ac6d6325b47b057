"""A follower with a slow disk, closed segments that are damaged, and a log directory that fails, KIP-858 (R7 of
docs/internals/faults.md)."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.support.cluster_clients import WAIT_S, isr
from tests.support.failing_disk import FailingDisk
from tests.support.faulty_cluster.amount import at_length
from tests.support.faulty_cluster.clients import Writer, consumer_of, position_of, read_all
from tests.support.faulty_cluster.cluster import IDS, LAG_S, FaultyCluster
from tests.support.faulty_cluster.history import History, Position
from tests.support.faulty_cluster.report import conclude
from tests.support.kraft_node import wait_until
from tests.support.member import MemberNode

pytestmark = [pytest.mark.java, pytest.mark.slow, at_length]
SLOW_MS = 4000
BESIDE_S = 6.0
RECORDS, SIZE = 3000, 1000
LEADER, FOLLOWER = 3, 1
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
NEAR = "near"
"""The rack of the follower that is damaged, and of its readers."""
ASSIGNED_S = 5.0
"""Directories of new replicas are in the metadata well before: a broker tells them twice a second."""


class OnSlowDisk(MemberNode):
    """A member whose writes a test makes slow."""

    disk: FailingDisk

    def environment(self) -> dict[str, str]:
        preload = {"LD_PRELOAD": str(self.disk.library), "FAILING_DISK": str(self.disk.switches)}
        return {**super().environment(), **preload}


def p99_ms(writer: Writer, since: float, until: float) -> float:
    """Return the 99th percentile of the times to acknowledge what was sent in between."""
    times = [1000 * (done - sent) for sent, done in writer.times if since <= sent < until]
    return statistics.quantiles(times, n=100)[98]


@pytest.mark.parametrize("mix", ["TTT", "TTJ", "JTJ"])
def test_a_follower_with_a_slow_disk_leaves(mix: str, tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path / "disk")
    history, beside = History(), History()

    def make(directory: Path, node_id: int, controllers: Mapping[int, int], settings: Mapping[str, str]) -> MemberNode:
        node = OnSlowDisk(directory, node_id, controllers, settings)
        node.disk = disk
        return node

    with FaultyCluster(tmp_path, mix, make_member=make) as cluster:
        cluster.create("r7", [1, 2, 3])
        cluster.create("beside", [3, 1])
        slow = cluster.brokers[2]
        with Writer(cluster.bootstrap, "r7", history) as writer, Writer(cluster.bootstrap, "beside", beside) as other:
            writer.wait_for(50)
            start = time.monotonic()
            other.wait_for(300)
            since = time.monotonic()
            disk.delay(Path(slow.data_directory) / "r7", SLOW_MS, "slow")
            wait_until(lambda: isr(cluster.brokers[1], "r7") == [1, 3], "the slow one left", WAIT_S)
            left = time.monotonic() - since
            time.sleep(BESIDE_S)
            until = time.monotonic()
            disk.heal()
            cluster.wait_isr("r7")
            writer.wait_for(50)
        assert writer.errors == other.errors == []
        before, during = p99_ms(other, start, since), p99_ms(other, since, until)
        findings = history.findings(read_all(cluster.bootstrap, {"r7": 1}))
    figures = {"left_after_s": round(left, 2), "p99_before_ms": round(before, 1), "p99_beside_ms": round(during, 1)}
    conclude("R7-slow", mix, history, findings, [left], lag_s=LAG_S, **figures)


def fill(cluster: FaultyCluster, topic: str, history: History) -> None:
    """Write several segments."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    errors: list[object] = []

    def note(error: KafkaError | None, message: Message) -> None:
        if error is None:
            history.acknowledge(position_of(message))
        else:
            errors.append(error)

    for number in range(RECORDS):
        value = b"x" * SIZE + b"-%d" % number
        producer.produce(topic, value, on_delivery=note)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert errors == []


def damage(directory: Path) -> None:
    """Flip a bit in the middle of the first segment, which is closed."""
    path = min(directory.glob("*.log"))
    middle = path.stat().st_size // 2
    with path.open("r+b") as file:
        file.seek(middle)
        (byte,) = file.read(1)
        file.seek(middle)
        file.write(bytes([byte ^ 1]))


def test_damage_of_a_leader_is_not_copied(tmp_path: Path) -> None:
    """A follower that starts from nothing stays at the damage; with a whole leader it gets on."""
    history = History()
    with FaultyCluster(tmp_path, "TTT") as cluster:
        cluster.create("r7", segment_bytes="1048576")
        fill(cluster, "r7", history)
        cluster.wait_equal_files("r7")
        whole = cluster.files("r7")[0]
        bad = cluster.leader("r7")
        empty, good = (node_id for node_id in IDS if node_id != bad)
        damage(Path(cluster.brokers[bad].data_directory) / "r7-0")
        cluster.stop(empty)
        shutil.rmtree(Path(cluster.brokers[empty].data_directory) / "r7-0")
        cluster.start(empty)
        wait_until(lambda: "is fetched again later" in cluster.brokers[empty].output(), "the damage is met", WAIT_S)
        assert empty not in isr(cluster.brokers[good], "r7")
        since = time.monotonic()
        cluster.kill(bad)
        assert cluster.wait_leader("r7", bad) == good
        cluster.wait_isr("r7", [empty, good], asked=[good])
        shutil.rmtree(Path(cluster.brokers[bad].data_directory) / "r7-0")
        cluster.start(bad)
        cluster.wait_isr("r7")
        again = time.monotonic() - since
        cluster.wait_equal_files("r7")
        assert {name: digest for name, digest in cluster.files("r7")[0].items() if name in whole} == whole
        findings = history.findings(read_all(cluster.bootstrap, {"r7": 1}))
    conclude("R7-damage", "TTT", history, findings, [again])


class InRack(MemberNode):
    """A member; the first is in a rack of its own."""

    def properties(self) -> dict[str, str]:
        return {**super().properties(), "broker.rack": NEAR if self.node_id == FOLLOWER else "far"}


def read_near(cluster: FaultyCluster) -> tuple[list[Position], int]:
    """Read to the end, or to an error, as a client in the follower's rack that checks sums; return how it ended, too.

    A client that finds a wrong sum asks for the same batch again and again.
    """
    consumer = consumer_of(cluster.bootstrap, {"r7": 1}, **{"client.rack": NEAR, "check.crcs": True})
    found: list[Position] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is not None:
                    return found, error.code()
                found.append(position_of(message))
    finally:
        consumer.close()
    raise AssertionError(f"no end after {len(found)} records")


@pytest.mark.parametrize("mix", ["TTT", "TTJ", "TJJ"])
def test_damage_of_a_follower_goes_nowhere(mix: str, tmp_path: Path) -> None:
    """Its readers are told, and given nothing wrong; acks=all goes on, over a stop and a kill; a copy heals it."""
    history = History()
    near_by = {"replica.selector.class": RACK_AWARE}
    with FaultyCluster(tmp_path, mix, broker=near_by, make_member=InRack) as cluster:
        cluster.create("r7", [LEADER, 2, FOLLOWER], segment_bytes="1048576")
        fill(cluster, "r7", history)
        cluster.wait_equal_files("r7")
        assert read_near(cluster)[1] == KafkaError._PARTITION_EOF
        whole = cluster.files("r7")[0]
        del whole[max(whole)]  # it grows
        told: list[Position] = []
        directory = Path(cluster.brokers[FOLLOWER].data_directory) / "r7-0"
        damage(directory)
        with Writer(cluster.bootstrap, "r7", history) as writer:
            for ending in (cluster.stop, cluster.kill):
                found, code = read_near(cluster)
                assert code == KafkaError._BAD_MSG
                told += found
                ending(FOLLOWER)
                cluster.start(FOLLOWER)
                cluster.wait_isr("r7")
                writer.wait_for(50)
            cluster.stop(FOLLOWER)
            shutil.rmtree(directory)
            since = time.monotonic()
            cluster.start(FOLLOWER)
            cluster.wait_isr("r7")
            again = time.monotonic() - since
            writer.wait_for(50)
        cluster.wait_equal_files("r7")
        assert {name: digest for name, digest in cluster.files("r7")[0].items() if name in whole} == whole
        found, code = read_near(cluster)
        assert code == KafkaError._PARTITION_EOF
        assert set(told) < set(found) == set(history.acknowledged)
        findings = history.findings(read_all(cluster.bootstrap, {"r7": 1}))
    conclude("R7-damaged-follower", mix, history, findings, [again])


class InTwoDirectories(OnSlowDisk):
    """A member with two log directories, one of which a test takes away."""

    def properties(self) -> dict[str, str]:
        return {**super().properties(), "log.dirs": f"{self.data_directory},{self.directory / 'second'}"}


def directory_of(cluster: FaultyCluster, topic: str) -> Path:
    """Return the log directory of broker 1 in which partition 0 lies."""
    (found,) = Path(cluster.brokers[1].directory).glob(f"*/{topic}-0")
    return found.parent


def test_leaders_in_a_directory_that_fails_are_others(tmp_path: Path) -> None:
    """The broker goes on with the partitions of its other directory: as their leader, and by heartbeats."""
    disk, histories = FailingDisk(tmp_path / "disk"), {"one": History(), "two": History()}

    def make(directory: Path, node_id: int, controllers: Mapping[int, int], settings: Mapping[str, str]) -> MemberNode:
        node = (InTwoDirectories if node_id == 1 else OnSlowDisk)(directory, node_id, controllers, settings)
        node.disk = disk
        return node

    with FaultyCluster(tmp_path, "TTJ", make_member=make) as cluster:
        for topic in histories:
            cluster.create(topic, [1, 2, 3])
        places = {directory_of(cluster, topic): topic for topic in histories}
        assert len(places) == 2
        failing, bad = next((place, topic) for place, topic in places.items() if place.name == "second")
        (good,) = histories.keys() - {bad}
        one, two = (Writer(cluster.bootstrap, topic, histories[topic]) for topic in (bad, good))
        with one as writer, two as beside:
            writer.wait_for(50)
            beside.wait_for(50)
            time.sleep(ASSIGNED_S)
            since = time.monotonic()
            disk.fail(failing)
            assert cluster.wait_leader(bad, 1) in (2, 3)
            writer.wait_for(50)
            again = time.monotonic() - since
            beside.wait_for(50)
            assert cluster.leader(good) == 1
            wait_until(lambda: isr(cluster.brokers[2], bad) == [2, 3], "the failed one left", WAIT_S)
        disk.heal()
        assert writer.errors == beside.errors == []
        findings = histories[bad].findings(read_all(cluster.others(1), {bad: 1}))
        assert len(read_all(cluster.bootstrap, {good: 1})) >= 100
    conclude("R7-directory", "TTJ", histories[bad], findings, [again])
