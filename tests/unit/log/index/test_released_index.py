"""Look-ups in an index that another thread releases: each is answered, as if before it or from the segment's start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidelog.log.index import abstract_index
from tidelog.log.index.offset_index import OffsetIndex, OffsetPosition
from tidelog.log.index.time_index import TimeIndex
from tidelog.log.system.file_system import OsFileSystem

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


def test_released_before_it_was_read_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = offsets(tmp_path)
    monkeypatch.setattr(OffsetIndex, "entries", property(lambda self: (self.release(), 20)[1]))
    assert index.lookup(BASE + 15) == OffsetPosition(BASE, 0)


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
