"""Taking over Kafka's directories: the plan, refusals, and the result."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka_directories import CLUSTER_ID, KafkaDirectory
from tests.support.logs import NOW_MS, values
from tidelog.broker.adoption.adopt import carry_out, valid_broker_configs
from tidelog.broker.adoption.plan import AdoptionError, AdoptionOptions, AdoptionPlan, existing_topics, make_plan
from tidelog.broker.adoption.source import is_of_kraft
from tidelog.broker.controller.features import first_levels
from tidelog.broker.metadata.bootstrap import write_bootstrap
from tidelog.broker.metadata.image import TopicImage
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.log_reader import METADATA_DIRECTORY, read_metadata_image
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE, MetadataImage
from tidelog.log.check import check_directory
from tidelog.log.config import LogConfig
from tidelog.log.files.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    read_meta_properties,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.metadata_records.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntityData,
    TopicRecord,
    UserScramCredentialRecord,
)
from tidelog.protocol.schema.fields import Message

FILE_SYSTEM = OsFileSystem()
TIME = ManualTime(NOW_MS)
ORDERS = bytes(range(16))
SILENT = lambda _: None  # noqa: E731


def metadata(*more: tuple[Message, int], partitions: int = 2) -> list[tuple[Message, int]]:
    records: list[tuple[Message, int]] = [(TopicRecord(name="orders", topic_id=ORDERS), 0)]
    records += [
        (PartitionRecord(partition_id=index, topic_id=ORDERS, leader=3, leader_epoch=4), 1)
        for index in range(partitions)
    ]
    return [*records, *more]


def kraft_source(path: Path, *more: tuple[Message, int]) -> KafkaDirectory:
    source = KafkaDirectory(path)
    for index in range(2):
        source.add_partition("orders", index, ORDERS, epoch=2)
    source.add_metadata(metadata(*more))
    return source


def plan_for(source: Path, target: Path, **options: Any) -> AdoptionPlan:
    plan = make_plan(FILE_SYSTEM, TIME, AdoptionOptions((str(source),), str(target), **options))
    plan.close()
    return plan


def adopt(source: Path, target: Path, **options: Any) -> AdoptionPlan:
    plan = make_plan(FILE_SYSTEM, TIME, AdoptionOptions((str(source),), str(target), **options))
    try:
        carry_out(FILE_SYSTEM, TIME, plan, SILENT)
    finally:
        plan.close()
    return plan


def metadata_of(target: Path) -> MetadataImage:
    return read_metadata_image(FILE_SYSTEM, str(target / METADATA_DIRECTORY))


def topics(target: Path) -> dict[str, TopicImage]:
    return existing_topics(metadata_of(target))


def served_records(directory: Path, place: TopicPartition) -> dict[int, bytes | None]:
    """Return the records that a LogManager serves of a partition."""
    manager = LogManager([str(directory)], FILE_SYSTEM, TIME, LogConfig())
    manager.startup()
    log = manager.get_log(place)
    assert log is not None
    log.update_high_watermark(log.log_end_offset)
    found = values(log, log.log_start_offset)
    manager.shutdown()
    return found


def test_topics_are_adopted_with_ids_configs_and_records(tmp_path: Path) -> None:
    config = ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="99")
    source = kraft_source(tmp_path / "kafka", (config, 0))
    before = source.contents()
    adopt(source.path, tmp_path / "data")
    assert source.contents() == before
    image = topics(tmp_path / "data")["orders"]
    assert (image.topic_id, image.partition_count, image.configs) == (ORDERS, 2, {"retention.ms": "99"})
    for index in range(2):
        assert check_directory(FILE_SYSTEM, str(tmp_path / "data" / f"orders-{index}")) == []
    assert len(served_records(tmp_path / "data", TopicPartition("orders", 1))) == 60
    identity = read_meta_properties(FILE_SYSTEM, str(tmp_path / "data"))
    assert identity is not None
    assert (identity.cluster_id, identity.node_id) == (CLUSTER_ID, 1)
    assert not (tmp_path / "data" / ".adopting").exists()


def test_the_first_users_of_a_formatted_directory_are_taken_over(tmp_path: Path) -> None:
    """The adoption makes the log, so no later start would."""
    (tmp_path / "data").mkdir()
    user = UserScramCredentialRecord(
        name="admin", mechanism=2, salt=b"salt", stored_key=b"stored", server_key=b"server", iterations=4096
    )
    levels = first_levels(EMPTY_IMAGE)
    write_bootstrap(FILE_SYSTEM, str(tmp_path / "data"), [*levels, VersionedRecord(user)], NOW_MS)
    adopt(kraft_source(tmp_path / "kafka").path, tmp_path / "data")
    image = metadata_of(tmp_path / "data")
    assert list(image.scram) == [("admin", 2)]
    assert len(image.features) == len(levels)


def test_leader_epochs_continue_above_all_that_were(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    adopt(source.path, tmp_path / "data")
    assert topics(tmp_path / "data")["orders"].partitions[0].leader_epoch == 5


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    plan = plan_for(source.path, tmp_path / "data")
    assert [topic.name for topic in plan.topics] == ["orders"]
    assert not (tmp_path / "data").exists()


def test_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    adopt(source.path, tmp_path / "data")
    plan = plan_for(source.path, tmp_path / "data")
    assert plan.topics == []
    assert plan.problems == []
    assert plan.left_out == ["topic orders: the data directory has it already, with the same id"]


def test_another_topic_of_that_name_is_a_conflict(tmp_path: Path) -> None:
    adopt(kraft_source(tmp_path / "kafka").path, tmp_path / "data")
    other = KafkaDirectory(tmp_path / "other", zookeeper=True)
    other.add_partition("orders", 0, bytes(16)[:-1] + b"\1")
    assert "another topic of that name" in plan_for(other.path, tmp_path / "data").problems[0]
    with pytest.raises(AdoptionError):
        adopt(other.path, tmp_path / "data")


def test_missing_partitions_are_a_problem_until_left_out(tmp_path: Path) -> None:
    source = KafkaDirectory(tmp_path / "kafka")
    source.add_partition("orders", 1, ORDERS)
    source.add_metadata(metadata(partitions=3))
    assert "partitions 0, 2 of 3 are not in these directories" in plan_for(source.path, tmp_path / "data").problems[0]
    plan = plan_for(source.path, tmp_path / "data", leave_out=frozenset({"orders"}))
    assert (plan.problems, plan.left_out) == ([], ["topic orders: by --leave-out"])


def test_a_directory_with_a_date_in_its_name_lacks_partitions(tmp_path: Path) -> None:
    """All twenty million numbers of missing partitions took gigabytes of memory."""
    source = KafkaDirectory(tmp_path / "kafka", zookeeper=True)
    source.add_partition("backup", 20_261_128, None)
    tracemalloc.start()
    plan = plan_for(source.path, tmp_path / "data")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "topic backup: partitions 0, 1, 2" in plan.problems[0]
    assert "18, 19, ... of 20261129 are not in these directories" in plan.problems[0]
    assert peak < 64 << 20


def test_a_topic_without_any_partition_here_is_a_problem(tmp_path: Path) -> None:
    source = KafkaDirectory(tmp_path / "kafka")
    source.add_partition("other", 0, bytes(15) + b"\2")
    source.add_metadata([*metadata(), (TopicRecord(name="other", topic_id=bytes(15) + b"\2"), 0),
                         (PartitionRecord(partition_id=0, topic_id=bytes(15) + b"\2"), 0)])  # fmt: skip
    assert "none of its 2 partitions" in plan_for(source.path, tmp_path / "data").problems[0]


def test_directories_in_use_are_left_alone(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    lock = FILE_SYSTEM.lock_file(str(source.path / ".lock"))
    assert lock is not None
    problems = plan_for(source.path, tmp_path / "data").problems
    lock.close()
    assert len(problems) == 1
    assert "is in use by a running broker" in problems[0]
    assert plan_for(source.path, tmp_path / "data").problems == []


def test_the_data_directory_may_not_be_the_source(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    for target in (source.path, source.path / "tidelog", tmp_path):
        assert "contain one another" in plan_for(source.path, target).problems[0]


def test_damage_in_synced_records_is_a_problem(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    path = source.path / "orders-0" / f"{0:020d}.log"
    damaged = bytearray(path.read_bytes())
    damaged[66] ^= 1
    path.write_bytes(damaged)
    assert "wrong CRC" in plan_for(source.path, tmp_path / "data").problems[0]


def test_a_bad_index_is_rebuilt(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    path = source.path / "orders-0" / f"{0:020d}.index"
    path.write_bytes(b"\0\0\0\1\0\0\0\2" * 3)
    plan = adopt(source.path, tmp_path / "data")
    assert any(note.startswith("rebuilt") for note in plan.notes)
    assert check_directory(FILE_SYSTEM, str(tmp_path / "data" / "orders-0")) == []


def test_a_torn_tail_after_a_kill_is_cut_on_the_copy(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    source.kill()
    last = max((source.path / "orders-0").glob("*.log"))
    with last.open("ab") as file:
        file.write(b"half a batch")
    before = source.contents()
    adopt(source.path, tmp_path / "data")
    assert source.contents() == before
    assert (tmp_path / "data" / CLEAN_SHUTDOWN_FILE).exists()
    assert len(served_records(tmp_path / "data", TopicPartition("orders", 0))) == 60


def test_log_start_offsets_are_kept(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    place = TopicPartition("orders", 0)
    write_offset_checkpoint(FILE_SYSTEM, str(source.path / LOG_START_OFFSET_FILE), {place: 7})
    adopt(source.path, tmp_path / "data")
    assert read_offset_checkpoint(FILE_SYSTEM, str(tmp_path / "data" / RECOVERY_POINT_FILE))[place] == 60
    assert min(served_records(tmp_path / "data", place)) == 7


def test_only_files_that_never_change_are_linked(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    adopt(source.path, tmp_path / "data", link=True)
    logs = sorted((tmp_path / "data" / "orders-0").glob("*.log"))
    assert len(logs) > 1
    assert [path.stat().st_nlink for path in logs] == [2] * (len(logs) - 1) + [1]
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "data").rglob("*index"))


def test_without_metadata_nothing_is_deleted_and_new_producer_ids_are_larger(tmp_path: Path) -> None:
    source = KafkaDirectory(tmp_path / "kafka", zookeeper=True)
    source.add_partition("orders", 0, None, producer_id=41_500)
    plan = adopt(source.path, tmp_path / "data")
    image = topics(tmp_path / "data")["orders"]
    assert image.configs == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert image.topic_id != bytes(16)
    assert metadata_of(tmp_path / "data").producer_ids == 42000
    assert any("ZooKeeper" in text for text in plan.left_out)
    assert len(served_records(tmp_path / "data", TopicPartition("orders", 0))) == 60


def test_producer_ids_are_read_up_to_a_torn_tail(tmp_path: Path) -> None:
    """A power loss may leave zeros after the records, which a start cuts off."""
    source = KafkaDirectory(tmp_path / "kafka", zookeeper=True)
    source.add_partition("orders", 0, None, producer_id=41_500)
    source.kill()
    with max((source.path / "orders-0").glob("*.log")).open("ab") as file:
        file.write(bytes(4096))
    adopt(source.path, tmp_path / "data")
    assert metadata_of(tmp_path / "data").producer_ids == 42000
    assert len(served_records(tmp_path / "data", TopicPartition("orders", 0))) == 60


def test_configs_may_be_given_for_such_topics(tmp_path: Path) -> None:
    source = KafkaDirectory(tmp_path / "kafka", zookeeper=True)
    source.add_partition("orders", 0, ORDERS)
    configs = {"orders": {"cleanup.policy": "compact,delete", "no.such.key": "1", "segment.ms": "nonsense"}}
    plan = adopt(source.path, tmp_path / "data", topic_configs=configs)
    assert topics(tmp_path / "data")["orders"].configs == {"cleanup.policy": "compact,delete"}
    left_out = "\n".join(plan.left_out)
    assert "no.such.key=1 of topic orders: Tidelog has no such key" in left_out
    assert "segment.ms=nonsense" in left_out


@pytest.mark.parametrize("text", ["true", " TRUE"])
@pytest.mark.parametrize("zookeeper", [True, False])
def test_a_topic_with_remote_storage_is_a_problem(tmp_path: Path, text: str, zookeeper: bool) -> None:
    """It was taken over without its remote part: Tidelog has no such config, so this one was left out."""
    given = None
    if zookeeper:
        source = KafkaDirectory(tmp_path / "kafka", zookeeper=True)
        source.add_partition("orders", 0, ORDERS)
        given = {"orders": {"remote.storage.enable": text}}
    else:
        config = ConfigRecord(resource_type=2, resource_name="orders", name="remote.storage.enable", value=text)
        source = kraft_source(tmp_path / "kafka", (config, 0))
    plan = plan_for(source.path, tmp_path / "data", topic_configs=given)
    assert plan.problems == ["topic orders: part of it is in remote storage, which these directories do not hold"]


def test_quotas_credentials_defaults_and_producer_ids_are_adopted(tmp_path: Path) -> None:
    quota = ClientQuotaRecord(entity=[QuotaEntityData(entity_type="user", entity_name="ann")], key="request_percentage",
                              value=12.5)  # fmt: skip
    scram = UserScramCredentialRecord(
        name="ann", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=9
    )
    default = ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="77")
    ids = ProducerIdsRecord(broker_id=3, next_producer_id=5_000)
    source = kraft_source(tmp_path / "kafka", (quota, 0), (scram, 0), (default, 0), (ids, 0))
    adopt(source.path, tmp_path / "data")
    image = metadata_of(tmp_path / "data")
    assert image.quotas == {(("user", "ann"),): {"request_percentage": 12.5}}
    assert image.scram == {("ann", 1): (b"s", b"k", b"v", 9)}
    assert image.configs[4, ""] == {"log.retention.ms": "77"}
    assert image.producer_ids == 5000


def test_acls_and_delegation_tokens_are_adopted_once(tmp_path: Path) -> None:
    acl = AccessControlEntryRecord(
        id=bytes(15) + b"\7", resource_type=2, resource_name="orders", pattern_type=3, principal="User:ann", host="*",
        operation=3, permission_type=3,
    )  # fmt: skip
    token = DelegationTokenRecord(
        owner="User:ann", requester="User:ann", renewers=["User:bob"], issue_timestamp=1, max_timestamp=99,
        expiration_timestamp=50, token_id="t",
    )  # fmt: skip
    source = kraft_source(tmp_path / "kafka", (acl, 0), (token, 0))
    plan = adopt(source.path, tmp_path / "data")
    image = metadata_of(tmp_path / "data")
    assert [(rule.resource_name, rule.principal) for rule in image.acls.values()] == [("orders", "User:ann")]
    assert [(one.owner, one.renewers, one.expires_ms) for one in image.tokens.values()] == [
        ("User:ann", ("User:bob",), 50)
    ]
    assert "ACLs: 1; they take effect with authorizer.class.name" in plan.notes
    adopt(source.path, tmp_path / "data")
    assert metadata_of(tmp_path / "data").acls == image.acls


def test_configs_of_groups_and_client_metrics_are_adopted(tmp_path: Path) -> None:
    given = [
        (32, "share", "share.auto.offset.reset", "earliest"),
        (32, "share", "streams.unheard.of", "50000"),
        (32, "wrong", "share.delivery.count.limit", "many"),
        (16, "all", "metrics", "*"),
    ]
    records = [
        (ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value), 0)
        for kind, name, key, value in given
    ]
    plan = adopt(kraft_source(tmp_path / "kafka", *records).path, tmp_path / "data")
    configs = metadata_of(tmp_path / "data").configs
    assert configs[16, "all"] == {"metrics": "*"}
    assert configs[32, "share"] == {"share.auto.offset.reset": "earliest"}
    left_out = "\n".join(plan.left_out)
    assert "config streams.unheard.of=50000 of group share: " in left_out
    assert "config share.delivery.count.limit=many of group wrong: " in left_out


def test_only_known_dynamic_configs_are_adopted() -> None:
    given = {"log.retention.ms": "77", "node.id": "9", "no.such.key": "1", "log.cleaner.threads": "many"}
    assert valid_broker_configs(given) == {"log.retention.ms": "77"}


def test_several_clusters_or_one_partition_twice_are_problems(tmp_path: Path) -> None:
    first = kraft_source(tmp_path / "first")
    second = KafkaDirectory(tmp_path / "second", cluster_id="other")
    second.add_partition("orders", 0, ORDERS)
    options = AdoptionOptions((str(first.path), str(second.path)), str(tmp_path / "data"))
    plan = make_plan(FILE_SYSTEM, TIME, options)
    plan.close()
    assert "several clusters" in plan.problems[0]
    assert "partitions 0 are in several of the directories" in plan.problems[1]


def test_topics_that_kafka_was_deleting_are_left_out(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    source.add_partition("gone", 0, bytes(15) + b"\3")
    (source.path / "old-0.0123-delete").mkdir()
    left_out = plan_for(source.path, tmp_path / "data").left_out
    assert any("old-0.0123-delete: was being deleted" in text for text in left_out)
    assert any("topic gone: deleted in Kafka" in text for text in left_out)


def test_no_partition_directories_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no partition directories" in plan_for(tmp_path / "empty", tmp_path / "data").problems[0]
    assert "does not exist" in plan_for(tmp_path / "nowhere", tmp_path / "data").problems[0]


def test_internal_topics_stay_compacted_without_metadata(tmp_path: Path) -> None:
    source = KafkaDirectory(tmp_path / "kafka", zookeeper=True)
    for index in range(3):
        source.add_partition("__consumer_offsets", index, ORDERS)
    adopt(source.path, tmp_path / "data")
    image = topics(tmp_path / "data")["__consumer_offsets"]
    assert (image.partition_count, image.configs["cleanup.policy"], image.is_internal) == (3, "compact", True)


def test_compacted_topics_stay_compacted_without_metadata(tmp_path: Path) -> None:
    source = KafkaDirectory(tmp_path / "kafka", zookeeper=True)
    source.add_partition("orders", 0, ORDERS)
    place = TopicPartition("orders", 0)
    write_offset_checkpoint(FILE_SYSTEM, str(source.path / CLEANER_OFFSET_FILE), {place: 26})
    plan = adopt(source.path, tmp_path / "data")
    assert topics(tmp_path / "data")["orders"].configs["cleanup.policy"] == "compact"
    assert read_offset_checkpoint(FILE_SYSTEM, str(tmp_path / "data" / CLEANER_OFFSET_FILE)) == {place: 26}
    assert any("topics without known configs: 1;" in note for note in plan.notes)


def test_a_log_that_no_broker_would_load_is_refused_and_its_copy_removed(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    segments = sorted((source.path / "orders-1").glob("*.log"))
    for path in (source.path / "orders-1").glob(f"{segments[1].stem}.*"):
        path.unlink()
    with pytest.raises(AdoptionError, match="orders-1 cannot be served: offsets"):
        adopt(source.path, tmp_path / "data")
    assert topics(tmp_path / "data") == {}
    assert [path.name for path in (tmp_path / "data").iterdir() if path.is_dir()] == [METADATA_DIRECTORY]


def test_an_existing_partition_directory_is_reported(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    (tmp_path / "data" / "orders-1").mkdir(parents=True)
    with pytest.raises(AdoptionError, match="belongs to no topic: move it elsewhere first"):
        adopt(source.path, tmp_path / "data")


def test_a_running_tidelog_keeps_its_directory(tmp_path: Path) -> None:
    source = kraft_source(tmp_path / "kafka")
    (tmp_path / "data").mkdir()
    lock = FILE_SYSTEM.lock_file(str(tmp_path / "data" / ".lock"))
    assert lock is not None
    assert "is in use by a running broker" in plan_for(source.path, tmp_path / "data").problems[0]
    lock.close()


def test_too_little_free_space_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = kraft_source(tmp_path / "kafka")
    monkeypatch.setattr(OsFileSystem, "disk_space", lambda *_: (10**9, 10**6))
    assert "has 1,000,000 bytes of free space" in plan_for(source.path, tmp_path / "data").problems[0]
    assert plan_for(source.path, tmp_path / "data", link=True).problems == []


def test_a_kraft_broker_without_its_metadata_is_not_taken_for_an_old_one(tmp_path: Path) -> None:
    source = KafkaDirectory(tmp_path / "kafka")
    source.add_partition("orders", 0, ORDERS)
    plan = plan_for(source.path, tmp_path / "data")
    assert "__cluster_metadata-0 is not in these directories" in plan.problems[0]
    assert plan.notes == [], "which configs topics would have had instead"
    given = plan_for(source.path, tmp_path / "data", topic_configs={"orders": {}})
    assert given.problems == []
    for left_out in (plan.left_out, given.left_out):
        assert [text.partition(": ")[2] for text in left_out] == [
            "they are in __cluster_metadata-0, which is not in these directories"
        ]
    assert "topic configs" not in given.left_out[0]


def test_a_second_run_leaves_out_topics_without_ids(tmp_path: Path) -> None:
    source = KafkaDirectory(tmp_path / "kafka", zookeeper=True)
    source.add_partition("orders", 0, None)
    adopt(source.path, tmp_path / "data")
    plan = plan_for(source.path, tmp_path / "data")
    assert (plan.topics, plan.problems) == ([], [])
    assert "no id to compare" in plan.left_out[0]


@pytest.mark.parametrize(
    ("comment", "version", "is_kraft"),
    [(b"#M\xe4rz", b"0", False), (b"#M\xe4rz", b"1", True), (b"#\xff\\u12", b"1", True)],
)
def test_meta_properties_may_have_any_bytes_in_a_comment(
    tmp_path: Path, comment: bytes, version: bytes, is_kraft: bool
) -> None:
    (tmp_path / "meta.properties").write_bytes(comment + b"\nversion=" + version + b"\ncluster.id=abc\nbroker.id=1\n")
    assert is_of_kraft(FILE_SYSTEM, str(tmp_path)) == is_kraft


def test_malformed_meta_properties_are_an_error_of_storage(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_bytes(b"version=\\u12\n")
    with pytest.raises(KafkaStorageError, match=r"meta\.properties"):
        is_of_kraft(FILE_SYSTEM, str(tmp_path))
