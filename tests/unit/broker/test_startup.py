from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.errors import StartError
from tidelog.broker.metadata.image import UNASSIGNED_DIRECTORY
from tidelog.broker.startup import ClaimedDirectories, claim_directories, claim_directory, log_manager_of
from tidelog.log.config import LogConfig
from tidelog.log.files.checkpoints import read_meta_properties
from tidelog.log.system.file_system import FileSystem, LogStorageError, OpenFile, OsFileSystem
from tidelog.log.system.time import ManualTime

CLUSTER = "5L6g3nShT-eMCtK--X86sw"
OTHER = "MkU3OEVBNTcwNTJENDM2Qg"


def config(directory: Path, **texts: str) -> BrokerConfig:
    given = {key.replace("_", "."): value for key, value in texts.items()}
    return BrokerConfig({"log.dirs": str(directory), **given})


def test_a_directory_is_claimed_once(tmp_path: Path) -> None:
    file_system = OsFileSystem()
    directory = str(tmp_path / "data")
    lock = claim_directory(file_system, directory)
    with pytest.raises(StartError, match=f"in use by process {os.getpid()}"):
        claim_directory(file_system, directory)
    lock.close()
    claim_directory(file_system, directory).close()


def claim(config: BrokerConfig, file_system: FileSystem | None = None) -> ClaimedDirectories:
    """Claim the directories, and give them back at once. Returns what was found."""
    claimed = claim_directories(file_system or OsFileSystem(), config)
    for lock in claimed.locks:
        lock.close()
    return claimed


def test_a_new_directory_gets_an_identity_that_stays(tmp_path: Path) -> None:
    first = claim(config(tmp_path)).cluster_id
    assert claim(config(tmp_path)).cluster_id == first
    assert f"cluster.id={first}" in (tmp_path / "meta.properties").read_text()


def test_new_partitions_are_in_the_only_directory(tmp_path: Path) -> None:
    """Kafka's controller assigns the only directory too; of several, the broker tells later which one it chose."""
    one, two = tmp_path / "one", f"{tmp_path}/one,{tmp_path}/two"
    claimed = [claim(config(one)), claim(config(one)), claim(config(Path(two)))]
    found = read_meta_properties(OsFileSystem(), str(one))
    assert found is not None
    assert [each.default_directory for each in claimed] == [
        found.directory_id,
        found.directory_id,
        UNASSIGNED_DIRECTORY,
    ]


def test_a_configured_cluster_id_is_used(tmp_path: Path) -> None:
    assert claim(config(tmp_path, cluster_id=CLUSTER)).cluster_id == CLUSTER


def test_another_clusters_directory_is_refused(tmp_path: Path) -> None:
    claim(config(tmp_path, cluster_id=CLUSTER))
    with pytest.raises(StartError, match=f"belongs to cluster {CLUSTER}, not to {OTHER}"):
        claim(config(tmp_path, cluster_id=OTHER))


def test_another_nodes_directory_is_refused(tmp_path: Path) -> None:
    claim(config(tmp_path))
    with pytest.raises(StartError, match="belongs to node 1, not to node 2"):
        claim(config(tmp_path, node_id="2"))


