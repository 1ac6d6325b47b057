from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.topics import create_topic, delete_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.metadata.image import TopicImage
from tidelog.broker.metadata.metadata_image import PartitionState
from tidelog.broker.replica.replica_manager import EAGER_LOGS, EAGER_WINDOW_MS
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError, UnknownTopicIdError, UnknownTopicOrPartitionError


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 2)
    yield data
    data.close()


def test_partitions_are_found_by_name_and_by_id(data: DataBroker) -> None:
    topic_id = data.broker.metadata.topics["t"].topic_id
    found = data.replica_manager.partition("t", 1)
    assert data.replica_manager.partition_by_id(topic_id, 1) is found
    assert list(data.replica_manager.known_partitions()) == [found]


@pytest.mark.parametrize(("topic", "index"), [("none", 0), ("t", 2), ("t", -1)])
def test_a_missing_topic_or_partition_is_an_error(data: DataBroker, topic: str, index: int) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        data.replica_manager.partition(topic, index)


def test_an_unknown_id_is_an_error(data: DataBroker) -> None:
    with pytest.raises(UnknownTopicIdError):
        data.replica_manager.partition_by_id(b"\1" * 16, 0)


def test_a_topic_made_again_is_another_one(data: DataBroker) -> None:
    data.append("t", b"old")
    old = data.replica_manager.partition("t", 0)
    delete_topic(data, "t")
    with pytest.raises(UnknownTopicOrPartitionError):
        data.replica_manager.partition("t", 0)
    create_topic(data, "t", 1)
    new = data.replica_manager.partition("t", 0)
    assert new is not old
    assert new.local_log.log_end_offset == 0


def test_configs_reach_open_logs(data: DataBroker) -> None:
    log = data.replica_manager.partition("t", 0).local_log
    data.topics.set_configs("t", {"retention.ms": "1234"})
    assert log.config.retention_ms == 1234


def test_partitions_added_later_are_served(data: DataBroker) -> None:
    wider = data.topics.changes.widen("t", 4)
    while not wider.done:
        data.loop.run_soon()
    assert data.append("t", b"x", partition=3) == 0


def test_many_topics_at_once_do_not_hold_the_loop(data: DataBroker, tmp_path: Path) -> None:
    """Each topic's first log is created at once. Of the others a limited number is created each second, and the rest
    when they are used."""
    data.time.advance(EAGER_WINDOW_MS)
    for name in ("a", "b", "c"):
        create_topic(data, name, EAGER_LOGS)
    assert [len(list(tmp_path.glob(f"{name}-*"))) for name in ("a", "b", "c")] == [EAGER_LOGS, 1, 1]
    assert data.append("b", b"x", partition=1) == 0
    data.time.advance(EAGER_WINDOW_MS)
    create_topic(data, "d", EAGER_LOGS + 1)
    assert len(list(tmp_path.glob("d-*"))) == EAGER_LOGS


def test_all_records_of_a_recovered_log_are_committed(data: DataBroker) -> None:
    data.append("t", b"a", b"b")
    assert data.replica_manager.partition("t", 0).high_watermark == 2


def test_a_log_that_opens_by_itself_has_the_configs_of_now(tmp_path: Path) -> None:
    """Retention opens a log that was not used since the start and whose configs have changed."""
    data = DataBroker(tmp_path)
    create_topic(data, "t", configs={"retention.ms": "1000"})
    data.append("t", b"old")
    data.close()
    data = DataBroker(tmp_path)
    data.topics.set_configs("t", {"retention.ms": "-1"})
    data.time.advance(14 * 86_400_000)
    assert data.log_manager.run_retention(data.time.milliseconds()) == 0
    assert data.replica_manager.partition("t", 0).local_log.log_start_offset == 0
    data.close()


@pytest.mark.parametrize("place", [b"a" * 16, b"b" * 16])
def test_a_member_creates_a_log_in_the_directory_of_the_metadata(tmp_path: Path, place: bytes) -> None:
    """A controller names a directory for a replica of a broker that has registered one alone."""
    data = DataBroker(tmp_path / "a", directories=[str(tmp_path / "a"), str(tmp_path / "b")])
    for directory, one in zip(data.log_manager.directories, (b"a" * 16, b"b" * 16), strict=True):
        directory.directory_id = one
    topic = TopicImage("new", b"n" * 16, (PartitionState((1,), (1,), 1, directories=(place,)),), {}, is_internal=False)
    data.replica_manager.make_logs(topic, [0])()
    assert (tmp_path / place[:1].decode() / "new-0").exists()
    data.close()


def test_a_member_opens_the_other_logs_of_a_topic_if_one_is_refused(
    data: DataBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    partitions = [TopicPartition("new", index) for index in range(3)]
    real = data.log_manager._open

    def refuse_one(partition: TopicPartition, *rest: Any) -> UnifiedLog:
        if partition == partitions[1]:
            raise KafkaStorageError("a bad sector")
        return real(partition, *rest)

    monkeypatch.setattr(data.log_manager, "_open", refuse_one)
    topic = TopicImage("new", b"n" * 16, (PartitionState((1,), (1,), 1),) * 3, {}, is_internal=False)
    data.replica_manager.make_logs(topic, range(3))()
    assert [data.log_manager.is_out_of_service(one) for one in partitions] == [False, True, False]
    assert "1 partitions of new are not served here: a bad sector" in caplog.text
    assert all(data.log_manager.get_log(one) for one in (partitions[0], partitions[2]))


MIGRATING, UNASSIGNED = bytes(16), bytes(15) + b"\1"
"""As Kafka has them (DirectoryId)."""


@pytest.mark.parametrize(
    ("directory_id", "is_coming", "is_made"),
    [
        (UNASSIGNED, True, True),
        (b"a" * 16, True, True),
        (b"b" * 16, True, False),
        (b"c" * 16, True, False),
        (MIGRATING, True, False),
        (UNASSIGNED, False, False),
        (b"a" * 16, False, True),
        (b"b" * 16, False, False),
    ],
)
def test_a_member_with_a_failed_directory_creates_logs_of_new_topics(
    tmp_path: Path, directory_id: bytes, is_coming: bool, is_made: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic is made after the disk failed: its partitions here would have no leader until a restart."""
    data = DataBroker(tmp_path / "a", directories=[str(tmp_path / "a"), str(tmp_path / "b")])
    for directory, one in zip(data.log_manager.directories, (b"a" * 16, b"b" * 16), strict=True):
        directory.directory_id = one
    data.log_manager.directories[1].state.mark_offline(KafkaStorageError("the disk is gone"))
    state = PartitionState((2, 1), (2, 1), 1, directories=(UNASSIGNED, directory_id))
    topic = TopicImage("new", b"n" * 16, (state,), {}, is_internal=False)
    data.replica_manager.make_logs(topic, [0], is_coming=is_coming)()
    assert (tmp_path / "a" / "new-0").exists() is is_made
    assert ("may lie in an offline log directory" in caplog.text) is not is_made
    data.close()
