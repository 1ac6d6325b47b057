"""The controller of a lone node: committed records are replayed, and kept over restarts and snapshots."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.faulty_file_system import FaultyFileSystem
from tests.support.kafka_directories import format_standalone
from tidelog.broker.controller import embedded
from tidelog.broker.controller.activation import activation_records
from tidelog.broker.controller.embedded import RECORDS_PER_BATCH, EmbeddedController, open_controller
from tidelog.broker.controller.metadata_controller import Publisher
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.log_reader import newest_snapshot, note_deletions, read_batches, read_metadata_log
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.metadata.metadata_log import MetadataLocation, MetadataLog
from tidelog.broker.metadata.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.system.file_system import FileSystem, LogStorageError, OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError, MessageTooLargeError
from tidelog.protocol.metadata_records import records
from tidelog.protocol.metadata_records.control_records import (
    LeaderChangeMessage,
    QuorumVoter,
    decode_control_record,
)

NODE, TOPIC_ID = 1, bytes([1] * 16)


def location_at(directory: Path, file_system: FileSystem | None = None) -> MetadataLocation:
    environment = LogEnvironment(file_system or OsFileSystem(), ManualTime())
    return MetadataLocation(str(directory), DirectoryState(str(directory)), environment)


def start_controller(directory: Path, file_system: FileSystem | None = None) -> EmbeddedController:
    location = location_at(directory, file_system)
    controller = open_controller(location, NODE, ManualTime())
    controller.commit(activation_records(location, controller.image, NODE))
    return controller


def config(value: str | None, name: str = "retention.ms") -> VersionedRecord:
    return VersionedRecord(records.ConfigRecord(resource_type=2, resource_name="orders", name=name, value=value))


def partition_change(**fields: object) -> VersionedRecord:
    change = records.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, **fields)  # type: ignore[arg-type]
    return VersionedRecord(change, 2)


def topic(partitions: int = 1, leader: int = NODE) -> list[VersionedRecord]:
    return [
        VersionedRecord(records.TopicRecord(name="orders", topic_id=TOPIC_ID)),
        *(
            VersionedRecord(
                records.PartitionRecord(
                    partition_id=number, topic_id=TOPIC_ID, replicas=[NODE], isr=[NODE], leader=leader, leader_epoch=0
                )
            )
            for number in range(partitions)
        ),
    ]


def test_a_restart_has_the_committed_image_and_a_later_epoch(tmp_path: Path) -> None:
    first = start_controller(tmp_path)
    first.commit([*topic(), config("5")])
    first.close()
    again = start_controller(tmp_path)
    assert again.image[3:] == first.image[3:]
    assert again.epoch == first.epoch + 1
    again.close()


def test_publishers_see_each_change_in_the_order_they_subscribed(tmp_path: Path) -> None:
    controller, seen = start_controller(tmp_path), []

    def publisher(name: str, delta: MetadataDelta, image: MetadataImage) -> None:
        seen.append((name, delta.configs.changed, image is controller.image))

    for name in ("first", "second"):
        controller.publishers.subscribe(Publisher(name, partial(publisher, name)))
    controller.commit([config("5")])
    change = {(2, "orders"): {"retention.ms": "5"}}
    assert seen == [("first", change, True), ("second", change, True)]
    controller.close()


def test_records_that_contradict_the_image_change_nothing(tmp_path: Path) -> None:
    controller = start_controller(tmp_path)
    before, end = controller.image, controller.end_offset
    with pytest.raises(CorruptMessageError):
        controller.commit([config("5"), VersionedRecord(records.RemoveTopicRecord(topic_id=TOPIC_ID))])
    assert (controller.image, controller.end_offset) == (before, end)
    controller.close()


def test_records_that_exceed_one_batch_are_one_transaction(tmp_path: Path) -> None:
    controller = start_controller(tmp_path)
    controller.commit(topic(RECORDS_PER_BATCH + 1))
    controller.close()
    loaded = read_metadata_log(OsFileSystem(), location_at(tmp_path).path)
    assert len(loaded.image.topics[TOPIC_ID].partitions) == RECORDS_PER_BATCH + 1
    assert loaded.image == controller.image


def configs_at(directory: Path) -> dict[str, str]:
    image = read_metadata_log(OsFileSystem(), location_at(directory).path).image
    return dict(image.configs.get((2, "orders"), {}))


def test_a_kill_within_a_transaction_takes_no_later_commit_along(tmp_path: Path) -> None:
    controller = start_controller(tmp_path)
    controller._append([VersionedRecord(records.BeginTransactionRecord()), config("5")], 0)  # and it is killed
    again = start_controller(tmp_path)
    assert again.image.configs == {}
    again.commit([config("6", "segment.ms")])
    again.sync()  # and it is killed
    assert configs_at(tmp_path) == {"segment.ms": "6"}


class FullAfter:
    """The metadata log's ``append``, of which some calls, given by number, fail as on a full disk."""

    def __init__(
        self, controller: EmbeddedController, refused: set[int], error: type[Exception] = KafkaStorageError
    ) -> None:
        self._append, self._refused, self._calls = controller._log.append, refused, 0
        self._error = error

    def __call__(self, listed: list[VersionedRecord], now_ms: int) -> int:
        self._calls += 1
        if self._calls in self._refused:
            raise self._error("no space left")
        return self._append(listed, now_ms)


