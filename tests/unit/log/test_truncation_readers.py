"""Readers without the lock while a log is truncated: they find segments at each change of a file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.faulty_file_system import FaultyFileSystem
from tests.support.logs import LogBench, append, batch, read_bytes, values
from tidelog.cleaner.log_to_clean import measure_log
from tidelog.log.fetch import FetchIsolation
from tidelog.log.timestamps import MAX_TIMESTAMP
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import OffsetOutOfRangeError
from tidelog.protocol.record.batches import iter_batches

RECORDS = 12


class Observed(FaultyFileSystem):
    """A disk that calls ``look`` before each change but renames, during which a file's own lock is held."""

    look: Callable[[], object] | None = None

    def step(self, operation: str, path: str, partly: Callable[[], None] | None = None) -> None:
        if operation != "rename" and self.look is not None:
            self.look()
        super().step(operation, path, partly)


def read_everything(log: UnifiedLog, kept: int, removed: int = RECORDS) -> None:
    """Do what consumers, followers, the cleaner and metrics do without the log's lock.

    The first ``kept`` offsets must be there, and none from ``removed`` on.
    """
    for isolation in FetchIsolation:
        for offset in range(RECORDS + 6):
            try:
                found = read_bytes(log, offset, isolation=isolation)
            except OffsetOutOfRangeError:
                assert offset >= kept
                continue
            assert not found or next(iter(iter_batches(found))).last_offset >= offset
            assert all(entry.last_offset < removed for entry in iter_batches(found))
            assert found or offset >= kept or isolation is not FetchIsolation.LOG_END
    assert log.segments.active.base_offset >= 0
    assert log.size_bytes >= 0
    measure_log(log, None, 0)
    log.fetch_offset_by_timestamp(MAX_TIMESTAMP)
    log.collect_aborted_transactions(0, RECORDS)


@pytest.mark.parametrize("offset", [0, 5, 6, 11, 15])
@pytest.mark.parametrize("name", ["truncate_to", "truncate_fully_and_start_at"])
def test_readers_find_segments_at_each_step_of_a_truncation(tmp_path: Path, name: str, offset: int) -> None:
    disk = Observed(str(tmp_path))
    bench = LogBench(str(tmp_path), disk, segment_bytes=200, index_interval_bytes=0)
    log = bench.open()
    for _ in range(RECORDS):
        append(log, batch(1))
    kept = min(offset, RECORDS) if name == "truncate_to" else 0
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        read_everything(log, kept)

    disk.look = look
    getattr(log, name)(offset)
    disk.look = None
    assert looks or offset >= RECORDS
    read_everything(log, kept)
    assert append(log, batch(1, value=b"new")).first_offset == log.log_end_offset - 1
    assert values(log, log.log_end_offset - 1) == {log.log_end_offset - 1: b"new"}


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    at=st.floats(0, 1),
    committed=st.floats(0, 1),
    name=st.sampled_from(["truncate_to", "truncate_fully_and_start_at"]),
)
def test_no_reader_gets_a_removed_record_during_a_truncation(
    sizes: list[int], at: float, committed: float, name: str
) -> None:
    with tempfile.TemporaryDirectory() as root:
        disk = Observed(root)
        log = LogBench(root, disk, segment_bytes=300, index_interval_bytes=0).open()
        for size in sizes:
            log.append_as_leader(memoryview(batch(size)), leader_epoch=0)
        end = log.log_end_offset
        offset = round(at * end)
        log.update_high_watermark(round(committed * end))
        disk.look = lambda: read_everything(log, 0, removed=offset)
        getattr(log, name)(offset)
        assert log.high_watermark <= offset
