"""Two engines, equal results: the kernels against the reference, on good, damaged and arbitrary bytes."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.records import NOW_MS, batch_of, record_lists
from tests.support.requirements import missing
from tidelog.log.records import engine as engine_module
from tidelog.log.records import kernel_loader, reference
from tidelog.log.records.engine import RecordEngine
from tidelog.log.records.machine_code import ImageError
from tidelog.log.records.native_kernels import NativeKernels, compile_image
from tidelog.log.records.reference import SectionCheck, TimestampPosition
from tidelog.log.records.work_budget import NO_LIMIT
from tidelog.protocol.errors import InvalidRecordError
from tidelog.protocol.record.record_batch import Record, RecordBatch, RecordContext, build_batch, parse_records

try:
    from tidelog.log.records import kernels
except ImportError:
    missing("numba", "pip install 'tidelog[kernels]'")


def compiled() -> RecordEngine:
    engine = RecordEngine()
    engine.use_kernels(kernels)
    return engine


def native() -> RecordEngine:
    """The kernels as machine code; those of numba where that cannot be."""
    engine = RecordEngine()
    try:
        engine.use_kernels(NativeKernels(compile_image()))
    except ImageError:  # another processor
        engine.use_kernels(kernels)
    return engine


COMPILED, NATIVE = compiled(), native()
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


def outcome(call: Callable[[], object]) -> object:
    """A result, or the documented error as a value; anything else fails the test."""
    try:
        return call()
    except InvalidRecordError as error:
        return f"InvalidRecordError: {error}"


@settings(max_examples=1000)
@given(section=sections, count=st.integers(-2, 20))
@example(section=b"\x0e\x00\x00\x00\x02k\x01\x00" * 3, count=3)
@example(section=b"\x0e\x00\x00\x00\x02k\x01\x00" * 3, count=2**31 - 1)
@example(section=b"\xff" * 60, count=3)
@example(section=b"\x8e\x80\x80\x80\x80" + b"\x00" * 20, count=2)
@example(section=b"\x1c\x00" + b"\xff" * 9 + b"\x01\x00\x01\x01\x00" + b"\x0e\x00\x00\x00\x02k\x01\x00", count=2)
def test_engines_agree_on_the_structure_of_any_bytes(section: bytes, count: int) -> None:
    expected = outcome(lambda: reference.check_section(section, count))
    assert outcome(lambda: COMPILED.check_section(memoryview(section), count)) == expected
    assert outcome(lambda: NATIVE.check_section(memoryview(bytearray(section)), count)) == expected


@given(
    section=sections,
    count=st.integers(0, 20),
    delta=st.integers(-(2**62), 2**62) | st.integers(-5, 5),
    low=st.integers(-1, 3000),
)
def test_engines_agree_on_look_ups_in_any_bytes(section: bytes, count: int, delta: int, low: int) -> None:
    expected = outcome(lambda: reference.first_at_or_after(section, count, delta, low))
    assert outcome(lambda: COMPILED.first_at_or_after(section, count, delta, low)) == expected
    assert outcome(lambda: NATIVE.first_at_or_after(section, count, delta, low)) == expected


@settings(max_examples=500)
@given(section=sections, count=st.integers(0, 12))
def test_what_passes_the_check_can_be_parsed_and_nothing_else(section: bytes, count: int) -> None:
    checked = outcome(lambda: reference.check_section(section, count))
    parsed = outcome(lambda: list(parse_records(section, count, RecordContext(0, 0))))
    assert isinstance(checked, SectionCheck) == isinstance(parsed, list)
    if isinstance(checked, SectionCheck) and isinstance(parsed, list) and parsed:
        times = [record.timestamp for record in parsed]
        assert (checked.min_timestamp_delta, checked.max_timestamp_delta) == (min(times), max(times))
        keyless = [index for index, record in enumerate(parsed) if record.key is None]
        assert checked.first_keyless_index == (keyless[0] if keyless else -1)
        assert checked.is_consecutive == ([record.offset for record in parsed] == list(range(count)))


@given(record=record_lists(max_size=1))
def test_the_short_cut_for_one_record_says_what_the_walk_says(record: list[Record]) -> None:
    section = bytes(build_batch(record)[61:])
    assert reference.check_section(section, 1) == reference.check_records(section, 1, NO_LIMIT)


@given(section=st.binary(min_size=7, max_size=30))
def test_the_short_cut_accepts_nothing_the_walk_refuses(section: bytes) -> None:
    usual = reference.check_usual_record(section)
    if usual is not None:
        assert usual == reference.check_records(section, 1, NO_LIMIT)


@pytest.mark.parametrize("engine", [RecordEngine(), COMPILED, NATIVE], ids=["reference", "kernels", "native"])
def test_look_ups(engine: RecordEngine) -> None:
    times = [5, 3, 9, 9, 7]
    batch = RecordBatch(build_batch([Record(10 + i, NOW_MS + t, b"k", b"v") for i, t in enumerate(times)]))
    section, count = batch.records_section(), batch.record_count
    assert engine.first_at_or_after(section, count, -100, 0) == TimestampPosition(0, 0)
    assert engine.first_at_or_after(section, count, 1, 0) == TimestampPosition(2, 4)
    assert engine.first_at_or_after(section, count, 1, 3) == TimestampPosition(3, 4)
    assert engine.first_at_or_after(section, count, 5, 0) is None


def test_loading_starts_once_after_enough_work(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def load(on_loaded: Callable[[ModuleType], None]) -> None:
        started.append("once")
        on_loaded(kernels)

    monkeypatch.setattr(kernel_loader, "load_record_kernels", load)
    section = memoryview(batch_of(10))[61:]
    engine = RecordEngine(load_after_bytes=2 * len(section))
    engine.check_section(section, 10)
    assert not started
    assert not engine.has_kernels
    engine.check_section(section, 10)
    engine.check_section(section, 10)
    assert started == ["once"]
    assert engine.has_kernels


def test_small_sections_never_ask_for_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_loader, "load_record_kernels", pytest.fail)
    engine = RecordEngine(load_after_bytes=1)
    for _ in range(10):
        engine.check_section(memoryview(batch_of(1))[61:], 1)
    assert not engine.has_kernels


def test_a_kernel_that_is_wrong_about_damage_changes_nothing() -> None:
    """Semantics never depend on the engine: a kernel's complaint is only a reason to ask the reference."""

    def always(*arguments: Any) -> tuple[int, ...]:
        return (1, 0, 0, 0, 0)[: 3 if len(arguments) == 4 else 5]

    suspicious = SimpleNamespace(check_section=always, first_at_or_after=always)
    engine = RecordEngine()
    engine.use_kernels(cast(ModuleType, suspicious))
    section = bytes(batch_of(5)[61:])
    assert engine.check_section(section, 5) == reference.check_section(section, 5)
    assert engine.first_at_or_after(section, 5, 2, 0) == reference.first_at_or_after(section, 5, 2, 0)


def test_an_emptied_batch_is_well_formed() -> None:
    assert COMPILED.check_section(b"", 0) == reference.NOTHING
    with pytest.raises(InvalidRecordError, match="remain"):
        COMPILED.check_section(b"\x00", 0)


def test_module_functions_are_the_processes_engine() -> None:
    assert engine_module.check_section == engine_module.ENGINE.check_section
