"""Directories and configurations that name other nodes: a lone broker refuses each of them and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka_directories import KafkaDirectory
from tidelog.broker.cluster_membership import check_is_alone
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.errors import StartError
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE
from tidelog.broker.metadata.quorum_state import QuorumState, QuorumVoters, write_quorum_state
from tidelog.broker.metadata.replay import SnapshotId
from tidelog.broker.metadata.snapshot import build_snapshot
from tidelog.broker.startup import claim_directories
from tidelog.log.files.checkpoints import MetaProperties, write_meta_properties
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.metadata_records.control_records import (
    BatchStart,
    RegisteredVoter,
    VotersRecord,
    VoterVersions,
    build_control_batch,
)
from tidelog.protocol.metadata_records.records import (
    AccessControlEntryRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from tidelog.protocol.schema.fields import Message

FILE_SYSTEM = OsFileSystem()
NODE = 3
TOPIC_ID = b"t" * 16


def config(directory: Path, **texts: str) -> BrokerConfig:
    given = {key.replace("_", "."): value for key, value in texts.items()}
    return BrokerConfig({"log.dirs": str(directory), "node.id": str(NODE), **given})


def metadata(directory: Path, *records: tuple[Message, int], level: int | None = 25) -> None:
    source = KafkaDirectory.__new__(KafkaDirectory)
    source.path = directory
    levels = [] if level is None else [(FeatureLevelRecord(name="metadata.version", feature_level=level), 0)]
    source.add_metadata([*levels, *records])


def quorum_state(directory: Path, **state: Any) -> None:
    place = directory / "__cluster_metadata-0"
    place.mkdir(exist_ok=True)
    (place / "quorum-state").write_text(json.dumps({"leaderId": NODE, "leaderEpoch": 1, "votedId": -1, **state}))


@pytest.mark.parametrize("roles", ["controller", " controller ", "controller,controller", "broker,witness"])
def test_other_roles_are_refused(tmp_path: Path, roles: str) -> None:
    with pytest.raises(StartError, match="lone node"):
        check_is_alone(config(tmp_path, process_roles=roles), FILE_SYSTEM)


@pytest.mark.parametrize("voters", ["1@a:9093", "3@a:9093,4@b:9093", "3@a:9093, 1@b:9093"])
def test_other_voters_are_refused(tmp_path: Path, voters: str) -> None:
    with pytest.raises(StartError, match="names other nodes than 3: a lone node"):
        check_is_alone(config(tmp_path, controller_quorum_voters=voters), FILE_SYSTEM)


@pytest.mark.parametrize("roles", ["", "broker,controller", "controller, broker"])
def test_a_lone_node_may_start(tmp_path: Path, roles: str) -> None:
    check_is_alone(config(tmp_path, process_roles=roles, controller_quorum_voters="3@localhost:9093"), FILE_SYSTEM)


@pytest.mark.parametrize(
    "state",
    [
        {"currentVoters": [{"voterId": 3}, {"voterId": 4}]},
        {"currentVoters": [{"voterId": 1}], "leaderId": -1},
        {"leaderId": 1, "data_version": 1},
    ],
)
def test_a_quorum_of_others_is_refused(tmp_path: Path, state: dict[str, Any]) -> None:
    quorum_state(tmp_path, **state)
    with pytest.raises(StartError, match="belongs to a Kafka cluster with other nodes"):
        check_is_alone(config(tmp_path), FILE_SYSTEM)


def test_a_quorum_of_this_node_alone_is_accepted(tmp_path: Path) -> None:
    quorum_state(tmp_path, currentVoters=[{"voterId": NODE}])
    check_is_alone(config(tmp_path), FILE_SYSTEM)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"leaderId": "x"}', '{"currentVoters": [{}], "leaderId": 3}'])
def test_a_quorum_state_that_says_nothing_is_refused(tmp_path: Path, text: str) -> None:
    quorum_state(tmp_path)
    (tmp_path / "__cluster_metadata-0" / "quorum-state").write_text(text)
    with pytest.raises(StartError, match="cannot be read"):
        check_is_alone(config(tmp_path), FILE_SYSTEM)


@pytest.mark.parametrize("version", range(5))
def test_another_registered_broker_is_refused(tmp_path: Path, version: int) -> None:
    metadata(tmp_path, (RegisterBrokerRecord(broker_id=NODE), version), (RegisterBrokerRecord(broker_id=5), version))
    with pytest.raises(StartError, match=r"other nodes \(5\)"):
        check_is_alone(config(tmp_path), FILE_SYSTEM)


def test_a_replica_elsewhere_is_refused(tmp_path: Path) -> None:
    topic = TopicRecord(name="t", topic_id=TOPIC_ID)
    partition = PartitionRecord(partition_id=0, topic_id=TOPIC_ID, replicas=[NODE, 1, 2], leader=1, leader_epoch=4)
    metadata(tmp_path, (topic, 0), (partition, 0))
    with pytest.raises(StartError, match=r"other nodes \(1, 2\)"):
        check_is_alone(config(tmp_path), FILE_SYSTEM)


def test_an_unregistered_broker_is_ignored(tmp_path: Path) -> None:
    others = RegisterBrokerRecord(broker_id=5), UnregisterBrokerRecord(broker_id=5)
    metadata(tmp_path, (RegisterBrokerRecord(broker_id=NODE), 3), (others[0], 3), (others[1], 0))
    check_is_alone(config(tmp_path), FILE_SYSTEM)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (AccessControlEntryRecord(id=TOPIC_ID, principal="User:ann"), "1 ACLs"),
        (
            ConfigRecord(resource_type=2, resource_name="t", name="remote.storage.enable", value="true"),
            "part of topic t is in remote storage",
        ),
        (FeatureLevelRecord(name="metadata.version", feature_level=31), "metadata.version is at level 31"),
        (FeatureLevelRecord(name="share.version", feature_level=9), "share.version is at level 9"),
        (FeatureLevelRecord(name="tomorrow.version", feature_level=1), "tomorrow.version is at level 1"),
        (RegisterBrokerRecord(broker_id=5), "other nodes"),
    ],
)
def test_unservable_metadata_are_refused_before_anything_is_written(tmp_path: Path, record: Message, text: str) -> None:
    metadata(tmp_path, (record, 0))
    quorum_state(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(StartError, match=text):
        claim_directories(FILE_SYSTEM, config(tmp_path))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("level", "text"),
    [
        (6, "metadata.version is at level 6, and this release knows 7 and up"),
        (31, "metadata.version is at level 31, and this release knows up to 30"),
        (None, "the metadata have no metadata.version: a Kafka before 3.3 wrote them"),
    ],
)
def test_levels_of_other_times_are_refused(tmp_path: Path, level: int | None, text: str) -> None:
    metadata(tmp_path, (TopicRecord(name="t", topic_id=TOPIC_ID), 0), level=level)
    with pytest.raises(StartError, match=text):
        check_is_alone(config(tmp_path), FILE_SYSTEM)


@pytest.mark.parametrize("level", [7, 30])
def test_levels_in_range_are_accepted(tmp_path: Path, level: int) -> None:
    metadata(tmp_path, (TopicRecord(name="t", topic_id=TOPIC_ID), 0), level=level)
    assert check_is_alone(config(tmp_path), FILE_SYSTEM) is not None


def voters_record(*ids: int) -> VotersRecord:
    versions = VoterVersions(min_supported_version=0, max_supported_version=1)
    return VotersRecord(voters=[RegisteredVoter(voter_id=one, k_raft_version_feature=versions) for one in ids])


@pytest.mark.parametrize("is_in_log", [False, True])
@pytest.mark.parametrize(
    ("voters", "text"),
    [
        (QuorumVoters(1, voters_record(NODE)), None),
        (QuorumVoters(1, voters_record(NODE, 4, 5)), r"other nodes \(4, 5\)"),
        (QuorumVoters(2, voters_record(NODE)), "kraft.version is at level 2, and this release knows up to 1"),
    ],
)
def test_voters_that_the_log_names_are_looked_at(
    tmp_path: Path, voters: QuorumVoters, text: str | None, is_in_log: bool
) -> None:
    place = tmp_path / "__cluster_metadata-0"
    place.mkdir()
    (place / SnapshotId(0, 0).file_name()).write_bytes(
        b"".join(build_snapshot(EMPTY_IMAGE, 0, voters=QuorumVoters(1) if is_in_log else voters))
    )
    if is_in_log:
        first, *more = voters.records()
        (place / f"{0:020d}.log").write_bytes(build_control_batch(first, BatchStart(0, 1, 0), more))
    quorum_state(tmp_path, data_version=1)
    if text is None:
        found = check_is_alone(config(tmp_path), FILE_SYSTEM)
        assert found is not None
        assert found.voters == voters
    else:
        with pytest.raises(StartError, match=text):
            check_is_alone(config(tmp_path), FILE_SYSTEM)


def test_a_quorum_state_of_a_newer_kafka_is_refused(tmp_path: Path) -> None:
    quorum_state(tmp_path, data_version=2)
    with pytest.raises(StartError, match="version 2, of a newer Kafka"):
        check_is_alone(config(tmp_path), FILE_SYSTEM)


def test_acls_are_served_where_they_are_enforced(tmp_path: Path) -> None:
    metadata(tmp_path, (AccessControlEntryRecord(id=TOPIC_ID, principal="User:ann"), 0))
    loaded = check_is_alone(config(tmp_path, authorizer_class_name=STANDARD_AUTHORIZER), FILE_SYSTEM)
    assert loaded is not None
    assert len(loaded.image.acls) == 1


def test_a_refused_start_writes_nothing(tmp_path: Path) -> None:
    quorum_state(tmp_path, leaderId=1)
    before = contents(tmp_path)
    with pytest.raises(StartError):
        claim_directories(FILE_SYSTEM, config(tmp_path))
    assert contents(tmp_path) == before


def contents(directory: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}


def test_a_taken_over_log_is_reported_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metadata(tmp_path, (TopicRecord(name="t", topic_id=TOPIC_ID), 0))
    quorum_state(tmp_path, leaderId=-1, currentVoters=[{"voterId": NODE}])
    check_is_alone(config(tmp_path), FILE_SYSTEM)
    (record,) = caplog.records
    assert record.getMessage().startswith("taking over Apache Kafka's metadata log")
    assert record.getMessage().endswith(" with 1 topics")


def test_an_own_log_is_accepted_without_a_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metadata(tmp_path, (TopicRecord(name="t", topic_id=TOPIC_ID), 0))
    write_quorum_state(FILE_SYSTEM, str(tmp_path / "__cluster_metadata-0"), QuorumState(NODE, 1, (NODE,)))
    found = check_is_alone(config(tmp_path), FILE_SYSTEM)
    assert found is not None
    assert (list(found.image.topic_ids), found.end_offset) == (["t"], 2)
    assert not caplog.records


@pytest.mark.parametrize("spelling", ["{}/", "{}/."])
def test_the_first_directory_may_be_spelt_in_any_way(tmp_path: Path, spelling: str) -> None:
    metadata(tmp_path, (TopicRecord(name="t", topic_id=TOPIC_ID), 0))
    assert check_is_alone(config(tmp_path, log_dirs=spelling.format(tmp_path)), FILE_SYSTEM) is not None


def test_the_quorum_state_in_a_second_directory_is_checked_too(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    quorum_state(tmp_path / "b", leaderId=1)
    with pytest.raises(StartError, match="other nodes"):
        check_is_alone(BrokerConfig({"log.dirs": f"{tmp_path}/a,{tmp_path}/b", "node.id": str(NODE)}), FILE_SYSTEM)


def test_a_metadata_log_that_is_not_in_the_first_directory_is_refused(tmp_path: Path) -> None:
    """A start would begin a new log in the first one, and know none of the topics."""
    (tmp_path / "b").mkdir()
    metadata(tmp_path / "b", (TopicRecord(name="t", topic_id=TOPIC_ID), 0))
    with pytest.raises(StartError, match=r"is the metadata log, and the first of log.dirs is .*a: name its directory"):
        check_is_alone(config(tmp_path, log_dirs=f"{tmp_path}/a,{tmp_path}/b"), FILE_SYSTEM)
    assert check_is_alone(config(tmp_path, log_dirs=f"{tmp_path}/b,{tmp_path}/a"), FILE_SYSTEM) is not None


@pytest.mark.parametrize(
    ("directory", "is_known"),
    [(b"a" * 16, True), (b"b" * 16, False), (bytes(16), True), (bytes(15) + b"\x01", True)],
)
@pytest.mark.parametrize("has_id", [True, False])
def test_partitions_in_a_directory_of_kafka_that_is_not_named_are_refused(
    tmp_path: Path, directory: bytes, is_known: bool, has_id: bool
) -> None:
    write_meta_properties(FILE_SYSTEM, str(tmp_path), MetaProperties("c", NODE, b"a" * 16 if has_id else None))
    topic = TopicRecord(name="t", topic_id=TOPIC_ID)
    partition = PartitionRecord(partition_id=0, topic_id=TOPIC_ID, replicas=[NODE], directories=[directory])
    metadata(tmp_path, (topic, 0), (partition, 1))
    quorum_state(tmp_path)
    if is_known or not has_id:
        check_is_alone(config(tmp_path), FILE_SYSTEM)
    else:
        with pytest.raises(StartError, match=r"1 partitions lie in log directories that log\.dirs does not name, t-0"):
            check_is_alone(config(tmp_path), FILE_SYSTEM)


@pytest.mark.parametrize(("named", "is_taken"), [("a", True), ("b", False), ("c", False)])
def test_the_directory_of_the_metadata_log_is_the_first(tmp_path: Path, named: str, is_taken: bool) -> None:
    given = config(tmp_path, log_dirs=f"{tmp_path}/a,{tmp_path}/b", metadata_log_dir=f"{tmp_path}/{named}")
    if is_taken:
        check_is_alone(given, FILE_SYSTEM)
    else:
        with pytest.raises(StartError, match=r"metadata.log.dir=.*: the metadata log lies in the first of log.dirs"):
            check_is_alone(given, FILE_SYSTEM)
