"""Leader epochs: bytes of the file, look-ups, truncation at both ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog.log.files.checkpoints import CheckpointCorruptError, EpochEntry
from tidelog.log.leader_epochs import LeaderEpochCache
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.errors import KafkaStorageError


@pytest.fixture
def cache(tmp_path: Path) -> LeaderEpochCache:
    cache = LeaderEpochCache(OsFileSystem(), str(tmp_path))
    for epoch, start in ((0, 0), (2, 10), (5, 30)):
        cache.assign(epoch, start)
    return cache


def test_file_has_kafkas_bytes(cache: LeaderEpochCache, tmp_path: Path) -> None:
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == b"0\n3\n0 0\n2 10\n5 30\n"
    again = LeaderEpochCache(OsFileSystem(), str(tmp_path))
    again.load()
    assert again.entries == cache.entries
    assert again.latest_epoch == 5


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(-1, (-1, -1)), (0, (0, 10)), (1, (0, 10)), (2, (2, 30)), (4, (2, 30)), (5, (5, 99)), (6, (-1, -1))],
)
def test_an_epoch_ends_where_the_next_one_begins(cache: LeaderEpochCache, epoch: int, answer: tuple[int, int]) -> None:
    assert cache.end_offset_for(epoch, 99) == answer


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (9, 0), (10, 2), (30, 5), (1000, 5)])
def test_an_offset_has_the_epoch_that_began_before_it(cache: LeaderEpochCache, offset: int, epoch: int) -> None:
    assert cache.epoch_for_offset(offset) == epoch


def test_older_epoch_is_not_assigned(cache: LeaderEpochCache) -> None:
    cache.assign(4, 50)
    assert cache.latest_epoch == 5


def test_a_truncation_at_the_end_drops_later_entries(cache: LeaderEpochCache) -> None:
    cache.truncate_from_end(30)
    assert cache.entries == (EpochEntry(0, 0), EpochEntry(2, 10))


def test_a_truncation_at_the_start_moves_the_first_entry(cache: LeaderEpochCache) -> None:
    cache.truncate_from_start(15)
    assert cache.entries == (EpochEntry(2, 15), EpochEntry(5, 30))


def test_a_cut_that_is_written_later_is_unsaved_until_then(cache: LeaderEpochCache, tmp_path: Path) -> None:
    before = (tmp_path / "leader-epoch-checkpoint").read_bytes()
    seen = [cache.is_unsaved]
    cache.truncate_from_end(30, write=False)
    cache.truncate_from_start(5, write=False)
    seen.append(cache.is_unsaved)
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == before
    cache.save()
    assert [*seen, cache.is_unsaved] == [False, True, False]
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == b"0\n2\n0 5\n2 10\n"


def test_epochs_that_could_not_be_written_stay_unsaved(
    cache: LeaderEpochCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, sync: bool) -> None:
        raise KafkaStorageError(f"sync: {sync}")

    monkeypatch.setattr(OsFileSystem, "replace_file", fail)
    with pytest.raises(KafkaStorageError, match="False"):
        cache.assign(7, 40)
    assert cache.is_unsaved


def test_entries_that_go_back_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n3\n0 0\n3 20\n2 25\n")
    cache = LeaderEpochCache(OsFileSystem(), str(tmp_path))
    cache.load()
    assert cache.entries == (EpochEntry(0, 0), EpochEntry(2, 25))


def test_empty_file_has_no_epochs(tmp_path: Path) -> None:
    (tmp_path / "leader-epoch-checkpoint").touch()
    cache = LeaderEpochCache(OsFileSystem(), str(tmp_path))
    cache.load()
    assert cache.entries == ()


@pytest.mark.parametrize("content", [b"0\n", b"0\n1\na b\n", b"0\n2\n1 1\n"])
def test_damaged_file_is_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_bytes(content)
    with pytest.raises(CheckpointCorruptError):
        LeaderEpochCache(OsFileSystem(), str(tmp_path)).load()


class Between(OsFileSystem):
    """A file system that runs a function of the test during its writes."""

    def __init__(self) -> None:
        self.between: Callable[[], object] = bool

    def replace_file(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        between, self.between = self.between, bool
        between()
        super().replace_file(path, data, sync=sync)


def test_an_epoch_that_comes_while_a_thread_writes_is_written_next(tmp_path: Path) -> None:
    files = Between()
    cache = LeaderEpochCache(files, str(tmp_path))
    cache.assign(1, 0)
    files.between = lambda: cache.assign(2, 5, write=False)
    cache.flush()
    cache.save()
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == b"0\n2\n1 0\n2 5\n"


def test_a_flush_does_not_return_before_another_threads_sync(tmp_path: Path) -> None:
    files = Between()
    cache = LeaderEpochCache(files, str(tmp_path))
    cache.assign(1, 0)
    order: list[str] = []

    def flush() -> None:
        cache.flush()
        order.append("second")

    second = threading.Thread(target=flush, daemon=True)

    def meet() -> None:
        second.start()
        second.join(0.1)
        order.append("written")

    files.between = meet
    cache.flush()
    second.join(60)
    assert order == ["written", "second"]


def test_a_write_that_failed_is_done_again(tmp_path: Path) -> None:
    def fail() -> None:
        raise KafkaStorageError("full")

    files = Between()
    cache = LeaderEpochCache(files, str(tmp_path))
    cache.assign(1, 0)
    files.between = fail
    with pytest.raises(KafkaStorageError):
        cache.flush()
    cache.flush()
    again = LeaderEpochCache(OsFileSystem(), str(tmp_path))
    again.load()
    assert again.entries == (EpochEntry(1, 0),)