@pytest.mark.parametrize("error", [KafkaStorageError, MessageTooLargeError, MemoryError])
@pytest.mark.parametrize("refused", [{1}, {2}, {3}, {4}])
def test_a_transaction_that_cannot_be_appended_leaves_nothing(
    tmp_path: Path, refused: set[int], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = start_controller(tmp_path)
    before = controller.image
    monkeypatch.setattr(type(controller._log), "append", FullAfter(controller, refused, error), raising=True)
    with pytest.raises(error, match="no space left"):
        controller.commit(topic(RECORDS_PER_BATCH + 1))
    assert controller.image is before
    controller.commit([config("5")])
    controller.sync()
    assert configs_at(tmp_path) == {"retention.ms": "5"}


def test_a_transaction_is_aborted_before_the_first_commit_with_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = start_controller(tmp_path)
    controller.commit([config("5")])
    monkeypatch.setattr(type(controller._log), "append", FullAfter(controller, {2, 3, 4}), raising=True)
    with pytest.raises(KafkaStorageError, match="no space left"):
        controller.commit(topic(RECORDS_PER_BATCH + 1))
    controller.sync()  # what was committed before is durable
    take_snapshot(controller)
    with pytest.raises(KafkaStorageError, match="no space left"):
        controller.commit([config("6")])
    assert configs_at(tmp_path) == {"retention.ms": "5"}
    controller.commit([config("7")])
    controller.sync()
    assert configs_at(tmp_path) == {"retention.ms": "7"}
    assert read_metadata_log(OsFileSystem(), location_at(tmp_path).path).image == controller.image


def test_a_start_with_a_full_disk_aborts_the_transaction_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = start_controller(tmp_path)
    controller._append([VersionedRecord(records.BeginTransactionRecord()), config("5")], 0)  # and it is killed
    append = MetadataLog.append

    def refuse(*_: object) -> int:
        raise LogStorageError("write", "segment", errno.ENOSPC)

    monkeypatch.setattr(MetadataLog, "append", refuse)
    again = start_controller(tmp_path)
    monkeypatch.setattr(MetadataLog, "append", append)
    again.commit([config("6", "segment.ms")])
    again.sync()
    assert configs_at(tmp_path) == {"segment.ms": "6"}


def test_deletions_are_remembered_until_they_are_finished(tmp_path: Path) -> None:
    controller = start_controller(tmp_path)
    controller.commit(topic())
    controller.commit([VersionedRecord(records.RemoveTopicRecord(topic_id=TOPIC_ID))])
    controller.close()
    again = start_controller(tmp_path)
    assert again.deletions == {TOPIC_ID: "orders"}
    take_snapshot(again)
    again.close()
    third = start_controller(tmp_path)
    assert third.deletions == {TOPIC_ID: "orders"}
    third.commit([VersionedRecord(records.NoOpRecord(finished_deletions=[TOPIC_ID]))])
    third.close()
    assert start_controller(tmp_path).deletions == {}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_snapshot_within_the_commit_of_a_deletion_has_the_topic_or_the_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A thread takes snapshots: one had neither, and the record of the deletion lay below its end."""
    controller = start_controller(tmp_path)
    controller.commit(topic())

    def take_snapshot_beside(deletions: dict[bytes, str], delta: MetadataDelta) -> None:
        if when == "before":
            take_snapshot(controller)
        note_deletions(deletions, delta)
        if when == "after":
            take_snapshot(controller)

    with monkeypatch.context() as patch:
        patch.setattr(embedded, "note_deletions", take_snapshot_beside)
        controller.commit([VersionedRecord(records.RemoveTopicRecord(topic_id=TOPIC_ID))])
    controller.close()
    again = start_controller(tmp_path)
    assert TOPIC_ID not in again.image.topics
    assert again.deletions == {TOPIC_ID: "orders"}
    again.close()


def take_snapshot(controller: EmbeddedController) -> None:
    assert controller.take_snapshot(min_bytes=0)


def test_a_snapshot_takes_the_place_of_the_log_below_it(tmp_path: Path) -> None:
    controller = start_controller(tmp_path)
    controller.commit([*topic(), config("5")])
    take_snapshot(controller)
    controller.commit([config("6")])
    take_snapshot(controller)
    controller.commit([config("7")])
    controller.close()
    names = OsFileSystem().list_names(location_at(tmp_path).path)
    assert newest_snapshot(names) is not None
    assert len([name for name in names if name.endswith(".checkpoint")]) == 1
    again = start_controller(tmp_path)
    assert again.image[3:] == controller.image[3:]
    again.close()


def credential_record(name: str) -> VersionedRecord:
    credential = records.UserScramCredentialRecord(
        name=name, mechanism=1, salt=b"s", stored_key=b"k", server_key=b"k", iterations=4096
    )
    return VersionedRecord(credential)


def test_a_removed_user_is_in_no_log_that_kafka_may_replay(tmp_path: Path) -> None:
    """If one replay removes a user of a mechanism, Kafka also loses users of that mechanism that stay."""
    controller = start_controller(tmp_path)
    controller.commit([credential_record("ann")])
    assert not controller.take_snapshot()
    controller.commit([VersionedRecord(records.RemoveUserScramCredentialRecord(name="ann", mechanism=1))])
    controller.commit([credential_record("bob")])
    assert controller.take_snapshot()
    assert not controller.take_snapshot()
    controller.commit(
        [VersionedRecord(records.RemoveUserScramCredentialRecord(name="bob", mechanism=1)), credential_record("cid")]
    )
    controller.close()
    location = location_at(tmp_path).path
    for name in OsFileSystem().list_names(location):
        if name.endswith(".log"):
            assert list(read_batches(OsFileSystem(), f"{location}/{name}")) == []
    assert [key for key, _ in read_metadata_log(OsFileSystem(), location).image.scram] == ["cid"]


def feature_level_record(name: str, number: int) -> VersionedRecord:
    return VersionedRecord(records.FeatureLevelRecord(name=name, feature_level=number))


REMOVAL = VersionedRecord(records.RemoveUserScramCredentialRecord(name="ann", mechanism=1))


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ([credential_record("ann")], REMOVAL),
        ([], feature_level_record("streams.version", 0)),
        ([], feature_level_record("transaction.version", 1)),
    ],
    ids=["user", "feature", "lower level"],
)
def test_a_log_that_kafka_may_not_replay_gets_a_snapshot_after_a_kill_too(
    tmp_path: Path, before: list[VersionedRecord], change: VersionedRecord
) -> None:
    controller = start_controller(tmp_path)
    controller.commit(before)
    assert not controller.take_snapshot()
    controller.commit([change])
    controller.sync()  # and it is killed
    again = start_controller(tmp_path)
    assert again.take_snapshot()
    assert not again.take_snapshot()
    again.close()
    third = start_controller(tmp_path)
    assert third.image.features == again.image.features
    assert not third.take_snapshot()
    third.close()


def test_a_snapshot_that_fails_is_still_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a log that Kafka may replay wrongly stays without a snapshot until it has grown by 20 MB."""
    controller = start_controller(tmp_path)
    controller.commit([credential_record("ann")])
    controller.commit([REMOVAL])
    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "write_snapshot", refuse_snapshot)
        with pytest.raises(KafkaStorageError):
            controller.take_snapshot()
    assert controller.take_snapshot()
    controller.close()


