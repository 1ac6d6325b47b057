"""The observer with real Apache Kafka controllers: its image agrees with Kafka's own tools.

Another version of Kafka 4: ``make kafka-versions``, or ``TIDELOG_OBSERVER_VERSION=4.0.0``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.apache_kafka import TOPIC_COMMAND, run_tool
from tests.support.kafka_jars import KAFKA_4
from tests.support.kraft_node import KraftNode, addresses, ports_of_controllers, wait_until
from tests.support.registered_broker import BROKER_ID, LONG_SESSIONS, RegisteredBroker
from tidelog.broker.cluster.observing.observer import ObserverConfig
from tidelog.broker.metadata.image_description import uuid_text
from tidelog.broker.metadata.log_reader import read_metadata_image
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.client import Client
from tidelog.log.system.file_system import OsFileSystem
from tidelog.metadata_follower import MetadataFollower
from tidelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)

pytestmark = [pytest.mark.java, pytest.mark.slow]
PARTITIONS = 10_000
VERSION = os.environ.get("TIDELOG_OBSERVER_VERSION", KAFKA_4)
QUORUM_COMMAND = "org.apache.kafka.tools.MetadataQuorumCommand"
SMALL_SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": "20000"}
"""Kafka takes one after each topic of a thousand partitions."""
KILLED = 1
"""Id of the controller that is killed."""
LATE_VOTES = {"controller.quorum.election.timeout.ms": "5000"}
"""Setting of the other controllers, which wait this long at their start before they ask for votes."""
CATCH_UP_S = 120


def admin(node: KraftNode) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.bootstrap})


def create(node: KraftNode, topic: str, partitions: int = 1, **options: Any) -> None:
    """Create a topic, once the broker can make it."""
    client = admin(node)  # a future is of a client that lives
    for future in client.create_topics([NewTopic(topic, partitions, 1, **options)], request_timeout=120).values():
        future.result()


def follow_until(follower: MetadataFollower, condition: Callable[[MetadataImage], bool], what: str) -> MetadataImage:
    """Follow until the image is such."""

    def is_so() -> bool:
        follower.step()
        return condition(follower.observer.image)

    wait_until(is_so, f"{what}; {follower.observer.last_failure}")
    return follower.observer.image


def has_topic(name: str, image: MetadataImage) -> bool:
    """Return whether an image has this topic."""
    return image.topic_by_name(name) is not None


@pytest.fixture(scope="module")
def combined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftNode]:
    """One node in both roles, for all tests that do not stop it."""
    directory = tmp_path_factory.mktemp("combined")
    with KraftNode(directory, 1, ports_of_controllers(1), is_broker=True, version=VERSION, in_shared_jvm=True) as node:
        yield node


def set_quota(node: KraftNode, user: str, rate: float) -> None:
    op = OpData(key="producer_byte_rate", value=rate, remove=False)
    entry = EntryData(entity=[EntityData(entity_type="user", entity_name=user)], ops=[op])
    with Client(node.bootstrap) as client:
        answer = client.call(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse)
    assert [one.error_code for one in answer.entries] == [0]


def quorum_status(node: KraftNode) -> dict[str, str]:
    """Return the lines of ``kafka-metadata-quorum describe --status``."""
    done = run_tool(QUORUM_COMMAND, ["--bootstrap-server", node.bootstrap, "describe", "--status"])
    assert done.returncode == 0, done.stderr
    return {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in done.stdout.splitlines())
    }


def described_topics(node: KraftNode) -> dict[tuple[str, int], dict[str, str]]:
    """Return the partitions that ``kafka-topics --describe`` prints: name and number -> columns."""
    done = run_tool(TOPIC_COMMAND, ["--bootstrap-server", node.bootstrap, "--describe"])
    assert done.returncode == 0, done.stderr
    found: dict[tuple[str, int], dict[str, str]] = {}
    ids: dict[str, str] = {}
    for line in done.stdout.splitlines():
        columns = {
            name: value.strip() for name, _, value in (part.partition(": ") for part in line.strip().split("\t"))
        }
        if "TopicId" in columns:
            ids[columns["Topic"]] = columns["TopicId"]
        elif "Partition" in columns:
            found[columns["Topic"], int(columns["Partition"])] = {**columns, "TopicId": ids[columns["Topic"]]}
    return found


def topics_of(image: MetadataImage) -> dict[tuple[str, int], dict[str, str]]:
    """Return the image's partitions in the columns of Kafka's tool."""
    return {
        (topic.name, number): {
            "Leader": str(one.leader),
            "Replicas": ",".join(map(str, one.replicas)),
            "Isr": ",".join(map(str, one.isr)),
            "TopicId": uuid_text(topic.topic_id),
        }
        for topic in image.topics.values()
        for number, one in enumerate(topic.partitions)
    }


def test_the_image_agrees_with_kafkas_tools(combined: KraftNode) -> None:
    create(combined, "orders", 3, config={"retention.ms": "86400000"})
    create(combined, "gone")
    client = admin(combined)
    for future in client.delete_topics(["gone"]).values():
        future.result()
    set_quota(combined, "alice", 1000.0)
    with MetadataFollower(ObserverConfig(addresses(combined.controllers), replica_id=99)) as follower:
        image = follower.catch_up(CATCH_UP_S)
        said = described_topics(combined)
        shown = topics_of(image)
        assert shown.keys() == said.keys()
        for place, columns in shown.items():
            assert said[place].items() >= columns.items()
        assert image.configs[2, "orders"] == {"retention.ms": "86400000"}
        assert image.quotas == {(("user", "alice"),): {"producer_byte_rate": 1000.0}}
        status = quorum_status(combined)
        assert (status["LeaderId"], status["LeaderEpoch"]) == ("1", str(image.epoch))
        (broker,) = image.brokers.values()
        assert (broker.is_fenced, broker.endpoints[0].port) == (False, combined.port)
        follow_until(follower, lambda found: found.offset >= int(status["HighWatermark"]) - 1, "the high watermark")
    on_disk = read_metadata_image(OsFileSystem(), str(combined.metadata_directory))
    assert on_disk.topics == image.topics
    assert on_disk.configs == image.configs


def test_the_command_prints_a_cluster(combined: KraftNode) -> None:
    create(combined, "described", 2)
    controller = str(addresses(combined.controllers)[0])
    command = [sys.executable, "-I", "-m", "tidelog.cli", "metadata", "describe", "--bootstrap-controller"]
    done = subprocess.run([*command, controller, "--json"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert ("described", 2) in [(topic["name"], len(topic["partitions"])) for topic in found["topics"]]
    assert [broker["id"] for broker in found["brokers"]] == [1]
    refused = subprocess.run([*command, combined.bootstrap], capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "is not a controller" in refused.stderr


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, KraftNode]]:
    """Three controllers, two of which run at least, and a broker that is registered at them and is no process.

    KILLED has a JVM of its own, and is the first to ask for votes.
    """
    directory, ports = tmp_path_factory.mktemp("quorum"), ports_of_controllers(3)
    settings = {**SMALL_SNAPSHOTS, **LONG_SESSIONS, "controller.quorum.fetch.timeout.ms": "20000"}
    nodes = {}
    for node_id in ports:
        overrides = settings if node_id == KILLED else {**settings, **LATE_VOTES}
        shared = node_id != KILLED
        nodes[node_id] = KraftNode(
            directory, node_id, ports, overrides=overrides, version=VERSION, in_shared_jvm=shared
        )
    with ExitStack() as stack:
        for node in nodes.values():
            node.format()
        for node in nodes.values():
            stack.enter_context(node)
        RegisteredBroker(ports).register()
        yield nodes


def ports_of(quorum: dict[int, KraftNode]) -> dict[int, int]:
    return {node_id: node.port for node_id, node in quorum.items()}


def test_a_snapshot_of_10_000_partitions(
    quorum: dict[int, KraftNode], record_property: Callable[[str, object], None]
) -> None:
    """The log begins with a snapshot of Kafka's own; pieces of 100,000 bytes."""
    ports = ports_of(quorum)
    broker = RegisteredBroker(ports)
    with MetadataFollower(ObserverConfig(addresses(ports))) as early:
        early.catch_up(CATCH_UP_S)
        for number in range(PARTITIONS // 1000):
            broker.create({f"wide-{number}": 1000})
        image = follow_until(early, partial(has_topic, f"wide-{PARTITIONS // 1000 - 1}"), "the last topic")
        snapshot = wait_for_snapshot(active_of(quorum, early))
        begin = time.perf_counter()
        with MetadataFollower(ObserverConfig(addresses(ports), max_bytes=100_000)) as late:
            found = late.catch_up(CATCH_UP_S)
        seconds = time.perf_counter() - begin
    wide = [topic for topic in found.topics.values() if topic.name.startswith("wide-")]
    assert sum(len(topic.partitions) for topic in wide) == PARTITIONS
    assert {one.leader for topic in wide for one in topic.partitions} == {BROKER_ID}
    assert found.offset + 1 >= snapshot, "a snapshot is named by the first offset that it lacks"
    assert {topic_id: found.topics[topic_id] for topic_id in image.topics} == image.topics
    record_property("seconds", seconds)
    print(f"{PARTITIONS} partitions by a snapshot in {seconds:.3f} s")


def active_of(quorum: dict[int, KraftNode], follower: MetadataFollower) -> KraftNode:
    """Return the controller that the follower knows as the active one."""
    port = follower.observer.quorum.address.port
    return next(node for node in quorum.values() if node.port == port)


def make_active(quorum: dict[int, KraftNode], follower: MetadataFollower, node_id: int) -> None:
    """Stop and start each other controller that is active, until this one is."""
    follower.catch_up(CATCH_UP_S)
    while (active := active_of(quorum, follower)) is not quorum[node_id]:
        epoch = follower.observer.image.epoch
        active.terminate()
        active.start()
        follow_until(follower, lambda image: image.epoch > epoch, "the next active controller")  # noqa: B023


def wait_for_snapshot(node: KraftNode) -> int:
    """Wait until a controller's snapshot holds nearly all partitions, of 100 bytes each; return its end offset."""

    def newest() -> Path | None:
        found = sorted(node.metadata_directory.glob("*.checkpoint"))
        return found[-1] if found and found[-1].stat().st_size > 60 * PARTITIONS else None

    wait_until(lambda: newest() is not None, "a snapshot of the topics")
    name = newest()
    assert name is not None
    return int(name.name.partition("-")[0])


def test_the_active_controller_is_killed_and_the_next_one_stopped(quorum: dict[int, KraftNode]) -> None:
    """Two of three go on each time: the observer finds the new leader and loses nothing."""
    ports = ports_of(quorum)
    broker = RegisteredBroker(ports)
    with MetadataFollower(ObserverConfig(addresses(ports))) as follower:
        make_active(quorum, follower, KILLED)
        image = follower.catch_up(CATCH_UP_S)
        former: KraftNode | None = None
        for stop, name in ((KraftNode.kill, "after-kill"), (KraftNode.terminate, "after-stop")):
            if former is not None:
                former.choose_jvm(shared=True)
                former.start()
            former = active_of(quorum, follower)
            stop(former)
            broker.create({name: 3})
            found = follow_until(follower, partial(has_topic, name), f"the topic made {name}")
            assert active_of(quorum, follower) is not former
            assert found.epoch > image.epoch
            assert found.topics.keys() > image.topics.keys()
            image = found


def test_the_only_controller_stops_and_is_killed(tmp_path: Path) -> None:
    """The observer waits, and goes on where it was."""
    ports = ports_of_controllers(1)
    controller, broker = (
        KraftNode(tmp_path, 1, ports, overrides=LONG_SESSIONS, version=VERSION, in_shared_jvm=True),
        RegisteredBroker(ports),
    )
    with controller, MetadataFollower(ObserverConfig(addresses(ports))) as follower:
        broker.register()
        broker.create({"before": 1})
        image = follower.catch_up(CATCH_UP_S)
        for stop, name in ((controller.terminate, "stopped"), (controller.kill, "killed")):
            stop()
            while not follower.observer.last_failure:
                assert follower.step() is None
            assert not follower.observer.is_caught_up
            controller.choose_jvm(shared=name == "killed")  # the second of three lives is killed
            controller.start()
            broker.create({name: 1})
            found = follow_until(follower, partial(has_topic, name), f"the topic made after the controller {name}")
            assert found.epoch > image.epoch, "a start of a controller is an election"
            image = found
        assert {topic.name for topic in image.topics.values()} == {"before", "stopped", "killed"}
