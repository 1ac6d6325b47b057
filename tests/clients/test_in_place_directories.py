"""Apache Kafka and Tidelog take turns on two log directories, started by the same server.properties.

The metadata log is one whose voter stands in the log (``kafka-storage format --standalone``), or one that begins with
what ``tidelog format`` wrote.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from benchmarks.rivals.apache_kafka import CLUSTER_ID, STORAGE_TOOL
from tests.support.admin import Admin
from tests.support.apache_kafka import ApacheKafka, run_tool
from tests.support.broker import TidelogProcess
from tests.support.metadata_facts import facts
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.controller.embedded import open_controller
from tidelog.broker.metadata.log_reader import read_metadata_log
from tidelog.broker.metadata.metadata_log import MetadataLocation
from tidelog.cli import main
from tidelog.log.directories.names import partition_of_name
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.checkpoints import read_meta_properties
from tidelog.log.files.topic_partition import TopicPartition as Place
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import SystemTime

pytestmark = [pytest.mark.java, pytest.mark.slow]

PARTITIONS = 6
AUTHORIZED = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
LITERAL, ALLOW = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
RIGHT = AclBinding(ResourceType.TOPIC, "theirs", LITERAL, "User:ann", "*", AclOperation.READ, ALLOW)
ANY: Any = None
ANY_RIGHT = AclBindingFilter(
    ResourceType.ANY, ANY, ResourcePatternType.ANY, ANY, ANY, AclOperation.ANY, AclPermissionType.ANY
)
FLUSH_S = 60.0


class Kafka(ApacheKafka):
    """Apache Kafka on the log directories ``a`` and ``b``; a new one is its own voter by its log."""

    def __init__(self, directory: Path, overrides: Mapping[str, str]) -> None:
        super().__init__(directory, overrides, in_shared_jvm=True)
        self.file = directory / "server.properties"
        self.directories = [directory / "a", directory / "b"]

    def properties(self) -> dict[str, str]:
        controllers = f"{self.host}:{self.controller_port}"
        given = super().properties() | {
            "log.dirs": ",".join(map(str, self.directories)), "controller.quorum.bootstrap.servers": controllers,
        }  # fmt: skip
        del given["controller.quorum.voters"]
        return given | self.overrides

    def write_file(self) -> None:
        """Write the server.properties."""
        self.file.write_text("".join(f"{key}={value}\n" for key, value in self.properties().items()))

    def format(self) -> None:
        self.write_file()
        if not (self.directories[0] / "meta.properties").exists():
            done = run_tool(STORAGE_TOOL, ["format", "-t", CLUSTER_ID, "-c", str(self.file), "--standalone"])
            assert done.returncode == 0, done.stderr


class Tidelog(TidelogProcess):
    """A Tidelog broker with the same server.properties."""

    def __init__(self, file: Path) -> None:
        super().__init__(file.parent)
        self.file = file

    def command(self) -> list[str]:
        return [sys.executable, "-I", "-m", "tidelog.cli", "serve", "--config", str(self.file)]


def produce(bootstrap: str, topic: str) -> None:
    """Produce one record to each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for partition in range(PARTITIONS):
        producer.produce(topic, b"%d" % partition, partition=partition)
    assert producer.flush(FLUSH_S) == 0


def add_right(bootstrap: str) -> None:
    client = Admin(bootstrap).client  # a future is of a client that lives
    (added,) = client.create_acls([RIGHT]).values()
    added.result()


def rights(bootstrap: str) -> list[AclBinding]:
    """Return all ACLs."""
    client = Admin(bootstrap).client
    found: list[AclBinding] = client.describe_acls(ANY_RIGHT).result()
    return found


def ends(bootstrap: str, topics: list[str]) -> dict[tuple[str, int], int]:
    """Return the end offset of each partition, once it is led."""
    partitions = [(topic, index) for topic in topics for index in range(PARTITIONS)]
    for topic, index in partitions:
        Admin(bootstrap).until_led(topic, index)
    admin = Admin(bootstrap)
    return {(topic, index): admin.offset(topic, index, "latest") for topic, index in partitions}


def places(directories: list[Path]) -> dict[Place, Path]:
    """Map each partition to the log directory that it lies in."""
    found = [(partition_of_name(path.name), directory) for directory in directories for path in directory.iterdir()]
    return {partition: directory for partition, directory in found if partition is not None}