def refuse_snapshot(*_: object) -> NoReturn:
    raise KafkaStorageError("no space left on the device")


def test_a_failed_sync_fails_all_later_commits(tmp_path: Path) -> None:
    disk = FaultyFileSystem(str(tmp_path))
    controller = start_controller(tmp_path, disk)
    controller.commit([config("5")])
    controller.commit([config("6")])
    disk.fail_at[len(disk.calls)] = 5
    with pytest.raises(KafkaStorageError):
        controller.sync()
    for _ in range(2):
        with pytest.raises(KafkaStorageError, match="accepts no records until a restart"):
            controller.commit([config("7")])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EMFILE, errno.EACCES], ids=errno.errorcode.get)
def test_a_sync_that_lacked_space_descriptors_or_permission_is_repeated(tmp_path: Path, code: int) -> None:
    """Any call before the sync itself may fail: nothing is lost by then."""
    disk = FaultyFileSystem(str(tmp_path))
    controller = start_controller(tmp_path, disk)
    begin = len(disk.calls)
    controller.sync()
    syncing = [operation for operation, _ in disk.calls[begin:]]
    assert set(syncing) > {"sync"}
    for failing in (number for number, operation in enumerate(syncing) if operation != "sync"):
        directory = tmp_path / str(failing)
        directory.mkdir()
        disk = FaultyFileSystem(str(directory))
        controller = start_controller(directory, disk)
        controller.commit([config("5")])
        disk.fail_at[len(disk.calls) + failing] = code
        with pytest.raises(KafkaStorageError):
            controller.sync()
        controller.commit([config("6")])
        controller.sync()
        disk.crash()
        again = start_controller(directory, disk)
        assert again.image.configs[2, "orders"]["retention.ms"] == "6"
        again.close()