def test_recovery_has_the_threads_that_the_admin_api_has_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log manager is built before the metadata log is replayed; the logs are recovered after that."""
    given, threads = config(tmp_path), []
    manager = log_manager_of(given, OsFileSystem(), ManualTime(), claim(given))
    (tmp_path / "t-0").mkdir()
    given.set_dynamic({"num.recovery.threads.per.data.dir": "7"})
    monkeypatch.setattr("tidelog.log.manager.recover", lambda *arguments: threads.append(arguments[-1]))
    manager.startup(lambda _: LogConfig(), {}, {"t": bytes(16)})
    assert threads == [7]


class BrokenBelow(OsFileSystem):
    """A disk whose one directory can be read, but not locked or written."""

    def __init__(self, broken: Path, operation: str) -> None:
        self.broken = str(broken)
        self.operation = operation

    def lock_file(self, path: str, *, shared: bool = False) -> OpenFile | None:
        if self.operation == "lock" and path.startswith(self.broken):
            raise LogStorageError("lock", path, errno.EIO)
        return super().lock_file(path, shared=shared)

    def replace_file(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        if self.operation == "write" and path.startswith(self.broken):
            raise LogStorageError("write", path, errno.EROFS)
        super().replace_file(path, data, sync=sync)


@pytest.mark.parametrize("operation", ["lock", "write"])
def test_a_directory_that_cannot_be_used_is_offline_and_the_others_serve(tmp_path: Path, operation: str) -> None:
    good, bad = tmp_path / "a", tmp_path / "b"
    claimed = claim(config(tmp_path, log_dirs=f"{good},{bad}"), BrokenBelow(bad, operation))
    assert list(claimed.failures) == [str(bad)]
    assert f"cluster.id={claimed.cluster_id}" in (good / "meta.properties").read_text()


def test_a_directory_that_cannot_be_made_is_offline(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    bad = tmp_path / "file" / "b"
    assert list(claim(config(tmp_path, log_dirs=f"{tmp_path / 'a'},{bad}")).failures) == [str(bad)]


def test_the_first_directory_holds_the_metadata_and_must_work(tmp_path: Path) -> None:
    bad = tmp_path / "a"
    with pytest.raises(StartError, match=r"the first data directory.*holds the broker's metadata and cannot be used"):
        claim(config(tmp_path, log_dirs=f"{bad},{tmp_path / 'b'}"), BrokenBelow(bad, "lock"))


def test_without_any_directory_the_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"no data directory can be used: .*lock"):
        claim(config(tmp_path, log_dirs=str(tmp_path / "a")), BrokenBelow(tmp_path, "lock"))


def lose(directory: Path) -> None:
    """Remove what a directory holds: a mount point without its disk is empty."""
    for path in directory.iterdir():
        path.unlink()


@pytest.mark.parametrize("lost", ["a", "b"])
def test_an_empty_directory_in_the_place_of_a_known_one_is_refused(tmp_path: Path, lost: str) -> None:
    """A lone broker would create its logs again, empty, and producers would go on with them."""
    both = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    claim(config(tmp_path, log_dirs=both))
    lose(tmp_path / lost)

    with pytest.raises(StartError, match=rf"{tmp_path / lost},? has no meta.properties.*mounted\?"):
        claim(config(tmp_path, log_dirs=both))

    assert not (tmp_path / lost / "meta.properties").exists()


@pytest.mark.parametrize("operation", ["lock", "write"])
def test_a_directory_that_never_worked_is_not_known(tmp_path: Path, operation: str) -> None:
    both = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    assert claim(config(tmp_path, log_dirs=both), BrokenBelow(tmp_path / "b", operation)).failures
    assert not claim(config(tmp_path, log_dirs=both)).failures


def test_a_directory_that_failed_meanwhile_stays_known(tmp_path: Path) -> None:
    both = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    claim(config(tmp_path, log_dirs=both))
    assert claim(config(tmp_path, log_dirs=both), BrokenBelow(tmp_path / "b", "lock")).failures
    lose(tmp_path / "b")
    with pytest.raises(StartError, match=r"mounted\?"):
        claim(config(tmp_path, log_dirs=both))


def test_a_directory_that_was_given_up_may_come_back_empty(tmp_path: Path) -> None:
    both = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    claim(config(tmp_path, log_dirs=both))
    lose(tmp_path / "b")
    claim(config(tmp_path, log_dirs=str(tmp_path / "a")))

    assert not claim(config(tmp_path, log_dirs=both)).failures


def test_a_new_directory_needs_no_format(tmp_path: Path) -> None:
    claim(config(tmp_path, log_dirs=str(tmp_path / "a")))
    claim(config(tmp_path, log_dirs=f"{tmp_path / 'a'},{tmp_path / 'b'}"))
    claimed = claim(config(tmp_path, log_dirs=f"{tmp_path / 'a'},{tmp_path / 'b'},{tmp_path / 'c'}"))
    assert len(claimed.directory_ids) == 3


def test_a_disk_that_takes_no_list_of_directories_starts(tmp_path: Path) -> None:
    first = tmp_path / "a"
    claim(config(tmp_path, log_dirs=str(first)))
    claimed = claim(config(tmp_path, log_dirs=f"{first},{tmp_path / 'b'}"), BrokenBelow(first, "write"))
    assert not claimed.failures
