"""Audits of open logs that were truncated: their index files keep stale entries after the live ones, until the segment
rolls."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from tests.support.pipelines import NOW_MS, DataDirectory, write
from tidelog.log.unified_log import UnifiedLog
from tidelog.pipeline.jobs.audit import AuditRequest, PartitionAudit, audit
from tidelog.pipeline.jobs.reports.audit_report import findings
from tidelog.protocol.record.record_batch import Record


def audited(data: DataDirectory) -> PartitionAudit:
    (partition,) = audit(None, AuditRequest(data.source())).partitions
    return partition


def write_some(log: UnifiedLog, chance: random.Random, batches: int) -> None:
    """Write batches of random sizes and times."""
    for _ in range(batches):
        size, time_ms = chance.randrange(400), NOW_MS + chance.randrange(5000)
        write(log, [Record(i, time_ms, b"k", b"v" * size) for i in range(chance.randrange(1, 4))])


@pytest.mark.parametrize("segment_bytes", [2000, 1 << 20])
@pytest.mark.parametrize("seed", range(15))
def test_an_open_log_that_was_truncated_is_in_order(tmp_path: Path, seed: int, segment_bytes: int) -> None:
    """Entries of removed records were faults of the index, and made a write in progress damage."""
    chance = random.Random(seed)
    data = DataDirectory(tmp_path / "data", segment_bytes=segment_bytes, index_interval_bytes=chance.choice([1, 300]))
    log = data.log("t")
    write_some(log, chance, 20)
    for _ in range(4):
        log.truncate_to(chance.randrange(log.log_end_offset + 1))
        assert findings(audited(data)) == []
        write_some(log, chance, chance.randrange(10))
        assert findings(audited(data)) == []
    if log.segments.active.size > 30:
        log.segments.active.records.close()
        path = Path(log.segments.active.records.path)
        path.write_bytes(path.read_bytes()[: -chance.randrange(1, 30)])
        assert findings(audited(data)) == []


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return DataDirectory(tmp_path / "data", segment_bytes=1 << 20, index_interval_bytes=1)


@pytest.fixture
def one_segment(data: DataDirectory) -> Path:
    """The active segment of an open log with twenty batches, each with an entry."""
    log = data.log("t")
    for number in range(20):
        write(log, [Record(0, NOW_MS + 10 * number, b"k", b"v" * 100)])
    log.flush()
    return Path(log.segments.active.records.path)


@pytest.mark.parametrize(("suffix", "layout"), [(".index", ">ii"), (".timeindex", ">qi")])
@pytest.mark.parametrize("zeros", [0, 600])
def test_a_wrong_entry_before_a_right_one_is_not_stale(
    data: DataDirectory, one_segment: Path, suffix: str, layout: str, zeros: int
) -> None:
    path = one_segment.with_suffix(suffix)
    content = path.read_bytes() + bytes(zeros)
    size = struct.calcsize(layout)
    key, value = struct.unpack_from(layout, content, 7 * size)
    wrong = struct.pack(layout, *((key, value + 1) if suffix == ".index" else (key + 1, value)))
    path.write_bytes(content[: 7 * size] + wrong + content[8 * size :])
    found = audited(data)
    assert [line.partition(": ")[2][:8] for line in findings(found)] == ["entry 7:"]
    path.write_bytes(content[: 7 * size] + wrong + bytes(zeros))
    assert findings(audited(data)) == []


def test_a_batch_within_an_impossible_one_shows_damage(data: DataDirectory, one_segment: Path) -> None:
    """The length of a batch reaches beyond the file's end, but the index and a checksum show that batches follow."""
    content = bytearray(one_segment.read_bytes())
    (length,) = struct.unpack_from(">i", content, 8)
    struct.pack_into(">i", content, 10 * (length + 12) + 8, len(content))
    one_segment.write_bytes(content)
    found = audited(data)
    assert [one.kind for segment in found.segments for one in segment.findings] == ["framing"]
    assert found.total("records") == 19


def test_the_index_of_a_segment_that_is_rolled_this_moment_is_not_final(data: DataDirectory, one_segment: Path) -> None:
    """A roll makes the next segment first. Then it adds the last time, and cuts the indices to their entries."""
    for suffix, size in ((".index", 8), (".timeindex", 12)):
        path = one_segment.with_suffix(suffix)
        path.write_bytes(path.read_bytes()[: 15 * size] + b"\x7f" * size)
    for suffix in (".log", ".index", ".timeindex"):
        (one_segment.parent / f"{20:020d}{suffix}").write_bytes(b"")
    assert findings(audited(data)) == []
