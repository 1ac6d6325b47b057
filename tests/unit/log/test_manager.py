"""LogManager: lazy opening, recovery, deletion, checkpoints, strays."""

from __future__ import annotations

import errno
import os
from collections import deque
from pathlib import Path

import pytest

from tests.support.logs import NOW_MS, append, batch, values
from tidelog.log.config import LogConfig
from tidelog.log.files.checkpoints import (
    LOG_START_OFFSET_FILE,
    PARTITION_METADATA_FILE,
    REPLICATION_OFFSET_FILE,
    read_offset_checkpoint,
    read_partition_metadata,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager, count_failures
from tidelog.log.system.file_system import FileEntry, LogStorageError, OpenFile, OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import InconsistentTopicIdError, KafkaStorageError

CONFIG = LogConfig({"segment.bytes": 2000, "file.delete.delay.ms": 60_000})
INDEXED = LogConfig({"segment.bytes": 2000, "index.interval.bytes": 0})
T0, T1 = TopicPartition("topic-with-dashes", 0), TopicPartition("topic-with-dashes", 1)
ID = bytes(range(16))


def manager_of(path: Path, time: ManualTime | None = None) -> LogManager:
    manager = LogManager([str(path)], OsFileSystem(), time or ManualTime(NOW_MS), CONFIG)
    manager.startup()
    return manager


def test_unknown_partition_is_none(tmp_path: Path) -> None:
    assert manager_of(tmp_path).get_log(T0) is None


def test_clean_restart_opens_lazily_and_serves(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    for partition in (T0, T1):
        append(manager.get_or_create_log(partition, ID, CONFIG), batch(3))
    manager.shutdown()
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    again = manager_of(tmp_path)
    assert list(again.open_logs()) == []
    assert again.partitions() == [T0, T1]
    log = again.get_log(T1)
    assert log is not None
    assert (log.log_end_offset, log.recovery_point, log.topic_id) == (3, 3, ID)
    assert list(again.open_logs()) == [log]
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def write_indexed_log(directory: Path) -> None:
    """Write a log of ten batches with an index entry for each, and stop cleanly."""
    manager = manager_of(directory)
    log = manager.get_or_create_log(T0, ID, INDEXED)
    for _ in range(10):
        append(log, batch(3))
    manager.shutdown()


def test_a_log_at_rest_holds_one_descriptor(tmp_path: Path) -> None:
    """With three descriptors for each log, 10,000 logs exceeded a limit of 20,000 open files."""
    write_indexed_log(tmp_path)
    again = manager_of(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    log = again.get_or_create_log(T0, ID, CONFIG)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert log.segments.active.offset_index.entries == 9
    assert len(values(log)) == 30


def test_retention_leaves_a_log_one_descriptor(tmp_path: Path) -> None:
    """To read the largest timestamp, retention once opened both indices of each log that was at rest since the
    start."""
    write_indexed_log(tmp_path)
    again = manager_of(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    log = again.get_or_create_log(T0, ID, INDEXED)
    for _ in range(2):
        log.update_high_watermark(log.log_end_offset)
        assert again.run_retention(NOW_MS) == 0
        assert len(os.listdir("/proc/self/fd")) == before + 1
        append(log, batch(3))
    assert log.segments.active.offset_index.entries == 11
    assert len(values(log)) == 36


@pytest.mark.parametrize("saves_epochs", [True, False])
def test_an_opening_removes_an_epoch_without_records_and_saves_that_at_once_or_later(
    tmp_path: Path, saves_epochs: bool
) -> None:
    manager = manager_of(tmp_path)
    log = manager.get_or_create_log(T0, ID, CONFIG)
    append(log, batch(3))
    log.leader_epochs.assign(0, 0)
    log.leader_epochs.assign(7, 3)
    manager.shutdown()
    epochs = manager_of(tmp_path).get_or_create_log(T0, ID, CONFIG, saves_epochs=saves_epochs).leader_epochs
    file = tmp_path / T0.directory_name / "leader-epoch-checkpoint"
    assert (epochs.latest_epoch, epochs.is_unsaved) == (0, not saves_epochs)
    assert file.read_bytes() == (b"0\n1\n0 0\n" if saves_epochs else b"0\n2\n0 0\n7 3\n")
    epochs.save()
    assert file.read_bytes() == b"0\n1\n0 0\n"


def test_a_new_log_is_listed_as_placed_once_its_directory_is_known(tmp_path: Path) -> None:
    """The loop's thread takes it from the list at once, and only once, to report its directory to the metadata."""
    manager = LogManager([str(tmp_path / "a"), str(tmp_path / "b")], OsFileSystem(), ManualTime(NOW_MS), CONFIG)
    manager.startup()
    for directory in manager.directories:
        directory.directory_id = ID
    seen = []

    class Placed(deque[TopicPartition]):
        def append(self, partition: TopicPartition) -> None:
            seen.append((partition, manager.directory_id_of(partition)))

    manager.placed = Placed()
    for partition in (T0, T1, T0):
        manager.get_or_create_log(partition, ID, CONFIG)
    assert seen == [(T0, ID), (T1, ID)]


@pytest.mark.parametrize(
    ("cordoned", "expected"), [([], ["a", "b"]), (["a"], ["b", "b"]), (["a", "b"], ["a", "b"])], ids=len
)
def test_no_log_is_made_in_a_cordoned_directory_while_there_is_another(
    tmp_path: Path, cordoned: list[str], expected: list[str]
) -> None:
    manager = LogManager([str(tmp_path / "a"), str(tmp_path / "b")], OsFileSystem(), ManualTime(NOW_MS), CONFIG)
    manager.startup()
    manager.cordon(str(tmp_path / name) for name in cordoned)
    logs = [manager.get_or_create_log(partition, ID, CONFIG) for partition in (T0, T1)]
    assert [Path(log.directory).parent.name for log in logs] == expected
    manager.cordon([])
    assert manager.get_log(T0) is logs[0]


class RenameFails(OsFileSystem):
    """Renames fail while ``is_broken``."""

    is_broken = False

    def rename(self, source: str, target: str) -> None:
        if self.is_broken:
            raise LogStorageError("rename", source, errno.EIO)
        super().rename(source, target)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_log_that_could_not_be_deleted_is_replaced_by_a_new_one(
    tmp_path: Path, *, is_open: bool, is_new: bool
) -> None:
    files = RenameFails()
    manager = LogManager([str(tmp_path)], files, ManualTime(NOW_MS), CONFIG)
    manager.startup()
    append(manager.get_or_create_log(T0, ID, CONFIG), batch(3))
    if not is_open:
        manager.shutdown()
        manager = LogManager([str(tmp_path)], files, ManualTime(NOW_MS), CONFIG)
        manager.startup()
    files.is_broken = True
    with pytest.raises(KafkaStorageError):
        manager.delete_log(T0)
    other = bytes(16 * [7])
    with pytest.raises(KafkaStorageError):
        manager.get_or_create_log(T0, other, CONFIG, is_new=is_new)
    assert list(manager.refused) == [T0]
    files.is_broken = False
    log = manager.get_or_create_log(T0, other, CONFIG, is_new=is_new)
    append(log, batch(1))
    assert (log.log_end_offset, log.topic_id, manager.refused) == (1, other, {})


def test_unclean_restart_recovers(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    log = manager.get_or_create_log(T0, ID, CONFIG)
    for _ in range(50):
        append(log, batch(1))
    again = manager_of(tmp_path)
    recovered = again.get_log(T0)
    assert recovered is not None
    assert recovered.log_end_offset == 50


class NoDescriptors(OsFileSystem):
    """Opening files fails while ``code`` is set."""

    code = 0

    def open_file(self, path: str, *, create: bool = False, writable: bool = True) -> OpenFile:
        if self.code and path.endswith(".log"):
            raise LogStorageError("open", path, self.code)
        return super().open_file(path, create=create, writable=writable)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EDQUOT])
def test_a_log_refused_for_now_is_tried_again(tmp_path: Path, code: int) -> None:
    manager = manager_of(tmp_path)
    append(manager.get_or_create_log(T0, ID, CONFIG), batch(3))
    disk = NoDescriptors()
    disk.code = code
    again = LogManager([str(tmp_path)], disk, ManualTime(NOW_MS), CONFIG)
    again.startup()
    for _ in range(2):
        with pytest.raises(LogStorageError):
            again.get_log(T0)
        with pytest.raises(LogStorageError):
            again.get_or_create_log(T0, ID, CONFIG)
    again.room.run()
    assert list(again.refused) == [T0]
    assert again.is_out_of_service(T0)
    disk.code = 0
    again.room.run()
    assert again.refused == {}
    assert not again.is_out_of_service(T0)
    assert list(again.environment.service_changes) == [T0, T0]
    log = again.get_log(T0)
    assert log is not None
    assert len(values(log)) == 3


def test_a_log_that_fails_is_out_of_service_until_it_is_deleted(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    log = manager.get_or_create_log(T0, ID, CONFIG)
    assert not manager.is_out_of_service(T0)
    log.take_out_of_service(KafkaStorageError("a bad sector"))
    assert manager.is_out_of_service(T0)
    assert list(manager.environment.service_changes) == [T0]
    assert count_failures(manager) == 1
    log.abandon()
    assert not manager.is_out_of_service(T0), "it is being deleted"
    manager.delete_log(T0)
    assert not manager.is_out_of_service(T0)
    manager.directories[0].state.mark_offline(KafkaStorageError("the disk is gone"))
    assert count_failures(manager) == 2


def test_of_two_logs_of_one_partition_none_is_served_and_a_deletion_removes_both(tmp_path: Path) -> None:
    """It is not known which log has all committed records. The other partitions of both directories are served."""
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        append(manager_of(Path(path)).get_or_create_log(T0, ID, CONFIG), batch(5))
    append(manager_of(Path(paths[1])).get_or_create_log(T1, ID, CONFIG), batch(3))
    manager = LogManager(paths, OsFileSystem(), ManualTime(NOW_MS), CONFIG)
    manager.startup()
    assert all(directory.is_online for directory in manager.directories)
    assert manager.get_or_create_log(T1, ID, CONFIG).log_end_offset == 3
    for _ in range(2):
        with pytest.raises(KafkaStorageError, match=f"several logs of one partition, {paths[0]}/.*, {paths[1]}/"):
            manager.get_or_create_log(T0, ID, CONFIG)
        assert manager.is_out_of_service(T0)
        manager.room.try_refused_again()
    manager.delete_log(T0)
    assert not any(Path(path, T0.directory_name).exists() for path in paths)
    assert manager.get_or_create_log(T0, bytes(16), CONFIG).log_end_offset == 0


def test_deleted_name_is_free_at_once(tmp_path: Path) -> None:
    time = ManualTime(NOW_MS)
    manager = manager_of(tmp_path, time)
    old = manager.get_or_create_log(T0, ID, CONFIG)
    append(old, batch(5))
    assert manager.delete_log(T0)
    assert not manager.delete_log(T0)
    new = manager.get_or_create_log(T0, bytes(16), CONFIG)
    assert (new.log_end_offset, new.topic_id) == (0, bytes(16))
    with pytest.raises(KafkaStorageError):
        append(old, batch(1))
    assert any(name.endswith("-delete") for name in os.listdir(tmp_path))
    time.advance(60_001)
    manager.run_retention(time.milliseconds())
    assert not any(name.endswith("-delete") for name in os.listdir(tmp_path))
    assert manager.get_log(T0) is new


def test_deleted_directories_are_removed_after_the_next_start(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    manager.get_or_create_log(T0, ID, CONFIG)
    manager.delete_log(T0)
    assert any(name.endswith("-delete") for name in os.listdir(tmp_path))
    again = manager_of(tmp_path)
    again.run_retention(NOW_MS)
    assert not any(name.endswith("-delete") for name in os.listdir(tmp_path))


def test_another_topics_directory_is_refused(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    manager.get_or_create_log(T0, ID, CONFIG)
    manager.shutdown()
    with pytest.raises(InconsistentTopicIdError):
        manager_of(tmp_path).get_or_create_log(T0, bytes(16), CONFIG)


@pytest.mark.parametrize("damaged", [b"", b"version: 0\ntopic_", b"version: 0\ntopic_id: ?", bytes(40)])
def test_partition_metadata_that_a_power_loss_damaged_is_written_again(tmp_path: Path, damaged: bytes) -> None:
    manager = manager_of(tmp_path)
    append(manager.get_or_create_log(T0, ID, CONFIG), batch(3))
    manager.flush_dirty_logs()
    (tmp_path / T0.directory_name / PARTITION_METADATA_FILE).write_bytes(damaged)
    again = LogManager([str(tmp_path)], OsFileSystem(), ManualTime(NOW_MS), CONFIG)
    again.startup({T0.topic: CONFIG}, topic_ids={T0.topic: ID})
    log = again.get_or_create_log(T0, ID, CONFIG)
    assert (log.log_end_offset, log.topic_id, dict(again.refused)) == (3, ID, {})
    assert read_partition_metadata(OsFileSystem(), str(tmp_path / T0.directory_name)) == ID


def test_log_start_offset_survives_a_kill(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    log = manager.get_or_create_log(T0, ID, CONFIG)
    append(log, batch(5))
    log.maybe_increment_log_start_offset(3)
    manager.checkpoint_log_start_offsets()
    again = manager_of(tmp_path).get_log(T0)
    assert again is not None
    assert again.log_start_offset == 3


def test_a_start_offset_stays_written_when_the_segments_below_it_are_gone(tmp_path: Path) -> None:
    """A power loss may bring back some of their names, which must not look like a gap."""
    manager = manager_of(tmp_path)
    log = manager.get_or_create_log(T0, ID, CONFIG)
    append(log, batch(5))
    log.roll()
    append(log, batch(5))
    log.maybe_increment_log_start_offset(5)
    assert log.delete_old_segments(0) == 1
    manager.checkpoint_log_start_offsets()
    assert read_offset_checkpoint(OsFileSystem(), str(tmp_path / LOG_START_OFFSET_FILE))[T0] == 5


def test_checkpoints_have_the_bytes_of_kafkas(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    log = manager.get_or_create_log(T0, ID, CONFIG)
    append(log, batch(5))
    log.flush()
    manager.checkpoint_recovery_points()
    manager.checkpoint_high_watermarks()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == f"0\n1\n{T0.topic} 0 5\n"
    assert (tmp_path / "replication-offset-checkpoint").read_text() == f"0\n1\n{T0.topic} 0 5\n"


def test_a_high_watermark_above_the_recovered_end_is_lowered_in_its_file(tmp_path: Path) -> None:
    """Otherwise the next records would count as committed after a second stop, once they reach the old offset."""
    manager = manager_of(tmp_path)
    log = manager.get_or_create_log(T0, ID, CONFIG)
    append(log, batch(5))
    log.abandon()
    (tmp_path / "replication-offset-checkpoint").write_text(f"0\n1\n{T0.topic} 0 9\n")
    manager_of(tmp_path)
    assert (tmp_path / "replication-offset-checkpoint").read_text() == f"0\n1\n{T0.topic} 0 5\n"


class CheckpointFails(OsFileSystem):
    """A file system in which the checkpoint ``path`` cannot be written."""

    def __init__(self, path: Path, reason: int) -> None:
        super().__init__()
        self._path = str(path)
        self._reason = reason

    def open_file(self, path: str, *, create: bool = False, writable: bool = True) -> OpenFile:
        if path.startswith(self._path) and create:
            raise LogStorageError("open", path, self._reason)
        return super().open_file(path, create=create, writable=writable)


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EIO])
def test_a_start_after_a_kill_needs_no_free_space_for_lower_high_watermarks(tmp_path: Path, reason: int) -> None:
    """The broker serves the logs and writes these high watermarks later; other directories have theirs at once."""
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, partition in zip(paths, (T0, T1), strict=True):
        append(manager_of(path).get_or_create_log(partition, ID, CONFIG), batch(5))
        (path / REPLICATION_OFFSET_FILE).write_text(f"0\n1\n{partition.topic} {partition.partition} 9\n")
    files = CheckpointFails(paths[0] / REPLICATION_OFFSET_FILE, reason)
    manager = LogManager([str(path) for path in paths], files, ManualTime(NOW_MS), CONFIG)
    manager.startup()
    for partition in (T0, T1):
        log = manager.get_log(partition)
        assert log is not None
        assert log.high_watermark == 5
    written = read_offset_checkpoint(OsFileSystem(), str(paths[1] / REPLICATION_OFFSET_FILE))
    assert written == {T1: 5}


def test_a_full_directory_keeps_no_other_from_making_its_log_starts_durable(tmp_path: Path) -> None:
    """Retention deletes segments also while one disk is full. Without a durable log start, a power loss would leave a
    gap in the logs of the other directory."""
    paths = [tmp_path / "a", tmp_path / "b"]
    files = CheckpointFails(paths[0] / LOG_START_OFFSET_FILE, errno.ENOSPC)
    manager = LogManager([str(path) for path in paths], files, ManualTime(NOW_MS), CONFIG)
    manager.startup()
    for partition in (T0, T1):
        log = manager.get_or_create_log(partition, ID, CONFIG)
        for _ in range(50):
            append(log, batch(1))
        log.update_high_watermark(50)
        log.maybe_increment_log_start_offset(40)
    assert manager.run_retention(NOW_MS) >= 2
    kept = {
        one.topic_partition: one.segments.first.base_offset
        for one in manager.open_logs()
        if str(paths[1]) in one.directory
    }
    assert kept
    written = read_offset_checkpoint(OsFileSystem(), str(paths[1] / LOG_START_OFFSET_FILE))
    assert written == dict.fromkeys(kept, 40)
    assert all(kept.values())


def test_logs_of_unknown_topics_are_reported_and_left(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    append(manager.get_or_create_log(T0, ID, CONFIG), batch(5))
    manager.shutdown()
    again = LogManager([str(tmp_path)], OsFileSystem(), ManualTime(NOW_MS), CONFIG)
    assert again.startup({}) == [T0]
    assert again.get_log(T0) is None
    assert (tmp_path / T0.directory_name).is_dir()


def test_retention_includes_unopened_logs(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    for partition in (T0, T1):
        log = manager.get_or_create_log(partition, ID, CONFIG)
        for _ in range(50):
            append(log, batch(1))
    manager.shutdown()
    again = manager_of(tmp_path)
    assert again.run_retention(NOW_MS + 1) == 0
    assert list(again.open_logs()) == []
    later = manager_of(tmp_path, ManualTime(NOW_MS + 10 * 7 * 86_400_000))
    assert later.run_retention(NOW_MS + 10 * 7 * 86_400_000) > 2


@pytest.mark.parametrize("commits_alone", [True, False])
def test_retention_of_a_member_stops_at_the_high_watermark(tmp_path: Path, *, commits_alone: bool) -> None:
    """A log must not begin after what other replicas have: one of them may lead next."""
    manager = manager_of(tmp_path)
    log = manager.get_or_create_log(T0, ID, CONFIG)
    for _ in range(50):
        append(log, batch(1))
    log.update_high_watermark(30)
    manager.shutdown()
    later = ManualTime(NOW_MS + 10 * 7 * 86_400_000)
    again = LogManager([str(tmp_path)], OsFileSystem(), later, CONFIG, commits_alone=commits_alone)
    again.startup()
    again.run_retention(later.milliseconds())
    found = again.get_log(T0)
    assert found is not None
    assert (found.log_start_offset <= 30) is not commits_alone
    assert found.log_start_offset > 0


def test_retention_removes_only_segments_below_the_durable_log_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeleteRecords moves the log start in the meantime: a power loss that undid some renames would leave a gap."""
    manager = manager_of(tmp_path)
    log = manager.get_or_create_log(T0, ID, CONFIG)
    for _ in range(200):
        append(log, batch(1))
    log.update_high_watermark(200)
    first, later = log.segments[1].base_offset, log.segments[3].base_offset
    log.maybe_increment_log_start_offset(first)
    write = manager.checkpoint_log_start_offsets

    def write_and_move() -> None:
        write()
        log.maybe_increment_log_start_offset(later)

    monkeypatch.setattr(manager, "checkpoint_log_start_offsets", write_and_move)
    assert manager.run_retention(NOW_MS) == 1
    assert log.segments.first.base_offset == first
    assert manager.run_retention(NOW_MS) == 2
    assert log.segments.first.base_offset == later


def test_rolled_segments_are_flushed(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    log = manager.get_or_create_log(T0, ID, CONFIG)
    for _ in range(50):
        append(log, batch(1))
    manager.flush_dirty_logs()
    assert log.recovery_point == log.segments.active.base_offset > 0
    assert values(log) == values(log, 0)


def test_flush_ms(tmp_path: Path) -> None:
    time = ManualTime(NOW_MS)
    manager = manager_of(tmp_path, time)
    log = manager.get_or_create_log(T0, ID, LogConfig({"flush.ms": 1000}))
    append(log, batch(1))
    manager.flush_dirty_logs()
    assert log.recovery_point == 0
    time.advance(1000)
    manager.flush_dirty_logs()
    assert log.recovery_point == 1


def test_damaged_checkpoint_means_recovery_not_refusal(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    append(manager.get_or_create_log(T0, ID, CONFIG), batch(5))
    manager.shutdown()
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(b"nonsense")
    log = manager_of(tmp_path).get_log(T0)
    assert log is not None
    assert log.log_end_offset == 5


def test_directory_that_cannot_be_made_is_offline_and_the_other_serves(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    paths = [str(tmp_path / "file" / "below"), str(tmp_path / "good")]
    manager = LogManager(paths, OsFileSystem(), ManualTime(NOW_MS), CONFIG)
    manager.startup()
    append(manager.get_or_create_log(T0, ID, CONFIG, is_new=True), batch(1))
    assert [d.failure is None for d in manager.describe()] == [False, True]
    with pytest.raises(KafkaStorageError, match="no log directory works"):
        LogManager(paths[:1], OsFileSystem(), ManualTime(NOW_MS), CONFIG).startup()


def test_sizes_are_described_without_opening(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    log = manager.get_or_create_log(T0, ID, CONFIG)
    append(log, batch(5))
    size = log.size_bytes
    manager.shutdown()
    again = manager_of(tmp_path)
    (description,) = again.describe()
    assert description.sizes == {T0: size}
    assert description.total_bytes > description.usable_bytes > 0
    assert list(again.open_logs()) == []


class NoSecondLook(OsFileSystem):
    """A file system that fails the test if ``partition.metadata`` is read."""

    def read_file(self, path: str) -> bytes:
        assert not path.endswith(PARTITION_METADATA_FILE)
        return super().read_file(path)


def test_topic_ids_that_were_read_already_are_not_read_again(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    append(manager.get_or_create_log(T0, ID, CONFIG), batch(3))
    manager.get_or_create_log(T1, ID, CONFIG)
    manager.shutdown()
    again = LogManager([str(tmp_path)], NoSecondLook(), ManualTime(NOW_MS), CONFIG)
    found = {str(tmp_path / partition.directory_name): ID for partition in (T0, T1)}
    again.startup({T0.topic: CONFIG}, topic_ids={T0.topic: ID}, found_ids=found)
    assert again.get_or_create_log(T0, ID, CONFIG).topic_id == ID
    with pytest.raises(InconsistentTopicIdError):
        again.get_or_create_log(T1, bytes(16), CONFIG)


def test_a_topic_id_that_was_found_is_not_that_of_a_log_made_later(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    append(manager.get_or_create_log(T0, ID, CONFIG), batch(3))
    manager.shutdown()
    again = LogManager([str(tmp_path)], OsFileSystem(), ManualTime(NOW_MS), CONFIG)
    again.startup({T0.topic: CONFIG}, topic_ids={T0.topic: ID}, found_ids={str(tmp_path / T0.directory_name): ID})
    assert again.delete_log(T0)
    new = again.get_or_create_log(T0, bytes(16), CONFIG, is_new=True)
    assert new.topic_id == bytes(16)
    assert read_partition_metadata(OsFileSystem(), new.directory) == bytes(16)


def test_partition_deleted_while_sizes_are_described_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(tmp_path)
    for partition in (T0, T1):
        append(manager.get_or_create_log(partition, ID, CONFIG), batch(5))
    manager.shutdown()
    again = manager_of(tmp_path)
    list_directory = OsFileSystem.list_directory

    def delete_first(self: OsFileSystem, path: str) -> list[FileEntry]:
        if path.endswith(T0.directory_name):
            again.delete_log(T0)
        return list_directory(self, path)

    monkeypatch.setattr(OsFileSystem, "list_directory", delete_first)
    (description,) = again.describe()

    assert list(description.sizes) == [T1]


class Unlistable(OsFileSystem):
    """A file system on which the directory of ``T0`` cannot be listed."""

    def list_directory(self, path: str) -> list[FileEntry]:
        if path.endswith(T0.directory_name):
            raise LogStorageError("list", path, errno.EIO)
        return super().list_directory(path)


def test_a_partition_that_cannot_be_listed_hides_no_other_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = manager_of(tmp_path)
    for partition in (T0, T1):
        append(manager.get_or_create_log(partition, ID, CONFIG), batch(5))
    manager.shutdown()
    again = LogManager([str(tmp_path)], Unlistable(), ManualTime(NOW_MS), CONFIG)
    again.startup()

    (description,) = again.describe()

    assert list(description.sizes) == [T1]
    assert description.total_bytes > 0
    assert f"the size of {T0} cannot be read" in caplog.text
