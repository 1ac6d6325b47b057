"""Sections from columns: the plain version against the format's own builder, the kernels against the plain version."""

from __future__ import annotations

import sys
from itertools import accumulate
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.records import NOW_MS, record_lists
from tests.support.requirements import missing
from tidelog.pipeline.sink import build_reference
from tidelog.pipeline.sink.build import ByteColumn, RecordColumns, SectionBuilder, byte_column, load_kernels, read_only
from tidelog.protocol.record.record_batch import BatchOptions, BatchTimes, Record, RecordBatch, assemble_batch

if load_kernels() is None:
    missing("numba", "pip install 'tidelog[kernels]'")

PLAIN, COMPILED = SectionBuilder(kernel_rows=None), SectionBuilder(kernel_rows=0)
COMPILED.expect_rows(1)


def column(rows: list[bytes | None]) -> ByteColumn:
    lengths = np.array([-1 if row is None else len(row) for row in rows], np.int64)
    starts = np.array([0, *accumulate(np.maximum(lengths, 0).tolist())][:-1] if rows else [], np.int64)
    return byte_column(b"".join(row or b"" for row in rows), starts, lengths)


def columns_of(records: list[Record]) -> RecordColumns:
    headers = [header for record in records for header in record.headers]
    counts = [len(record.headers) for record in records]
    return RecordColumns(
        key=column([record.key for record in records]),
        value=column([record.value for record in records]),
        timestamp=read_only(np.array([record.timestamp for record in records], np.int64)),
        header_start=read_only(np.array([0, *accumulate(counts)][:-1], np.int64)),
        header_count=read_only(np.array(counts, np.int64)),
        header_key=column([name.encode() for name, _ in headers]),
        header_value=column([value for _, value in headers]),
    )


def sections(builder: SectionBuilder, columns: RecordColumns, rows: list[int], limit_bytes: int) -> list[bytes]:
    """Batches of all rows in order, each at most ``limit_bytes`` of section."""
    numbers = read_only(np.array(rows, np.int64))
    made, first = [], 0
    while first < len(rows):
        taken = builder.take(columns, numbers, first, limit_bytes)
        section = builder.encode(columns, numbers, first, taken)
        assert len(section) == taken.section_bytes
        times = BatchTimes(taken.base_timestamp, taken.max_timestamp)
        batch = assemble_batch(
            section, BatchOptions(), base_offset=0, last_offset_delta=taken.rows - 1, times=times, count=taken.rows
        )
        made.append(bytes(batch))
        first += taken.rows
    return made


@settings(deadline=None)
@given(record_lists(max_size=30), st.integers(1, 2000), st.randoms(use_true_random=False))
def test_both_engines_build_the_same_sections_and_they_hold_the_records(
    records: list[Record], limit: int, random: Random
) -> None:
    order = list(range(len(records)))
    random.shuffle(order)
    columns = columns_of(records)
    built = sections(PLAIN, columns, order, limit)
    assert sections(COMPILED, columns, order, limit) == built
    read = [record for batch in built for record in RecordBatch(batch).records()]
    expected = [records[index] for index in order]
    assert [r._replace(offset=0, headers=tuple(r.headers)) for r in read] == [r._replace(offset=0) for r in expected]
    assert all(RecordBatch(batch).max_timestamp == max(r.timestamp for r in RecordBatch(batch)) for batch in built)


def test_a_section_ends_before_the_row_that_would_pass_the_limit() -> None:
    columns = columns_of([Record(0, NOW_MS, None, b"v" * 50)] * 5)
    taken = PLAIN.take(columns, read_only(np.arange(5)), 1, 130)
    assert (taken.rows, taken.section_bytes) == (2, 2 * 57)


def test_one_row_is_taken_however_large() -> None:
    columns = columns_of([Record(0, NOW_MS, None, b"v" * 5000)] * 2)
    for builder in (PLAIN, COMPILED):
        assert builder.take(columns, read_only(np.arange(2)), 0, 100).rows == 1


#: Computed by Apache Kafka 4.3's own ``Utils.murmur2``, from the table of its unit test.
KAFKA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", KAFKA_HASHES)
def test_keys_hash_as_in_kafka(key: bytes) -> None:
    assert build_reference.murmur2(key) == KAFKA_HASHES[key] & 0xFFFFFFFF


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=40), max_size=20))
def test_both_engines_hash_keys_alike(keys: list[bytes | None]) -> None:
    assert COMPILED.key_hashes(column(keys)).tolist() == PLAIN.key_hashes(column(keys)).tolist()


def test_kernels_wait_for_enough_rows() -> None:
    loaded = sys.modules.pop("tidelog.pipeline.sink.build_kernels")
    builder = SectionBuilder(kernel_rows=10)
    builder.expect_rows(5)
    builder.expect_rows(4)
    assert builder._kernels is None
    builder.expect_rows(1)
    assert builder._kernels is load_kernels()
    sys.modules["tidelog.pipeline.sink.build_kernels"] = loaded


def test_kernels_that_are_there_are_used_at_once() -> None:
    builder = SectionBuilder()
    builder.expect_rows(1)
    assert builder._kernels is load_kernels()
