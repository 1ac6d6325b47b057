"""Kafka's tools read Tidelog's metadata: the log, its snapshot, and the quorum of a running broker."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.rivals.apache_kafka import STORAGE_TOOL, dump_log_segments
from tests.support.admin import Admin
from tests.support.apache_kafka import run_tool
from tests.support.broker import TidelogProcess
from tests.support.jvm import java_command
from tests.support.kafka_jars import KAFKA_4, broker_classpath, shell_classpath
from tests.support.metadata_changes import SHA_256, alter, set_quota, set_user
from tests.support.metadata_facts import BROKER
from tidelog.broker.controller.embedded import open_controller
from tidelog.broker.metadata.image_description import uuid_text
from tidelog.broker.metadata.log_reader import read_metadata_log
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.metadata.metadata_log import MetadataLocation
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.checkpoints import read_meta_properties
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import SystemTime

pytestmark = [pytest.mark.java, pytest.mark.slow]

QUORUM_COMMAND = "org.apache.kafka.tools.MetadataQuorumCommand"
SHELL = "org.apache.kafka.shell.MetadataShell"
SHELL_TRIES, SHELL_TIMEOUT_S = 4, 60.0
"""The shell may answer before it has loaded its snapshot, and on a busy machine it was once seen not to end."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TidelogProcess]:
    """A broker with something of every kind; it runs until the test stops it."""
    with TidelogProcess(tmp_path / "tools", {"log.cleaner.enable": "false"}) as broker:
        Admin(broker.bootstrap).create("orders", 3, {"retention.ms": "86400000"})
        alter(broker.bootstrap, BROKER, "", "message.max.bytes", "2000000")
        set_quota(broker.bootstrap, [("user", "ann")], "producer_byte_rate", 1048576.0)
        set_user(broker.bootstrap, "bob", SHA_256, 8192)
        yield broker


def directory_of(broker: TidelogProcess) -> Path:
    return broker.data_directory / "__cluster_metadata-0"


def image_of(broker: TidelogProcess) -> MetadataImage:
    return read_metadata_log(OsFileSystem(), str(directory_of(broker))).image


def test_the_running_quorum_is_described(broker: TidelogProcess) -> None:
    answers = [
        run_tool(QUORUM_COMMAND, ["--bootstrap-server", broker.bootstrap, "describe", part])
        for part in ("--status", "--replication")
    ]
    assert [answer.returncode for answer in answers] == [0, 0], answers
    status = dict(re.findall(r"^(\w+):\s+(.*)$", answers[0].stdout, re.MULTILINE))
    image = image_of(broker)
    assert (status["LeaderId"], status["LeaderEpoch"]) == ("1", str(image.epoch))
    assert int(status["HighWatermark"]) == image.offset + 1
    assert re.search(r"^1\s.*\sLeader\s*$", answers[1].stdout, re.MULTILINE), answers[1].stdout


def test_the_log_and_its_snapshot_are_read(broker: TidelogProcess) -> None:
    """One test: each tool asks the stopped broker's directory, in turn."""
    broker.terminate()
    check_info(broker)
    image, directory = image_of(broker), directory_of(broker)
    (segment,) = directory.glob("*.log")
    check_dump(image, segment)
    snapshot = take_snapshot(directory)
    check_dump(image_of(broker), snapshot)
    check_shell(image, snapshot)


def check_info(broker: TidelogProcess) -> None:
    """Check that ``kafka-storage info`` finds the directory, whose it is, and no fault."""
    file = broker.directory / "info.properties"
    file.write_text(
        f"process.roles=broker,controller\nnode.id=1\nlog.dirs={broker.data_directory}\n"
        "controller.quorum.voters=1@127.0.0.1:9093\nlisteners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n"
        "controller.listener.names=CONTROLLER\n"
    )
    done = run_tool(STORAGE_TOOL, ["info", "-c", str(file)])
    identity = read_meta_properties(OsFileSystem(), str(broker.data_directory))
    assert done.returncode == 0, done.stdout + done.stderr
    assert identity is not None
    assert f"cluster.id={identity.cluster_id}" in done.stdout
    assert "node.id=1" in done.stdout
    assert "Found problem" not in done.stdout


def take_snapshot(directory: Path) -> Path:
    """Open the log as a start does, and write its snapshot."""
    environment = LogEnvironment(OsFileSystem(), SystemTime())
    location = MetadataLocation(str(directory.parent), DirectoryState(str(directory.parent)), environment)
    controller = open_controller(location, 1, environment.time)
    controller.take_snapshot(min_bytes=0)
    controller.close()
    (snapshot,) = directory.glob("*.checkpoint")
    return snapshot


def check_dump(image: MetadataImage, file: Path) -> None:
    """Check that ``kafka-dump-log --cluster-metadata-decoder`` finds the image's records, of Kafka's types."""
    done = run_tool(dump_log_segments(), ["--cluster-metadata-decoder", "--files", str(file)])
    assert done.returncode == 0, done.stderr
    assert "payload: INVALID" not in done.stdout
    assert "Could not decode" not in done.stdout
    found = [json.loads(line) for line in re.findall(r"payload: (\{.*\})$", done.stdout, re.MULTILINE)]
    of_type: dict[str, list[dict[str, object]]] = {}
    for one in found:
        of_type.setdefault(one["type"], []).append(one["data"])
    assert {str(one["name"]) for one in of_type["TOPIC_RECORD"]} == set(image.topic_ids)
    assert len(of_type["PARTITION_RECORD"]) == sum(len(topic.partitions) for topic in image.topics.values())
    levels = {one["name"]: one["featureLevel"] for one in of_type["FEATURE_LEVEL_RECORD"]}
    assert levels == image.features
    configs = {
        (one["resourceType"], one["resourceName"], one["name"]): one["value"] for one in of_type["CONFIG_RECORD"]
    }
    assert configs == {(*key, name): value for key, texts in image.configs.items() for name, value in texts.items()}
    assert {(one["key"], one["value"]) for one in of_type["CLIENT_QUOTA_RECORD"]} == {("producer_byte_rate", 1048576.0)}
    users = {(one["name"], one["mechanism"], one["iterations"]) for one in of_type["USER_SCRAM_CREDENTIAL_RECORD"]}
    assert users == {(*key, state.iterations) for key, state in image.scram.items()}


def check_shell(image: MetadataImage, snapshot: Path) -> None:
    """Check that ``kafka-metadata-shell`` loads the snapshot and shows its parts."""
    class_path = f"{broker_classpath()}:{shell_classpath()}"
    command = java_command(KAFKA_4, class_path, "-Dlog4j2.level=OFF", SHELL, "--snapshot", str(snapshot))
    tree = next((found for found in (run_shell(command) for _ in range(SHELL_TRIES)) if "byName" in found), "")
    for topic in image.topics.values():
        assert uuid_text(topic.topic_id) in tree
    partitions = sum(len(topic.partitions) for topic in image.topics.values())
    assert tree.count("PartitionRegistration(replicas=[1]") == 2 * partitions, "by name and by id"
    for text in ("86400000", "message.max.bytes", "producer_byte_rate", "bob"):
        assert text in tree, text


def run_shell(command: list[str]) -> str:
    """Return the tree of the image that the shell prints; nothing where the shell does not end."""
    try:
        done = subprocess.run(
            [*command, "tree", "/image"], capture_output=True, text=True, timeout=SHELL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
