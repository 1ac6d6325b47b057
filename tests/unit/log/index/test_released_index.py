"""Look-ups in an index that another thread releases: each gets a valid answer, from the index or from the segment's
start."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.swapping import SwappingFileSystem
from tidelog.log.index import abstract_index
from tidelog.log.index.abstract_index import AbstractIndex, close_until_lookup, seal_index
from tidelog.log.index.offset_index import OffsetIndex, OffsetPosition
from tidelog.log.index.time_index import TimeIndex
from tidelog.log.system.file_system import LogStorageError, OsFile, OsFileSystem
from tidelog.protocol.errors import KafkaStorageError

BASE = 100


def offsets(directory: Path) -> OffsetIndex:
    index = OffsetIndex(OsFileSystem(), str(directory / "0.index"), BASE, 4096)
    for number in range(20):
        index.append(BASE + 2 * number + 1, 10 * number)
    return index


LOOK_UPS: list[Callable[[OffsetIndex], object]] = [
    lambda index: index.lookup(BASE + 15),
    lambda index: index.floor_position(75),
    lambda index: index.upper_bound_offset(75),
]


@pytest.mark.parametrize("look_up", LOOK_UPS)
@pytest.mark.parametrize("after_reads", range(4))
def test_release_at_any_read_of_a_look_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_up: Callable[[OffsetIndex], object], after_reads: int
) -> None:
    index = offsets(tmp_path)
    expected = look_up(index)
    reads = 0
    read_from = OffsetIndex._read_from

    def releasing(self: OffsetIndex, file: object, slot: int, count: int) -> bytes:
        nonlocal reads
        if reads == after_reads:
            self.release()
        reads += 1
        return read_from(self, file, slot, count)  # type: ignore[arg-type]

    monkeypatch.setattr(abstract_index.AbstractIndex, "_read_from", releasing)
    assert look_up(index) == expected


def closing_after(monkeypatch: pytest.MonkeyPatch, name: str, close: Callable[[AbstractIndex], None]) -> None:
    """Let another thread close the index once, right after this thread has first read an attribute."""
    attribute = getattr(AbstractIndex, name)
    closed: list[AbstractIndex] = []

    def look(index: AbstractIndex) -> object:
        seen = attribute.__get__(index)
        if not closed:
            closed.append(index)
            close(index)
        return seen

    monkeypatch.setattr(AbstractIndex, name, property(look, attribute.__set__))


@pytest.mark.parametrize("close", [AbstractIndex.release, AbstractIndex.close, close_until_lookup])
@pytest.mark.parametrize("name", ["_entries", "_memory"])
def test_closed_before_it_is_read_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, close: Callable[[AbstractIndex], None]
) -> None:
    """A look-up opens the file again."""
    index = offsets(tmp_path)
    closing_after(monkeypatch, name, close)
    assert index.lookup(BASE + 15) == OffsetPosition(BASE + 15, 70)


def test_the_count_of_an_index_that_is_closed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = offsets(tmp_path)
    closing_after(monkeypatch, "_entries", close_until_lookup)
    assert index.size_bytes == 20 * 8


@pytest.mark.parametrize("close", [AbstractIndex.close, close_until_lookup])
def test_entries_of_a_write_that_failed_are_not_those_of_the_file_when_it_opens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, close: Callable[[AbstractIndex], None]
) -> None:
    """Old entries after a newer one would lead a search beyond the wanted records."""
    index = offsets(tmp_path)
    write = OsFile.write_at

    def write_some(file: OsFile, data: bytes, position: int) -> None:
        write(file, data[: 3 * 8], position)
        raise LogStorageError("write", file.path, errno.ENOSPC)

    monkeypatch.setattr(index, "_file", SimpleNamespace(write_at=lambda *given: write_some(opened(index), *given)))
    with pytest.raises(LogStorageError):
        index.append_packed(b"".join(index.ENTRY.pack(40 + number, 200 + number) for number in range(5)))
    monkeypatch.setattr(index, "_file", opened(index))
    index.append(BASE + 60, 300)
    close(index)
    assert index.entries == 21
    assert index.lookup(BASE + 100) == OffsetPosition(BASE + 60, 300)


def opened(index: AbstractIndex) -> OsFile:
    file = OsFileSystem().open_file(index.path)
    assert isinstance(file, OsFile)
    return file


def test_a_name_that_another_file_has_next_is_not_opened(tmp_path: Path) -> None:
    """A reader with an old list of segments opens an index while a swap gives its name to the index of a new
    segment."""
    offsets(tmp_path).close()
    files = SwappingFileSystem()
    index = OffsetIndex(files, str(tmp_path / "0.index"), BASE, 4096)

    def swap() -> None:
        index.rename_to(str(tmp_path / "0.index.deleted"))
        (tmp_path / "0.index").write_bytes(index.ENTRY.pack(1, 999))

    files.swap = swap
    found = index.lookup(BASE + 15)
    files.join()
    assert found == OffsetPosition(BASE + 15, 70)
    assert index.path.endswith(".deleted")


def test_a_rested_index_of_a_deleted_log_is_not_opened_again(tmp_path: Path) -> None:
    """Its name may be that of another topic's index by now."""
    index = offsets(tmp_path)
    close_until_lookup(index)
    seal_index(index)
    with pytest.raises(KafkaStorageError, match="is closed"):
        index.lookup(BASE + 15)


def test_the_last_time_of_an_index_that_is_closed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = TimeIndex(OsFileSystem(), str(tmp_path / "0.timeindex"), BASE, 4096)
    index.maybe_append(1000, BASE)
    closing_after(monkeypatch, "_memory", close_until_lookup)
    assert index.last_entry == (1000, BASE)


def test_time_index_is_as_the_offset_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = TimeIndex(OsFileSystem(), str(tmp_path / "0.timeindex"), BASE, 4096)
    for number in range(20):
        index.maybe_append(1000 + number, BASE + number)
    expected = index.lookup(1010)

    def search_and_release(*given: Any) -> int:
        slot = abstract_index.floor_slot(*given)
        index.release()
        return slot

    monkeypatch.setattr("tidelog.log.index.time_index.floor_slot", search_and_release)
    assert index.lookup(1010) == expected