def assigned(directories: list[Path], topics: list[str]) -> dict[Place, Path]:
    """Map each partition to its log directory as the metadata say it."""
    image = read_metadata_log(OsFileSystem(), str(directories[0] / "__cluster_metadata-0")).image
    properties = {directory: read_meta_properties(OsFileSystem(), str(directory)) for directory in directories}
    ids = {found.directory_id: directory for directory, found in properties.items() if found is not None}
    return {
        Place(topic.name, index): ids[state.directories[0]]
        for topic in image.topics.values()
        for index, state in enumerate(topic.partitions)
        if topic.name in topics
    }


def info(kafka: Kafka) -> str:
    """Run ``kafka-storage info``, which finds no fault with the directories, and return its output."""
    done = run_tool(STORAGE_TOOL, ["info", "-c", str(kafka.file)])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_snapshot(directory: Path) -> None:
    """Have Tidelog's metadata log begin with a snapshot, as after 20 MB of changes."""
    environment = LogEnvironment(OsFileSystem(), SystemTime())
    controller = open_controller(
        MetadataLocation(str(directory), DirectoryState(str(directory)), environment), 1, environment.time
    )
    assert controller.take_snapshot(min_bytes=0)
    controller.close()


@pytest.mark.timeout(300)
def test_a_standalone_kafka_with_acls_and_two_directories(tmp_path: Path) -> None:
    kafka = Kafka(tmp_path, AUTHORIZED)
    tidelog = Tidelog(kafka.file)
    try:
        kafka.start()
        Admin(kafka.bootstrap).create("theirs", PARTITIONS)
        produce(kafka.bootstrap, "theirs")
        add_right(kafka.bootstrap)
        kafka.terminate()
        before = places(kafka.directories)

        without = [*tidelog.command(), "--override", "authorizer.class.name="]
        refused = subprocess.run(without, capture_output=True, text=True, timeout=60, check=False)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "1 ACLs" in refused.stderr
        tidelog.start()
        assert rights(tidelog.bootstrap) == [RIGHT]
        Admin(tidelog.bootstrap).create("ours", PARTITIONS)
        for topic in ("theirs", "ours"):
            produce(tidelog.bootstrap, topic)
        written = ends(tidelog.bootstrap, ["theirs", "ours"])
        assert set(written.values()) == {1, 2}
        assert f"cluster.id={CLUSTER_ID}" in info(kafka)
        tidelog.terminate()
        here = places(kafka.directories)
        assert here.items() >= before.items()
        assert set(here.values()) == set(kafka.directories)
        assert assigned(kafka.directories, ["theirs", "ours"]) == {
            place: directory for place, directory in here.items() if place.topic in ("theirs", "ours")
        }
        write_snapshot(kafka.directories[0])
        assert f"cluster.id={CLUSTER_ID}" in info(kafka)

        kafka.start()
        assert ends(kafka.bootstrap, ["theirs", "ours"]) == written
        assert places(kafka.directories) == here
        assert rights(kafka.bootstrap) == [RIGHT]
        produce(kafka.bootstrap, "ours")
        kafka.terminate()
        assert places(kafka.directories) == here
    finally:
        print(tidelog.output(), kafka.output(), sep="\n")
        tidelog.kill()
        kafka.discard()


@pytest.mark.timeout(200)
def test_kafka_begins_with_what_tidelog_format_wrote(tmp_path: Path) -> None:
    kafka = Kafka(tmp_path, {})
    kafka.overrides["controller.quorum.voters"] = f"1@{kafka.host}:{kafka.controller_port}"
    kafka.write_file()
    user = "SCRAM-SHA-512=[name=ann,password=secret,iterations=8192]"
    assert main(["format", "-t", CLUSTER_ID, "-c", str(kafka.file), "--add-scram", user]) == 0
    try:
        kafka.start()
        assert facts(kafka.bootstrap, [], [], []).users == {"ann": {(2, 8192)}}
        Admin(kafka.bootstrap).create("orders", PARTITIONS)
        produce(kafka.bootstrap, "orders")
        assert set(ends(kafka.bootstrap, ["orders"]).values()) == {1}
        kafka.terminate()
        assert set(places(kafka.directories).values()) == set(kafka.directories)
    finally:
        print(kafka.output())
        kafka.discard()
