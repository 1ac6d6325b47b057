"""Compiled walks against the reference, on valid, damaged and arbitrary bytes."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.depth import DEPTH
from tests.support.extensions import uncompiled
from tests.support.records import NOW_MS, batch_of, record_lists
from tidelog.log.records import engine, reference, section_walk
from tidelog.log.records.reference import SectionCheck, TimestampPosition
from tidelog.log.records.work_budget import NO_LIMIT
from tidelog.protocol.errors import InvalidRecordError
from tidelog.protocol.record.record_batch import (
    BatchOptions,
    Record,
    RecordBatch,
    RecordContext,
    build_batch,
    parse_records,
)

WALKS = (section_walk, uncompiled(section_walk))
sections = st.one_of(
    st.binary(max_size=80),
    record_lists(holes=True).map(lambda records: bytes(build_batch(records)[61:])),
    st.builds(
        lambda records, position, byte: _with_byte(bytearray(build_batch(records)[61:]), position, byte),
        record_lists(),
        st.integers(0, 2000),
        st.integers(0, 255),
    ),
)


def _with_byte(section: bytearray, position: int, byte: int) -> bytes:
    section[position % len(section)] = byte
    return bytes(section)


def outcome(call: Callable[..., object], *arguments: object) -> object:
    """Return a result, or the documented error as a value; anything else fails the test."""
    try:
        return call(*arguments)
    except InvalidRecordError as error:
        return f"InvalidRecordError: {error}"


@settings(max_examples=100 * DEPTH)
@given(section=sections, count=st.integers(-2, 20))
@example(section=b"\x0e\x00\x00\x00\x02k\x01\x00" * 3, count=3)
@example(section=b"\x0e\x00\x00\x00\x02k\x01\x00" * 3, count=2**31 - 1)
@example(section=b"\xff" * 60, count=3)
@example(section=b"\x8e\x80\x80\x80\x80" + b"\x00" * 20, count=2)
@example(section=b"\x1c\x00" + b"\xff" * 9 + b"\x01\x00\x01\x01\x00" + b"\x0e\x00\x00\x00\x02k\x01\x00", count=2)
def test_engines_agree_on_the_structure_of_any_bytes(section: bytes, count: int) -> None:
    expected = outcome(reference.check_section, section, count)
    for walk in WALKS:
        assert outcome(walk.check_section, memoryview(section), count) == expected
        assert outcome(walk.check_section, bytearray(section), count) == expected


@given(
    section=sections,
    count=st.integers(0, 20),
    delta=st.integers(-(2**62), 2**62) | st.integers(-5, 5),
    low=st.integers(-1, 3000),
)
def test_engines_agree_on_look_ups_in_any_bytes(section: bytes, count: int, delta: int, low: int) -> None:
    expected = outcome(reference.first_at_or_after, section, count, delta, low)
    for walk in WALKS:
        assert outcome(walk.first_at_or_after, section, count, delta, low) == expected


@settings(max_examples=100 * DEPTH)
@given(section=sections, count=st.integers(0, 12))
def test_exactly_the_sections_that_pass_the_check_can_be_parsed(section: bytes, count: int) -> None:
    checked = outcome(reference.check_section, section, count)
    parsed = outcome(lambda: list(parse_records(section, count, RecordContext(0, 0))))
    assert isinstance(checked, SectionCheck) == isinstance(parsed, list)
    if isinstance(checked, SectionCheck) and isinstance(parsed, list) and parsed:
        times = [record.timestamp for record in parsed]
        assert (checked.min_timestamp_delta, checked.max_timestamp_delta) == (min(times), max(times))
        keyless = [index for index, record in enumerate(parsed) if record.key is None]
        assert checked.first_keyless_index == (keyless[0] if keyless else -1)
        assert checked.is_consecutive == ([record.offset for record in parsed] == list(range(count)))


@settings(max_examples=100 * DEPTH)
@given(section=sections, count=st.integers(-2, 12))
def test_values_are_found_where_records_can_be_parsed_and_nowhere_else(section: bytes, count: int) -> None:
    parsed = outcome(lambda: list(parse_records(section, count, RecordContext(0, 0))))
    for walk in WALKS:
        spans = walk.value_spans(section, count)
        assert (spans is None) == isinstance(parsed, str)
        if spans is not None and isinstance(parsed, list):
            found = [(delta, None if size < 0 else section[start : start + size]) for delta, start, size in spans]
            assert found == [(record.offset, record.value) for record in parsed]


@given(records=record_lists(holes=True), compression=st.sampled_from([0, 1]))
def test_values_of_a_batch_are_listed_with_their_offsets(records: list[Record], compression: int) -> None:
    batch = RecordBatch(build_batch(records, BatchOptions(compression=compression)))
    assert list(engine.record_values(batch, 1 << 20)) == [(record.offset, record.value) for record in records]


def test_values_of_a_malformed_batch_are_refused_with_the_reason() -> None:
    batch = build_batch([Record(0, NOW_MS, None, b"value")])
    batch[-1] = 9
    with pytest.raises(InvalidRecordError, match="number of record headers"):
        list(engine.record_values(RecordBatch(batch), 1 << 20))


@given(record=record_lists(max_size=1))
def test_the_short_cut_for_one_record_agrees_with_the_walk(record: list[Record]) -> None:
    section = bytes(build_batch(record)[61:])
    assert reference.check_section(section, 1) == reference.check_records(section, 1, NO_LIMIT)


@settings(max_examples=100 * DEPTH)
@given(record=record_lists(max_size=1), position=st.integers(-4, 8), byte=st.integers(0, 255))
def test_the_short_cut_accepts_nothing_the_walk_refuses(record: list[Record], position: int, byte: int) -> None:
    section = _with_byte(bytearray(build_batch(record)[61:]), position, byte)
    usual = reference.check_usual_record(section)
    if usual is not None:
        assert usual == reference.check_records(section, 1, NO_LIMIT)


@pytest.mark.parametrize("walk", [reference, *WALKS], ids=["reference", "as built", "uncompiled"])
def test_look_ups(walk: ModuleType) -> None:
    times = [5, 3, 9, 9, 7]
    batch = RecordBatch(build_batch([Record(10 + i, NOW_MS + t, b"k", b"v") for i, t in enumerate(times)]))
    section, count = batch.records_section(), batch.record_count
    assert walk.first_at_or_after(section, count, -100, 0) == TimestampPosition(0, 0)
    assert walk.first_at_or_after(section, count, 1, 0) == TimestampPosition(2, 4)
    assert walk.first_at_or_after(section, count, 1, 3) == TimestampPosition(3, 4)
    assert walk.first_at_or_after(section, count, 5, 0) is None


def test_a_large_section_is_walked_as_a_small_one_is() -> None:
    """For more than a few KB the interpreter lock is released."""
    section = memoryview(batch_of(300))[61:]
    for walk in WALKS:
        assert walk.check_section(section, 300) == reference.check_section(section, 300)
        assert walk.first_at_or_after(section, 300, 250, 0) == TimestampPosition(250, 250)


def test_a_walk_that_is_wrong_about_damage_changes_nothing() -> None:
    """Only the reference says what is malformed: a walk's complaint is a reason to ask it."""
    section = bytes(batch_of(5)[61:])
    assert reference.explain(section, 5) == reference.check_section(section, 5)


def test_an_emptied_batch_is_well_formed() -> None:
    for walk in WALKS:
        assert walk.check_section(b"", 0) == reference.NOTHING
        with pytest.raises(InvalidRecordError, match="remain"):
            walk.check_section(b"\x00", 0)


def test_a_buffer_is_released() -> None:
    for walk in WALKS:
        section = bytearray(batch_of(5)[61:])
        walk.check_section(section, 5)
        walk.first_at_or_after(section, 5, 2, 0)
        section.append(0)  # raises BufferError while it is held


def test_an_argument_that_is_no_buffer_is_refused() -> None:
    for walk in WALKS:
        with pytest.raises(TypeError):
            walk.check_section("text", 1)


def test_the_compiled_walk_serves_where_there_is_one() -> None:
    chosen = section_walk if section_walk.IS_COMPILED else reference
    assert engine.check_section is chosen.check_section
    assert engine.first_at_or_after is chosen.first_at_or_after