def test_this_node_is_elected_where_it_does_not_lead(tmp_path: Path) -> None:
    controller = start_controller(tmp_path)
    controller.commit(topic(2, leader=-1))
    controller.close()
    again = start_controller(tmp_path)
    states = again.image.topics[TOPIC_ID].partitions
    assert [(state.leader, state.leader_epoch, state.isr) for state in states] == [(NODE, 1, (NODE,))] * 2
    again.close()


@pytest.mark.parametrize("has_elected", [False, True], ids=["stopped", "elected by a release that kept them"])
def test_no_eligible_leader_replica_is_left_outside_the_isr(tmp_path: Path, has_elected: bool) -> None:
    """Kafka 4.3 leaves a stopped node in them, and says so as an error where it finds one in both."""
    controller = start_controller(tmp_path)
    left = partition_change(leader=-1, isr=[], eligible_leader_replicas=[NODE], last_known_elr=[NODE])
    controller.commit([*topic(), left, *([partition_change(leader=NODE, isr=[NODE])] if has_elected else [])])
    controller.close()
    again = start_controller(tmp_path)
    (state,) = again.image.topics[TOPIC_ID].partitions
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (NODE, (NODE,), (), ())
    end = again.end_offset
    again.close()
    third = start_controller(tmp_path)
    assert third.end_offset - end <= 1, "a leader's change alone: nothing is elected twice"
    third.close()


@settings(max_examples=25)
@given(steps=st.lists(st.sampled_from(["commit", "snapshot", "restart"]), max_size=12))
def test_any_order_of_commits_snapshots_and_restarts_keeps_all(
    steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("metadata")
    controller = start_controller(directory)
    for number, step in enumerate(steps):
        if step == "commit":
            controller.commit([config(str(number), f"key{number % 3}")])
        elif step == "snapshot":
            take_snapshot(controller)
        else:
            controller.close()
            controller = start_controller(directory)
    expected = {f"key{number % 3}": str(number) for number, step in enumerate(steps) if step == "commit"}
    assert controller.image.configs.get((2, "orders"), {}) == expected
    controller.close()


@settings(max_examples=15)
@given(steps=st.lists(st.sampled_from(["commit", "snapshot", "restart"]), max_size=8))
def test_voters_that_the_log_names_stay(steps: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("standalone")
    voters = format_standalone(directory, NODE)
    controller = start_controller(directory)
    for number, step in enumerate(steps):
        if step == "commit":
            controller.commit([config(str(number))])
        elif step == "snapshot":
            take_snapshot(controller)
        else:
            controller.close()
            controller = start_controller(directory)
    controller.close()
    assert read_metadata_log(OsFileSystem(), location_at(directory).path).voters == voters


def test_the_leader_change_record_has_the_version_that_kafka_reads(tmp_path: Path) -> None:
    format_standalone(tmp_path, NODE)
    start_controller(tmp_path).close()
    batches = read_batches(OsFileSystem(), f"{location_at(tmp_path).path}/{0:020d}.log")
    change = decode_control_record(next(next(batches).records()))
    assert isinstance(change, LeaderChangeMessage)
    assert (change.version, change.voters) == (0, [QuorumVoter(voter_id=NODE)])


@pytest.mark.parametrize("version", [0, 1])
def test_the_quorum_state_keeps_its_version(tmp_path: Path, version: int) -> None:
    start_controller(tmp_path).close()
    location = location_at(tmp_path).path
    write_quorum_state(OsFileSystem(), location, QuorumState(NODE, 7, (NODE,) if not version else (), version=version))
    start_controller(tmp_path).close()
    expected = QuorumState(NODE, 8, (NODE,) if not version else (), version=version)
    assert read_quorum_state(OsFileSystem(), location) == expected


@pytest.mark.parametrize(
    "content",
    [b"", b"[" * 60_000, b"[]", b'{"leaderId": Infinity, "leaderEpoch": 1}', b'{"currentVoters": [1]}'],
    ids=range(5),
)
def test_a_damaged_quorum_state_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "quorum-state").write_bytes(content)
    with pytest.raises(KafkaStorageError, match="quorum-state is not a valid quorum state"):
        read_quorum_state(OsFileSystem(), str(tmp_path))


def test_another_thread_may_sync_and_take_snapshots(tmp_path: Path) -> None:
    controller = start_controller(tmp_path)
    controller.commit([*topic(), VersionedRecord(records.RemoveTopicRecord(topic_id=TOPIC_ID))])
    with ThreadPoolExecutor(1) as threads:
        threads.submit(controller.sync).result()
        assert threads.submit(controller.take_snapshot, 0).result()
    controller.close()
    again = start_controller(tmp_path)
    assert again.deletions == {TOPIC_ID: "orders"}
    again.close()
