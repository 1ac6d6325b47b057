"""A broker that starts while one of its two log directories cannot be used: a member, and Apache Kafka's as the oracle.

The other broker of the cluster is of the other kind. What each asserts is the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.rivals.process import BrokerError, BrokerProcess
from tests.support.apache_kafka import run_tool
from tests.support.broker import free_port
from tests.support.cluster_clients import WAIT_S
from tests.support.faulty_cluster.amount import at_length
from tests.support.kafka_python import read_to_end
from tests.support.kraft_node import KraftNode, addresses, ports_of_controllers, wait_until
from tests.support.member import MemberNode

pytestmark = [pytest.mark.java, pytest.mark.slow]
LOG_DIRS_COMMAND = "org.apache.kafka.tools.LogDirsCommand"
HURT, OTHER = 101, 102
SHARED, ALONE = "shared", "alone"
PARTITIONS = 4
RECORDS = 25
SESSION = {"broker.session.timeout.ms": "3000"}


class HurtMember(MemberNode):
    """A member with two log directories, the second of which a test takes away."""

    admin_port = 0

    def properties(self) -> dict[str, str]:
        dirs = f"{self.data_directory},{self.directory / 'second'}"
        return {**super().properties(), "log.dirs": dirs, "admin.listener": f"127.0.0.1:{self.admin_port}"}

    def start(self) -> Self:
        """Start; format new directories alone."""
        self.admin_port = self.admin_port or free_port()
        return super().start() if not self.properties_path.exists() else BrokerProcess.start(self)


class HurtKafka(KraftNode):
    """An Apache Kafka broker with two log directories, the second of which a test takes away."""

    def format(self) -> None:
        """Format new directories alone."""
        if not (self.directory / "second").exists():
            super().format()

    def properties(self) -> dict[str, str]:
        return {**super().properties(), "log.dirs": f"{self.data_directory},{self.directory / 'second'}"}


class Scene:
    """A controller, the broker that is hurt, and another one."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.ports = ports_of_controllers(1)
        self.controller = KraftNode(directory, 1, self.ports, overrides=SESSION, in_shared_jvm=True)
        self.hurt: MemberNode | KraftNode
        self.other: MemberNode | KraftNode
        if kind == "tidelog":
            self.hurt = HurtMember(directory, HURT, self.ports)
            self.other = KraftNode(directory, OTHER, self.ports, is_broker=True, in_shared_jvm=True)
        else:
            self.hurt = HurtKafka(directory, HURT, self.ports, is_broker=True)
            self.other = MemberNode(directory, OTHER, self.ports)
        self.nodes = (self.controller, self.other, self.hurt)

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in reversed(self.nodes):  # a broker's stop needs its controller
            node.discard()

    # ---- questions

    def leaders(self, topic: str) -> dict[int, int]:
        """Map partitions to leaders, -1 for none, as the other broker tells it."""
        admin = AdminClient({"bootstrap.servers": self.other.bootstrap})
        found = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        return {number: one.leader for number, one in found.items()}

    def in_sync(self) -> bool:
        """Return whether all replicas of the shared topic are in sync."""
        admin = AdminClient({"bootstrap.servers": self.other.bootstrap})
        found = admin.list_topics(SHARED, timeout=WAIT_S).topics[SHARED].partitions.values()
        return len(found) == PARTITIONS and all(sorted(one.isrs) == [HURT, OTHER] for one in found)

    def metadata(self) -> dict[str, Any]:
        """Return the metadata as the controller has them."""
        where = str(addresses(self.ports)[0])
        words = ["metadata", "describe", "--bootstrap-controller", where, "--json"]
        command = [sys.executable, "-I", "-m", "tidelog.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def registered(self) -> list[str]:
        """Return the ids of the directories that the hurt broker registered."""
        (found,) = (one["directories"] for one in self.metadata()["brokers"] if one["id"] == HURT)
        return sorted(found)

    def second(self, topic: str) -> set[int]:
        """Return the partitions of a topic that lie in the second directory."""
        return {int(path.name.rpartition("-")[2]) for path in (self.hurt.directory / "second").glob(f"{topic}-*")}

    def has_known_directories(self) -> bool:
        """Return whether the metadata have a directory for each replica of the hurt broker."""
        topics = {one["name"]: one for one in self.metadata()["topics"]}
        states = [state for name in (SHARED, ALONE) for state in topics[name]["partitions"]]
        return all(set(self.registered()) & set(state["directories"]) for state in states)

    # ---- changes

    def create(self, topic: str, replicas: list[int]) -> None:
        """Create a topic with these replicas for each partition."""
        admin = AdminClient({"bootstrap.servers": self.other.bootstrap})
        new = NewTopic(topic, PARTITIONS, replica_assignment=[replicas] * PARTITIONS)
        for future in admin.create_topics([new]).values():
            future.result()
        wait_until(lambda: set(self.leaders(topic).values()) == {replicas[0]}, f"{topic} is led", WAIT_S)

    def produce(self, topic: str, partitions: Iterable[int]) -> None:
        """Write to these partitions, acknowledged by all that are in sync."""
        producer = Producer({"bootstrap.servers": self.other.bootstrap, "enable.idempotence": True})
        errors: list[object] = []
        listed = list(partitions)
        for number in listed:
            for record in range(RECORDS):
                producer.produce(
                    topic, b"%d" % record, partition=number, on_delivery=lambda error, _: errors.append(error)
                )
        assert producer.flush(WAIT_S) == 0
        assert len(errors) == RECORDS * len(listed)
        assert set(errors) == {None}

    def take_away(self, name: str) -> None:
        """Put a file in the place of a directory: it cannot be read."""
        path = self.hurt.directory / name
        path.rename(path.with_name(f"{name}.away"))
        path.touch()

    def bring_back(self, name: str) -> None:
        """Put the directory back."""
        path = self.hurt.directory / name
        path.unlink()
        path.with_name(f"{name}.away").rename(path)

    def read(self, topic: str) -> dict[int, int]:
        """Count the records of each partition."""
        return dict(Counter(record.partition for record in read_to_end(self.other.bootstrap, topic)))


def described(scene: Scene) -> dict[str, str | None]:
    """Map the directories that kafka-log-dirs names to their errors."""
    words = ["--bootstrap-server", scene.hurt.bootstrap, "--describe", "--broker-list", str(HURT)]
    done = run_tool(LOG_DIRS_COMMAND, words)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout[done.stdout.index("{") :])
    return {Path(one["logDir"]).name: one["error"] for one in answer["brokers"][0]["logDirs"]}


