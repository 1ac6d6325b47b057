"""Start of the logs: which entries of a directory are served, ignored or removed."""

from __future__ import annotations

from pathlib import Path

from tests.support.logs import NOW_MS
from tidelog.log.config import LogConfig
from tidelog.log.directories.entries import Entry, is_unopened
from tidelog.log.directories.log_directory import LogDirectory
from tidelog.log.directories.startup import KnownTopics, find_logs, recover
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.progress import RecoveryProgress
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime

FILES = OsFileSystem()
KNOWN = KnownTopics({"known": LogConfig()}.get, {"known": bytes(range(16))}, {}, {})
PARTITION = TopicPartition("known", 0)


def directory_of(path: Path) -> LogDirectory:
    return LogDirectory(str(path), DirectoryState(str(path)), FILES, None)


def test_known_partitions_are_registered_unknown_ones_reported_and_deleted_ones_removed(tmp_path: Path) -> None:
    for name in ("known-0", "unknown-1", "known-0.abc-delete", "__cluster_metadata-0", "no partition"):
        (tmp_path / name).mkdir()
    environment = LogEnvironment(FILES, ManualTime(NOW_MS))
    entries: dict[TopicPartition, Entry] = {}
    assert find_logs(environment, directory_of(tmp_path), entries, KNOWN) == [TopicPartition("unknown", 1)]
    assert list(entries) == [PARTITION]
    assert entries[PARTITION].topic_id == bytes(range(16))
    assert is_unopened(entries, PARTITION)
    environment.deletions.run()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        "__cluster_metadata-0", "known-0", "no partition", "unknown-1",
    ]  # fmt: skip


def test_a_partition_in_two_directories_is_refused_and_the_others_are_found(tmp_path: Path) -> None:
    environment = LogEnvironment(FILES, ManualTime(NOW_MS))
    entries: dict[TopicPartition, Entry] = {}
    for name in "ab":
        (tmp_path / name / "known-0").mkdir(parents=True)
    (tmp_path / "b" / "known-1").mkdir()
    for name in "ab":
        find_logs(environment, directory_of(tmp_path / name), entries, KNOWN)
    assert {one: entry.error is None for one, entry in entries.items()} == {
        PARTITION: False,
        TopicPartition("known", 1): True,
    }
    paths = f"{tmp_path}/a/known-0, {tmp_path}/b/known-0"
    assert str(entries[PARTITION].error).startswith(f"there are several logs of one partition, {paths}")


def test_the_longest_recovery_begins_first_each_under_its_lock(tmp_path: Path) -> None:
    directory = directory_of(tmp_path)
    pending = []
    for number, size in enumerate((10, 3000, 200)):
        path = tmp_path / f"known-{number}"
        path.mkdir()
        (path / f"{0:020}.log").write_bytes(bytes(size))
        pending.append((TopicPartition("known", number), Entry(directory, str(path), clean=False)))
    begun = []

    def load(partition: TopicPartition, entry: Entry, _progress: RecoveryProgress) -> None:
        assert entry.lock.locked()
        begun.append(partition.partition)

    recover(pending, load, FILES, ManualTime(NOW_MS), 1)
    assert begun == [1, 2, 0]
