"""Records sections built from columns: the reference against the general builder, compiled code against the
reference."""

from __future__ import annotations

from itertools import accumulate
from random import Random
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import build_reference
from tests.support.depth import DEPTH
from tests.support.extensions import uncompiled
from tests.support.records import NOW_MS, record_lists
from tidelog.pipeline.sink import build
from tidelog.pipeline.sink import sections as compiled
from tidelog.pipeline.sink.build import ByteColumn, RecordColumns, TakenRows, byte_column, read_only
from tidelog.protocol.record.record_batch import BatchOptions, BatchTimes, Record, RecordBatch, assemble_batch

PLAIN = uncompiled(compiled)


@pytest.fixture(params=["as built", "uncompiled"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "uncompiled":
        monkeypatch.setattr(build, "sections", PLAIN)


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


def sections(builder: ModuleType, columns: RecordColumns, rows: list[int], limit_bytes: int) -> list[bytes]:
    """Build batches of all rows in order, each at most ``limit_bytes`` of section."""
    numbers = read_only(np.array(rows, np.int64)) if builder is build else rows
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


@pytest.mark.parametrize("part", range(2))
@settings(max_examples=50 * DEPTH, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=record_lists(max_size=30), limit=st.integers(1, 2000), seed=st.integers(0, 1 << 32))
def test_sections_are_those_of_the_reference_and_hold_the_records(
    records: list[Record], limit: int, seed: int, part: int
) -> None:
    order = list(range(len(records)))
    Random(seed).shuffle(order)
    columns = columns_of(records)
    built = sections(build_reference, columns, order, limit)
    assert sections(build, columns, order, limit) == built
    read = [record for batch in built for record in RecordBatch(batch).records()]
    expected = [records[index] for index in order]
    assert [r._replace(offset=0, headers=tuple(r.headers)) for r in read] == [r._replace(offset=0) for r in expected]
    assert all(RecordBatch(batch).max_timestamp == max(r.timestamp for r in RecordBatch(batch)) for batch in built)


def test_a_section_ends_before_the_row_that_would_pass_the_limit() -> None:
    columns = columns_of([Record(0, NOW_MS, None, b"v" * 50)] * 5)
    taken = build.take(columns, read_only(np.arange(5)), 1, 130)
    assert (taken.rows, taken.section_bytes) == (2, 2 * 57)


def test_one_row_is_taken_however_large() -> None:
    columns = columns_of([Record(0, NOW_MS, None, b"v" * 5000)] * 2)
    assert build.take(columns, read_only(np.arange(2)), 0, 100).rows == 1


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
    assert build.key_hashes(column([key])).tolist() == [KAFKA_HASHES[key] & 0x7FFFFFFF]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.none() | st.binary(max_size=40), max_size=20))
def test_keys_hash_as_by_the_reference(keys: list[bytes | None]) -> None:
    assert build.key_hashes(column(keys)).tolist() == build_reference.key_hashes(column(keys))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 1 << 47), min_size=1, max_size=8), st.data())
def test_sections_of_any_columns_are_those_of_the_reference(times: list[int], draw: st.DataObject) -> None:
    """Fields may overlap, and rows may be repeated or missing: columns only give the positions of bytes."""
    count = len(times)
    data = draw.draw(st.binary(min_size=1, max_size=300))

    def fields(rows: int, least: int = -1) -> ByteColumn:
        starts = [draw.draw(st.integers(0, len(data))) for _ in range(rows)]
        sizes = [draw.draw(st.integers(least, len(data) - start)) for start in starts]
        return byte_column(data, np.array(starts, np.int64), np.array(sizes, np.int64))

    key, value, header_value = fields(count), fields(count), fields(3)
    header_key = byte_column(b"name", np.zeros(3, np.int64), np.array([0, 4, 2]))
    starts = read_only(np.array([draw.draw(st.integers(0, 3)) for _ in times]))
    counts = read_only(np.array([draw.draw(st.integers(0, 3 - start)) for start in starts.tolist()]))
    columns = RecordColumns(key, value, read_only(np.array(times)), starts, counts, header_key, header_value)
    rows = draw.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=12))
    limit = draw.draw(st.integers(1, 400))
    assert sections(build, columns, rows, limit) == sections(build_reference, columns, rows, limit)


def test_buffers_are_released() -> None:
    for module in (compiled, PLAIN):
        data = bytearray(b"key")
        out, hashes, rows = bytearray(20), bytearray(8), bytearray(8)
        field = ByteColumn(data, bytearray(8), bytearray((3).to_bytes(8, "little")))  # type: ignore[arg-type]
        none = byte_column(b"", np.zeros(0, np.int64), np.zeros(0, np.int64))
        zero = read_only(np.zeros(1, np.int64))
        columns = RecordColumns(field, field, zero, zero, zero, none, none)
        module.write_key_hashes(field, hashes)
        taken = TakenRows(*module.take(columns, rows, 0, 100))
        assert module.encode(columns, rows, 0, taken.rows, out) == taken.section_bytes
        for used in (data, out, hashes, rows):
            used.append(0)  # raises BufferError while it is held