def get_page(member: HurtMember, path: str) -> tuple[int, str]:
    """Return status and text of a page of the admin listener."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{member.admin_port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("kind", ["tidelog", pytest.param("java", marks=at_length)])
def test_a_broker_starts_without_a_directory_that_fails(kind: str, tmp_path: Path) -> None:
    with Scene(tmp_path, kind) as scene:
        scene.create(SHARED, [HURT, OTHER])
        scene.create(ALONE, [HURT])
        for topic in (SHARED, ALONE):
            scene.produce(topic, scene.leaders(topic))
        wait_until(scene.has_known_directories, "each replica's directory is in the metadata", WAIT_S)
        lost = {topic: scene.second(topic) for topic in (SHARED, ALONE)}
        assert all(0 < len(found) < PARTITIONS for found in lost.values()), lost
        both = scene.registered()
        scene.hurt.terminate()
        scene.take_away("second")
        scene.hurt.start()
        kept = set(range(PARTITIONS)) - lost[ALONE]
        led = {number: -1 if number in lost[ALONE] else HURT for number in range(PARTITIONS)}
        wait_until(lambda: scene.leaders(ALONE) == led, f"{led}", WAIT_S)
        assert len(both) == 2
        assert len(scene.registered()) == 1
        assert set(scene.leaders(SHARED).values()) <= {HURT, OTHER}
        assert {scene.leaders(SHARED)[number] for number in lost[SHARED]} == {OTHER}
        scene.produce(SHARED, scene.leaders(SHARED))
        scene.produce(ALONE, kept)
        assert {path.name for path in scene.hurt.data_directory.glob(f"{ALONE}-?")} == {
            f"{ALONE}-{one}" for one in kept
        }
        scene.create("late", [HURT])
        scene.produce("late", scene.leaders("late"))
        errors = described(scene)
        assert errors["data"] is None
        assert "KafkaStorageException" in str(errors["second"])
        if isinstance(scene.hurt, HurtMember):
            assert "offlinelogdirectorycount 1" in get_page(scene.hurt, "/metrics")[1]
            assert get_page(scene.hurt, "/readyz")[0] == 503
            assert "second goes offline" in scene.hurt.output()
        scene.hurt.terminate()
        scene.bring_back("second")
        scene.hurt.start()
        wait_until(lambda: set(scene.leaders(ALONE).values()) == {HURT}, "all are led again", WAIT_S)
        wait_until(scene.in_sync, "all are in sync", WAIT_S)
        assert scene.registered() == both
        assert scene.read(SHARED) == dict.fromkeys(range(PARTITIONS), 2 * RECORDS)
        assert scene.read(ALONE) == {number: RECORDS * (1 + (number in kept)) for number in range(PARTITIONS)}
        scene.hurt.terminate()
        scene.take_away("data")
        with pytest.raises(BrokerError, match=r"the first log directory, .*/data" if kind == "tidelog" else "ended"):
            scene.hurt.start()
