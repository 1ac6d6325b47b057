"""The reserve file: created if there is free space, released once, and records are refused until it is complete
again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.logs import LogBench, append, batch
from tidelog.log.environment import DirectoryState
from tidelog.log.fetch import FetchIsolation
from tidelog.log.system.file_system import LogStorageError, OsFileSystem
from tidelog.log.system.reserve import RESERVE_FILE, Reserve
from tidelog.protocol.errors import KafkaStorageError

SIZE = 64 * 1024


class FullFileSystem(OsFileSystem):
    """A file system whose free space the test sets."""

    free = 1 << 30

    def disk_space(self, path: str) -> tuple[int, int]:
        return 1 << 30, self.free


def state_of(directory: Path, file_system: OsFileSystem) -> DirectoryState:
    return DirectoryState(str(directory), Reserve(file_system, str(directory), SIZE))


def test_the_reserve_is_created_released_and_created_again(tmp_path: Path) -> None:
    disk = FullFileSystem()
    state = state_of(tmp_path, disk)
    state.check_room(disk)
    assert (tmp_path / RESERVE_FILE).stat().st_blocks * 512 >= SIZE
    assert (state.shortage, state.append_refusal) == (None, None)

    assert state.give_up_reserve()

    assert not (tmp_path / RESERVE_FILE).exists()
    assert state.append_refusal is not None
    assert not state.give_up_reserve(), "there is nothing more to give"
    state.check_room(disk)
    assert (tmp_path / RESERVE_FILE).exists()
    assert [state.shortage, state.append_refusal] == [None, None]


def test_a_reserve_that_a_kill_left_too_small_is_extended(tmp_path: Path) -> None:
    (tmp_path / RESERVE_FILE).write_bytes(bytes(SIZE // 4))
    disk = FullFileSystem()
    state_of(tmp_path, disk).check_room(disk)
    assert (tmp_path / RESERVE_FILE).stat().st_blocks * 512 >= SIZE


def test_a_full_disk_is_noticed_without_a_write(tmp_path: Path) -> None:
    disk = FullFileSystem()
    state = state_of(tmp_path, disk)
    disk.free = 0
    state.check_room(disk)
    assert state.shortage is not None
    assert state.append_refusal is None, "what little fits is taken while the reserve is whole"


def test_no_reserve_where_none_is_wanted(tmp_path: Path) -> None:
    state = DirectoryState(str(tmp_path), Reserve(OsFileSystem(), str(tmp_path), 0))
    state.check_room(OsFileSystem())
    assert list(tmp_path.iterdir()) == []
    assert not state.give_up_reserve()


def test_with_reserve_repeats_the_write_once_and_only_for_lack_of_space(tmp_path: Path) -> None:
    state = state_of(tmp_path, OsFileSystem())
    state.check_room(OsFileSystem())
    calls = []

    def write(code: int) -> int:
        calls.append(code)
        if len(calls) == 1:
            raise LogStorageError("write", "x", code)
        return len(calls)

    with pytest.raises(LogStorageError):
        state.with_reserve(lambda: write(errno.EACCES))
    calls.clear()
    assert state.with_reserve(lambda: write(errno.EDQUOT)) == 2
    calls.clear()
    with pytest.raises(LogStorageError):
        state.with_reserve(lambda: write(errno.ENOSPC))


def test_records_are_kept_out_while_the_reserve_is_given_up_and_reads_continue(tmp_path: Path) -> None:
    bench = LogBench(str(tmp_path))
    log = bench.open()
    append(log, batch(1))
    bench.state.append_refusal = KafkaStorageError("full")
    with pytest.raises(KafkaStorageError, match="takes no records: full"):
        append(log, batch(1))
    assert log.is_serving
    assert log.read(0, 1000, isolation=FetchIsolation.LOG_END, min_one_message=True).records
