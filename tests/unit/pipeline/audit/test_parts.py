"""Parts of an audit: sequence numbers that wrap, buckets whose counts add up, indices with holes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pipelines import DataDirectory
from tidelog.pipeline.audit import buckets as audit_buckets
from tidelog.pipeline.audit.buckets import BUCKET_MS, Buckets
from tidelog.pipeline.audit.indices import IndexCheck
from tidelog.pipeline.audit.producers import ProducerSpan, follow, join
from tidelog.pipeline.audit.segment import SegmentPlan, audit_segment
from tidelog.pipeline.engine import reference as at
from tidelog.pipeline.engine.engine import HashRoom
from tidelog.pipeline.files.segment_files import SegmentFile
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch, set_crc

LAST_SEQUENCE = 2**31 - 1


def rows(*batches: tuple[int, int, int, int]) -> Any:
    """Build rows of (producer id, epoch, sequence, records)."""
    table = np.zeros((len(batches), at.COLUMNS), np.int64)
    offset = 0
    for row, (producer, epoch, sequence, count) in zip(table, batches, strict=True):
        row[[at.PRODUCER_ID, at.PRODUCER_EPOCH, at.SEQUENCE, at.RECORD_COUNT]] = producer, epoch, sequence, count
        row[[at.BASE_OFFSET, at.LAST_OFFSET]] = offset, offset + count - 1
        offset += count
    return table


@pytest.mark.parametrize(
    ("batches", "duplicates"),
    [
        ([(1, 0, 0, 5), (1, 0, 5, 5)], []),
        ([(1, 0, 0, 5), (1, 0, 0, 5)], [1]),
        ([(1, 0, 0, 5), (1, 0, 3, 5)], [1]),
        ([(1, 0, 0, 5), (2, 0, 0, 5), (1, 0, 5, 5), (2, 0, 4, 1)], [3]),
        ([(1, 0, 0, 5), (1, 1, 0, 5)], []),
        ([(1, 0, 0, 5), (1, 0, 9, 5)], []),
        ([(1, 0, LAST_SEQUENCE - 4, 5), (1, 0, 0, 5)], []),
        ([(1, 0, LAST_SEQUENCE - 2, 5), (1, 0, 2, 5)], []),
        ([(1, 0, LAST_SEQUENCE - 2, 5), (1, 0, LAST_SEQUENCE, 5)], [1]),
    ],
)
def test_a_batch_that_its_producer_wrote_before_is_a_duplicate(
    batches: list[tuple[int, int, int, int]], duplicates: list[int]
) -> None:
    assert follow(rows(*batches), {}) == duplicates


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1), st.integers(0, 12), st.integers(1, 4)), max_size=12),
    st.integers(0, 12),
)
def test_cutting_a_stretch_in_two_finds_the_same(batches: list[tuple[int, int, int, int]], cut: int) -> None:
    whole: dict[int, ProducerSpan] = {}
    expected = follow(rows(*batches), whole) if batches else []
    parts: dict[int, ProducerSpan] = {}
    first, second = batches[:cut], batches[cut:]
    found = follow(rows(*first), parts) if first else []
    found += [len(first) + row for row in follow(rows(*second), parts)] if second else []
    assert (found, parts) == (expected, whole)


@pytest.mark.parametrize(
    ("before", "after", "overlaps"),
    [
        (ProducerSpan(0, 0, 0, 9), ProducerSpan(0, 10, 0, 19), False),
        (ProducerSpan(0, 0, 0, 9), ProducerSpan(0, 9, 0, 19), True),
        (ProducerSpan(0, 0, 0, 9), ProducerSpan(1, 0, 1, 9), False),
        (ProducerSpan(0, 0, 0, LAST_SEQUENCE), ProducerSpan(0, 0, 0, 9), False),
    ],
)
def test_stretches_of_a_producer_are_joined(before: ProducerSpan, after: ProducerSpan, overlaps: bool) -> None:
    assert join(before, after) is overlaps


@given(st.lists(st.tuples(st.integers(-1, 5 * BUCKET_MS), st.integers(0, 2**64 - 1)), max_size=40), st.integers(0, 40))
def test_buckets_do_not_depend_on_order_or_parts(records: list[tuple[int, int]], cut: int) -> None:
    expected: Buckets = {}
    for timestamp, hashed in records:
        begin = timestamp // BUCKET_MS * BUCKET_MS
        count, total = expected.get(begin, (0, 0))
        expected[begin] = (count + 1, (total + hashed) % 2**64)
    found: Buckets = {}
    for part in (records[cut:], records[:cut]):
        mine: Buckets = {}
        times = np.array([record[0] for record in part], np.int64)
        audit_buckets.add(mine, times, np.array([record[1] for record in part], np.uint64))
        audit_buckets.merge(found, mine)
    assert found == expected


def test_zeros_after_the_entries_of_an_open_log_are_no_entry(tmp_path: Path) -> None:
    (tmp_path / "0.index").write_bytes(struct.pack(">iiii", 4, 100, 9, 200) + bytes(80))
    (tmp_path / "0.timeindex").write_bytes(struct.pack(">qi", 1000, 9) + bytes(120))
    check = IndexCheck.open(SegmentFile(0, str(tmp_path / "0.log")))
    assert (check.offsets.tolist(), check.positions.tolist()) == ([4, 9], [100, 200])
    assert (check.timestamps.tolist(), check.time_offsets.tolist()) == ([1000], [9])
    assert ([p for p, _ in check.batches_after(100)], [*check.batches_after(200)], check.missing) == ([200], [], ())


def test_preallocated_indices_without_entries_are_empty(tmp_path: Path) -> None:
    (tmp_path / "0.index").write_bytes(bytes(80))
    (tmp_path / "0.timeindex").write_bytes(bytes(120))
    assert IndexCheck.open(SegmentFile(0, str(tmp_path / "0.log"))).entries == 0


def test_entries_that_go_back_are_reported(tmp_path: Path) -> None:
    (tmp_path / "0.index").write_bytes(struct.pack(">iiii", 9, 100, 4, 200))
    (tmp_path / "0.timeindex").write_bytes(struct.pack(">qiqi", 1000, 4, 900, 9))
    check = IndexCheck.open(SegmentFile(0, str(tmp_path / "0.log")))
    check.finish(1000, is_final=True, is_whole=False)
    assert [fault.message for fault in check.faults] == [
        "offset 4 does not follow 9",
        "timestamp 900 does not follow 1000",
    ]


@pytest.mark.parametrize("codec", [0, 1])
def test_a_count_of_records_beyond_the_batch_needs_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: int
) -> None:
    """Room for two thousand million records was allocated, although the batch has a few bytes."""
    batch = build_batch([Record(0, 1, b"k", b"v")], BatchOptions(compression=codec))
    batch[57:61] = (2**31 - 1).to_bytes(4, "big")
    set_crc(batch, 0, len(batch))
    log = DataDirectory(tmp_path / "data").log("t")
    path = Path(log.directory) / f"{0:020d}.log"
    path.write_bytes(batch)
    rooms: list[int] = []
    monkeypatch.setattr(HashRoom, "make_room", lambda _, count: rooms.append(count))
    found = audit_segment(SegmentPlan("t", 0, SegmentFile(0, str(path)), len(batch), is_closed=False))
    assert found is not None
    assert [finding.kind for finding in found.findings] == ["records"]
    assert rooms == []
