"""Truncation of a log in which a batch header is damaged: readers find the new records, also after a restart.

A follower truncates where its leader's log diverges, whatever its own disk has done to the records before that.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import NOW_MS, LogBench, append, batch, producer_batch, read_records, values
from tidelog.log.check import check_directory
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.unified_log import UnifiedLog

SMALL: dict[str, Any] = {"segment_bytes": 1000, "index_interval_bytes": 100, "file_delete_delay_ms": 0}
MAGIC = 16
RECORDS = 40


def filled(bench: LogBench) -> UnifiedLog:
    log = bench.open()
    for number in range(RECORDS):
        append(log, batch(1, value=b"value %d" % number, timestamp=NOW_MS + number))
    return log


def damage_magic(log: UnifiedLog, offset: int) -> None:
    """Make the header of the batch at ``offset`` impossible."""
    segment = log.segments.floor(offset)
    assert segment is not None
    found = segment.translate_offset(offset)
    assert found is not None
    with open(segment.records.path, "r+b") as file:
        file.seek(found.position + MAGIC)
        file.write(b"\x09")


@pytest.mark.parametrize("distance", [0, 1, 2, 3, 6])
def test_records_after_a_truncation_above_damage_are_found(tmp_path: Path, distance: int) -> None:
    """Whole segments go too, so the segment that was active before may not take the new records."""
    for cut in range(distance + 1, RECORDS - 1):
        root = tmp_path / str(cut)
        root.mkdir()
        bench = LogBench(str(root), **SMALL)
        log = filled(bench)
        damage_magic(log, cut - distance)
        assert log.truncate_to(cut)
        assert log.is_serving
        end = log.log_end_offset
        assert end <= cut
        for number in range(3):
            assert append(log, batch(1, value=b"new %d" % number)).first_offset == end + number
        assert values(log, end) == {end + number: b"new %d" % number for number in range(3)}, cut
        log.close()
        bench.environment.deletions.run(everything=True)
        again = bench.open(clean=True, recovery_point=end + 3)
        assert again.log_end_offset == end + 3
        assert values(again, end) == {end + number: b"new %d" % number for number in range(3)}, cut
        again.close()


def test_producers_of_records_above_the_damage_are_refused_nothing(tmp_path: Path) -> None:
    """Their state cannot be replayed over the damage; the log serves all the same."""
    bench = LogBench(str(tmp_path), segment_bytes=1 << 20, index_interval_bytes=0)
    log = bench.open()
    for number in range(6):
        append(log, producer_batch(number))
    damage_magic(log, 2)
    assert log.truncate_to(5)
    assert log.is_serving
    append(log, batch(1, value=b"later"))
    assert values(log, log.log_end_offset - 1) == {log.log_end_offset - 1: b"later"}


@pytest.mark.parametrize("seed", range(30))
def test_truncations_beside_damage_leave_a_log_that_can_be_checked(tmp_path: Path, seed: int) -> None:
    """The indices of the truncated segment agree with its batches."""
    chance = random.Random(seed)
    bench = LogBench(
        str(tmp_path), segment_bytes=chance.choice([500, 2000]), index_interval_bytes=chance.choice([0, 150, 700]),
        file_delete_delay_ms=0,
    )  # fmt: skip
    log = filled(bench)
    for _ in range(4):
        append(log, batch(1))
        cut = chance.randrange(log.segments.active.base_offset, log.log_end_offset) + 1
        append(log, batch(1))
        segment = log.segments.floor(cut - 1)
        assert segment is not None
        damaged = chance.randrange(max(cut - 3, segment.base_offset), cut)
        for offset in range(damaged, cut):
            damage_magic(log, offset)
        log.truncate_to(cut)
        start = log.log_end_offset
        assert start <= damaged
        for number in range(10):
            append(log, batch(1, value=b"new %d" % number))
        assert [record.offset for record in read_records(log, start)] == list(range(start, log.log_end_offset))
    log.close()
    bench.environment.deletions.run(everything=True)
    assert check_directory(OsFileSystem(), bench.directory) == []
