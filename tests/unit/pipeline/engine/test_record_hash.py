"""Compiled routines of the audit against the plain reference, for valid and damaged bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.depth import DEPTH
from tests.support.extensions import uncompiled
from tests.support.records import batch_of, nullable_bytes, record_lists
from tidelog.pipeline.engine import engine, record_hash, reference
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

ROOM = 64
ROUTINES = (record_hash, uncompiled(record_hash))


def as_array(data: bytes | bytearray) -> Any:
    return np.frombuffer(bytes(data), np.uint8)


def walked(engine: Any, data: bytes | bytearray, rows: int, start: int = 0) -> tuple[tuple[int, ...], list[list[int]]]:
    table = np.zeros((rows, reference.COLUMNS), np.int64)
    stop, count, at = engine.walk_batches(as_array(data), start, len(data), table)
    return (int(stop), int(count), int(at)), table[:count].tolist()


def hashed(engine: Any, section: bytes, bases: tuple[int, int, int], count: int) -> Any:
    out = (np.zeros(ROOM, np.int64), np.zeros(ROOM, np.int64), np.zeros(ROOM, np.uint64))
    done = int(engine.hash_section(as_array(section), bases, count, out))
    return done, [column[: max(done, 0)].tolist() for column in out]


@settings(max_examples=40 * DEPTH)
@given(st.lists(record_lists(holes=True), max_size=4), st.integers(0, 80), st.integers(1, 5), st.integers(0, 30))
def test_walks_are_equal_over_whole_cut_and_damaged_chunks(
    batches: list[list[Record]], cut: int, rows: int, damage: int
) -> None:
    data = bytearray(b"".join(build_batch(records) for records in batches))
    del data[len(data) - min(cut, len(data)) :]
    if damage and len(data) > damage * 7:
        data[damage * 7] ^= 0x41
    expected = walked(reference, data, rows)
    assert [walked(routines, data, rows) for routines in ROUTINES] == [expected, expected]


def test_a_walk_has_a_row_for_each_batch_with_its_validity() -> None:
    options = BatchOptions(producer_id=9, producer_epoch=2, base_sequence=5)
    first, second = build_batch([Record(3, 10, b"k", b"v"), Record(7, 30, None, None)], options), batch_of(2)
    second[70] ^= 1
    (stop, count, at), rows = walked(record_hash, bytes(first + second), 9)
    assert (stop, count, at) == (reference.NEED_BYTES, 2, len(first) + len(second))
    assert rows[0] == [0, len(first), 3, 7, 10, 30, 0, 9, 2, 5, 2, 1]
    assert rows[1][reference.IS_VALID] == 0


@settings(max_examples=40 * DEPTH)
@given(record_lists(holes=True), st.integers(-1, 2**40), st.integers(0, 200), st.integers(0, 255))
def test_hashes_are_equal_for_good_and_damaged_sections(
    records: list[Record], append_time: int, where: int, change: int
) -> None:
    batch = build_batch(records)
    section = bytearray(batch[61:])
    if where < len(section):
        section[where] ^= change
    bases = (records[0].offset, records[0].timestamp, append_time)
    expected = hashed(reference, bytes(section), bases, len(records))
    found = hashed(record_hash, bytes(section), bases, len(records))
    assert found == expected == hashed(ROUTINES[1], bytes(section), bases, len(records))
    if where >= len(section) or not change:
        times = [append_time if append_time >= 0 else record.timestamp for record in records]
        hashes = [reference.record_hash(r.offset, time, r.key, r.value) for r, time in zip(records, times, strict=True)]
        assert found[1] == [[r.offset for r in records], times, hashes]


#: Sections that end within a record, or whose records are longer or shorter than their fields.
SMALL = st.one_of(
    st.binary(max_size=24), st.lists(st.sampled_from(bytes([0, 1, 2, 4, 6, 10, 12, 14, 128])), max_size=24).map(bytes)
)


@settings(max_examples=100 * DEPTH)
@given(SMALL, st.integers(0, 4))
@example(bytes.fromhex("02000c000101010100"), 2)
@example(bytes.fromhex("000e00000101010000"), 2)
def test_sections_of_any_bytes_are_hashed_or_refused_alike(section: bytes, count: int) -> None:
    expected = hashed(reference, section, (5, 7, -1), count)
    assert [hashed(routines, section, (5, 7, -1), count) for routines in ROUTINES] == [expected, expected]


def test_fields_of_every_length_hash_alike() -> None:
    content = bytes(range(7, 207))
    values: list[bytes | None] = [content[size % 3 : size % 3 + size] for size in range(150)]
    places = np.arange(len(values)), np.arange(len(values)) * 1000
    found = []
    for routines in (*ROUTINES, reference):
        hashes = np.zeros(len(values), np.uint64)
        routines.hash_columns(places, column([None] * len(values)), column(values), hashes)
        found.append(hashes.tolist())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("size", [1, 7, 8, 15, 16, 17, 31, 32, 33, 48, 49, 64, 100])
def test_every_bit_of_a_field_counts(size: int) -> None:
    value = bytes(range(size))
    hashes = {reference.record_hash(5, 6, None, value), reference.record_hash(5, 6, value, None)}
    for bit in range(8 * size):
        changed = bytearray(value)
        changed[bit // 8] ^= 1 << bit % 8
        hashes.add(reference.record_hash(5, 6, None, bytes(changed)))
    assert len(hashes) == 8 * size + 2


def test_the_hash_distinguishes_null_from_empty_and_key_from_value() -> None:
    fields = [
        (None, None),
        (b"", None),
        (None, b""),
        (b"", b""),
        (b"\0", b""),
        (b"", b"\0"),
        (b"a", b"b"),
        (b"b", b"a"),
    ]
    assert len({reference.record_hash(0, 0, *pair) for pair in fields}) == len(fields)


def test_the_definition_of_the_checksum_is_that_of_its_version() -> None:
    value = bytes(range(100))
    assert reference.CHECKSUM_VERSION == 2
    assert reference.record_hash(7, 1_700_000_000_000, b"key", value) == 0x315065408C220779


@settings(max_examples=40 * DEPTH)
@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(-1, 2**50), nullable_bytes, nullable_bytes), max_size=9))
def test_columns_hash_as_records_do(rows: list[tuple[int, int, bytes | None, bytes | None]]) -> None:
    places = (np.array([row[0] for row in rows], np.int64), np.array([row[1] for row in rows], np.int64))
    found = []
    for routines in (*ROUTINES, reference):
        hashes = np.zeros(len(rows), np.uint64)
        routines.hash_columns(places, column([row[2] for row in rows]), column([row[3] for row in rows]), hashes)
        found.append(hashes.tolist())
    assert found[0] == found[1] == found[2] == [reference.record_hash(*row) for row in rows]


def column(values: list[bytes | None]) -> Any:
    starts = np.cumsum([0, *(len(value or b"") for value in values)]).astype(np.int64)
    return as_array(b"".join(value or b"" for value in values)), starts, np.array([v is not None for v in values], "u1")


@pytest.mark.parametrize("routines", [reference, *ROUTINES], ids=["reference", "as built", "uncompiled"])
def test_rows_are_hashed_until_a_compressed_batch_or_the_end_of_the_table(routines: Any) -> None:
    chunk = bytes(batch_of(3) + batch_of(2) + batch_of(4, compression=1))
    table = np.zeros((9, reference.COLUMNS), np.int64)
    assert routines.walk_batches(as_array(chunk), 0, len(chunk), table)[1] == 3
    for room, rows, records in ((64, 2, 5), (4, 1, 3), (2, 0, 0)):
        assert routines.hash_rows(as_array(chunk), table, 0, 3, room_of(room)) == (rows, records)
    assert routines.hash_rows(as_array(chunk[:-100]), table, 0, 3, room_of(64))[0] < 3, "rows of bytes that are gone"


@settings(max_examples=40 * DEPTH)
@given(st.lists(record_lists(holes=True), max_size=4), st.integers(0, 900), st.integers(0, 255), st.integers(1, 40))
def test_rows_hash_alike_with_and_without_damage(
    batches: list[list[Record]], where: int, change: int, room: int
) -> None:
    data = bytearray(b"".join(build_batch(records) for records in batches))
    table = np.zeros((9, reference.COLUMNS), np.int64)
    count = reference.walk_batches(as_array(data), 0, len(data), table)[1]
    if where < len(data):
        data[where] ^= change
    answers = []
    for routines in (reference, *ROUTINES):
        out = room_of(room)
        done, records = routines.hash_rows(as_array(data), table, 0, count, out)
        answers.append((done, records, [column[:records].tolist() for column in out]))
    assert answers[0] == answers[1] == answers[2]


def room_of(records: int) -> Any:
    return np.zeros(records, np.int64), np.zeros(records, np.int64), np.zeros(records, np.uint64)


@pytest.mark.parametrize("timestamp", [2**63 - 1, -(2**63)])
def test_times_that_need_more_than_64_bits_wrap_as_in_java(timestamp: int) -> None:
    section = bytes(build_batch([Record(0, 7, None, b"v"), Record(1, 5, None, b"v"), Record(2, 9, None, b"v")])[61:])
    expected = hashed(reference, section, (0, timestamp, -1), 3)
    assert expected[0] == 3
    assert [hashed(routines, section, (0, timestamp, -1), 3) for routines in ROUTINES] == [expected, expected]


def test_arrays_are_released_and_others_refused() -> None:
    section = bytearray(batch_of(3)[61:])
    for routines in ROUTINES:
        assert routines.hash_section(section, (0, 0, -1), 3, room_of(3)) == 3
        section.append(section.pop())  # raises BufferError while it is held
        with pytest.raises((TypeError, BufferError)):
            routines.hash_section("text", (0, 0, -1), 3, room_of(3))


def test_the_compiled_routines_serve_where_there_are_any() -> None:
    chosen = record_hash if record_hash.IS_COMPILED else reference
    assert engine.engine()._routines is chosen
