"""LogSegment: when a segment must be rolled, at the limits of timestamps, and what readers beside an append change."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.logs import NOW_MS, LogBench, append, batch
from tidelog.log.config import LogConfig
from tidelog.log.index.time_index import TimestampOffset
from tidelog.log.segment import segment as segment_module
from tidelog.log.segment.segment import LogSegment, find_cut
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
TIMESTAMPS = (MIN_INT64, MIN_INT64 + 1, -(2**62), -2, -1, 0, 1, NOW_MS, 2**62, MAX_INT64 - 1, MAX_INT64)
AGE_MS = 500


@pytest.mark.parametrize("segment_ms", [AGE_MS - 1, AGE_MS, 604_800_000, MAX_INT64])
def test_age_of_a_segment_is_exact_at_the_limits_of_timestamps(tmp_path: Path, segment_ms: int) -> None:
    """The difference of two timestamps may not fit into 64 bits; a time before the first record never makes the segment
    too old."""
    for number, (first, later) in enumerate(itertools.product(TIMESTAMPS, TIMESTAMPS)):
        time = ManualTime(NOW_MS)
        segment = LogSegment.create(str(tmp_path), number, LogConfig({}), OsFileSystem(), time)
        segment.append(batch(1), number, first, number)
        time.advance(AGE_MS)
        is_due = (later - first if first >= 0 else AGE_MS) > segment_ms
        assert segment.should_roll(1 << 20, segment_ms, 100, later, number + 1) == is_due, (first, later)
        segment.close()


@pytest.mark.parametrize("begin", [UnifiedLog.roll, lambda log: log.truncate_fully_and_start_at(3)])
def test_a_foreign_file_in_the_place_of_a_new_segment_stays(
    tmp_path: Path, begin: Callable[[UnifiedLog], object]
) -> None:
    bench = LogBench(str(tmp_path))
    log = bench.open()
    append(log, batch(3))
    foreign = Path(bench.directory) / f"{3:020d}.log"
    foreign.write_bytes(b"records of another writer")
    names = {path.name for path in Path(bench.directory).iterdir()}
    for _ in range(2):
        with pytest.raises(KafkaStorageError):
            begin(log)
        assert foreign.read_bytes() == b"records of another writer"
        assert not {path.name for path in Path(bench.directory).glob(f"{3:020d}.*")} - names


@pytest.mark.parametrize("slots", [1, 2, 3, 7])
@pytest.mark.parametrize("steps", [(0,), (1,), (0, 0, 1), (0, 0, 0, 0, 0, 1)])
def test_a_segment_is_full_when_one_of_its_indices_is(tmp_path: Path, slots: int, steps: tuple[int, ...]) -> None:
    """A segment caches how many entries still fit, never more than really do, and checks again before it is full."""
    config = LogConfig({"segment.index.bytes": str(12 * slots), "index.interval.bytes": "0"})
    segment = LogSegment.create(str(tmp_path), 0, config, OsFileSystem(), ManualTime(NOW_MS))
    timestamp, fullness = NOW_MS, []
    for offset, step in zip(range(24), itertools.cycle(steps), strict=False):
        is_full = segment.offset_index.is_full or segment.time_index.is_full
        fullness.append(is_full)
        assert segment.should_roll(1 << 20, MAX_INT64, 100, timestamp, offset) == is_full, offset
        if offset == 12:
            segment.truncate_to(find_cut(segment, 6))
        timestamp += step
        segment.append(batch(1), offset, timestamp, offset)
    assert True in fullness
    segment.close()


@pytest.mark.parametrize("change", ["append", "truncation"])
def test_a_reader_does_not_overwrite_a_newer_largest_timestamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Readers hold no lock: the log is appended to or cut while one reads the headers."""
    bench = LogBench(str(tmp_path))
    log = bench.open()
    for offset in range(3):
        append(log, batch(timestamp=NOW_MS + offset))
    log.close()
    log = bench.open(clean=True)
    segment = log.segments.active
    segment.forget_state()
    read = segment_module._read_largest

    def read_slowly(asked: LogSegment) -> TimestampOffset:
        monkeypatch.undo()
        found = read(asked)
        if change == "append":
            append(log, batch(timestamp=NOW_MS + 1000))
        else:
            log.truncate_to(1)
        return found

    monkeypatch.setattr(segment_module, "_read_largest", read_slowly)
    assert segment.largest == TimestampOffset(NOW_MS + 2, 2), "that of the reader's moment"
    newest = TimestampOffset(NOW_MS + 1000, 3) if change == "append" else TimestampOffset(NOW_MS, 0)
    assert segment.largest == newest
