"""Offset, time and transaction index: bytes, search, growth, truncation."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.log.index.abstract_index import WARM_SECTION_BYTES, IndexCorruptError, ReadSlots, floor_slot
from tidelog.log.index.offset_index import OffsetIndex
from tidelog.log.index.time_index import TimeIndex, TimestampOffset
from tidelog.log.index.transaction_index import AbortedTxn, TransactionIndex
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.errors import KafkaStorageError

FILES = OsFileSystem()
KEY = struct.Struct(">i")


def reader_of(buffer: bytes) -> ReadSlots:
    """Return a function that reads entries of 8 bytes, and fails beyond the end."""

    def read(slot: int, count: int) -> bytes:
        assert count > 0
        assert 0 <= slot <= len(buffer) // 8 - count
        return buffer[slot * 8 : (slot + count) * 8]

    return read


@given(st.lists(st.integers(0, 10_000), unique=True, max_size=200), st.integers(-1, 10_001), st.integers(1, 30))
def test_floor_slot_is_the_last_key_not_above(keys: list[int], target: int, repeat: int) -> None:
    """Also with more entries than the warm section holds."""
    ascending = sorted({key * repeat + r for key in keys for r in range(repeat)})
    buffer = b"".join(struct.pack(">ii", key, 0) for key in ascending)
    expected = sum(key <= target * repeat for key in ascending) - 1
    assert floor_slot(reader_of(buffer), KEY, 0, 8, len(ascending), target * repeat) == expected


def test_search_below_the_warm_section() -> None:
    count = WARM_SECTION_BYTES // 8 * 3
    buffer = b"".join(struct.pack(">ii", number * 2, 0) for number in range(count))
    for target in (0, 1, 2, 511, count, count * 2 - 1, count * 2 + 5):
        assert floor_slot(reader_of(buffer), KEY, 0, 8, count, target) == min(target // 2, count - 1)
    assert floor_slot(reader_of(buffer), KEY, 0, 8, count, -1) == -1


class TestOffsetIndex:
    @pytest.fixture
    def index(self, tmp_path: Path) -> OffsetIndex:
        return OffsetIndex(FILES, str(tmp_path / "00000000000000000100.index"), 100, 80_000)

    def test_bytes(self, index: OffsetIndex) -> None:
        index.append(105, 4200)
        index.append(110, 9000)
        index.close()
        assert Path(index.path).read_bytes() == struct.pack(">iiii", 5, 4200, 10, 9000)

    def test_look_up(self, index: OffsetIndex) -> None:
        for number in range(1, 2000):
            index.append(100 + number * 10, number * 4096)
        assert index.lookup(100) == (100, 0)
        assert index.lookup(109) == (100, 0)
        assert index.lookup(110) == (110, 4096)
        assert index.lookup(1234) == (1230, 113 * 4096)
        assert index.lookup(10**9) == (20_090, 1999 * 4096)
        assert index.upper_bound_offset(4097) == 120
        assert index.upper_bound_offset(0) == 110
        assert index.upper_bound_offset(10**9) is None

    def test_reopened_index_continues(self, index: OffsetIndex) -> None:
        for number in range(1, 700):
            index.append(100 + number, number)
        index.close()
        assert os.path.getsize(index.path) == 699 * 8
        assert index.last_offset == 799
        index.append(800, 10_000)
        assert index.entries == 700

    def test_full(self, tmp_path: Path) -> None:
        index = OffsetIndex(FILES, str(tmp_path / "i"), 0, 20)
        fullness = []
        for number in (1, 2):
            index.append(number, number)
            fullness.append(index.is_full)
        assert fullness == [False, True]
        with pytest.raises(KafkaStorageError, match="full"):
            index.append(3, 3)

    def test_order_and_range(self, index: OffsetIndex) -> None:
        index.append(105, 1)
        for offset in (105, 99, 100 + 2**31):
            with pytest.raises(KafkaStorageError):
                index.append(offset, 2)

    @pytest.mark.parametrize(("offset", "kept"), [(100, 0), (101, 0), (102, 1), (150, 49), (1000, 50)])
    def test_truncate(self, index: OffsetIndex, offset: int, kept: int) -> None:
        for number in range(1, 51):
            index.append(100 + number, number)
        index.truncate_to(offset)
        assert index.entries == kept
        index.append(2000, 5000)
        assert index.lookup(2000).position == 5000

    def test_missing_entry(self, index: OffsetIndex) -> None:
        with pytest.raises(IndexError):
            index.entry(0)


class TestTimeIndex:
    @pytest.fixture
    def index(self, tmp_path: Path) -> TimeIndex:
        return TimeIndex(FILES, str(tmp_path / "00000000000000000100.timeindex"), 100, 1200)

    def test_only_new_maxima_make_entries(self, index: TimeIndex) -> None:
        for timestamp, offset in ((50, 101), (40, 102), (50, 103), (60, 104)):
            index.maybe_append(timestamp, offset)
        index.close()
        assert Path(index.path).read_bytes() == struct.pack(">qiqi", 50, 1, 60, 4)

    def test_look_up(self, index: TimeIndex) -> None:
        for number in range(1, 50):
            index.maybe_append(number * 10, 100 + number)
        assert index.lookup(9) == TimestampOffset(-1, 100)
        assert index.lookup(10) == TimestampOffset(10, 101)
        assert index.lookup(499) == TimestampOffset(490, 149)
        assert index.last_entry == TimestampOffset(490, 149)

    def test_last_slot_is_kept_for_the_roll(self, tmp_path: Path) -> None:
        index = TimeIndex(FILES, str(tmp_path / "i"), 0, 24)
        index.maybe_append(1, 1)
        assert index.is_full
        with pytest.raises(KafkaStorageError):
            index.maybe_append(2, 2)
        index.maybe_append(2, 2, on_roll=True)
        assert index.entries == 2

    def test_truncate(self, index: TimeIndex) -> None:
        for number in range(1, 50):
            index.maybe_append(number, 100 + number)
        index.truncate_to(120)
        assert index.last_entry == TimestampOffset(19, 119)


class TestTransactionIndex:
    @pytest.fixture
    def index(self, tmp_path: Path) -> TransactionIndex:
        return TransactionIndex(FILES, str(tmp_path / "00000000000000000000.txnindex"), 0)

    def test_bytes(self, index: TransactionIndex) -> None:
        assert index.entries == 0
        assert not os.path.exists(index.path)
        index.append(AbortedTxn(7, 1, 5, 6))
        index.close()
        assert Path(index.path).read_bytes() == struct.pack(">hqqqq", 0, 7, 1, 5, 6)
        assert list(index) == [AbortedTxn(7, 1, 5, 6)]

    def test_collect(self, index: TransactionIndex) -> None:
        for number in range(3000):
            index.append(AbortedTxn(1, number * 10, number * 10 + 5, number * 10 + 6))
        found, complete = index.collect(12, 34)
        assert [t.first_offset for t in found] == [10, 20, 30]
        assert complete
        assert index.collect(29_996, 40_000) == ([], False)

    def test_truncate(self, index: TransactionIndex) -> None:
        for number in range(5):
            index.append(AbortedTxn(1, number * 10, number * 10 + 5, number * 10 + 6))
        index.truncate_to(25)
        assert [t.last_offset for t in index] == [5, 15]
        index.append(AbortedTxn(1, 20, 26, 27))
        assert index.entries == 3

    def test_unknown_version_and_wrong_range(self, index: TransactionIndex, tmp_path: Path) -> None:
        Path(index.path).write_bytes(struct.pack(">hqqqq", 9, 7, 1, 5, 6))
        with pytest.raises(IndexCorruptError):
            index.sanity_check()
        later = TransactionIndex(FILES, str(tmp_path / "x.txnindex"), 100)
        later.append(AbortedTxn(7, 1, 5, 6))
        with pytest.raises(IndexCorruptError):
            later.sanity_check()


@pytest.mark.parametrize("entries", [0, 1, 5])
@pytest.mark.parametrize("extra", range(8))
def test_an_entry_over_half_an_entry_is_whole(tmp_path: Path, entries: int, extra: int) -> None:
    """The file ends within an entry, as after a torn write; it is opened, and one more entry is appended."""
    path = tmp_path / "0.index"
    path.write_bytes(b"".join(struct.pack(">ii", 10 * n, n) for n in range(entries)) + bytes(extra))
    index = OffsetIndex(FILES, str(path), 0, 4096)
    index.append(1_000, 70)
    assert not index.has_partial_entry
    index.append(1_001, 71)
    with pytest.raises(KafkaStorageError):
        index.append(1_001, 72)
    index.close()
    assert path.stat().st_size == (entries + 2) * 8
    assert index.lookup(1_000).position == 70
    index.release()
    with pytest.raises(KafkaStorageError):
        index.append(1_001, 72)  # the last entry is read from the file
