"""WorkBudget: the work that a request's records may cause in a turn, and records that are left to a thread."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.support.records import NOW_MS, batch_of
from tidelog.log.records import engine, reference, section_walk, work_budget
from tidelog.log.records.work_budget import (
    MAX_REBUILT_RECORDS,
    NO_LIMIT,
    TURN,
    TURN_HEADER_BYTES,
    TURN_OLD_BYTES,
    TURN_PLAIN_BYTES,
    TURN_REBUILT_RECORDS,
    TURN_RECOMPRESSED_BYTES,
    TURN_RECORDS,
    TooMuchForTurnError,
    WorkBudget,
    one_batch_budget,
)
from tidelog.log.validation import message_sets, validator
from tidelog.log.validation.params import RejectedTimestampsError, ValidationParams
from tidelog.log.validation.result import ValidationResult
from tidelog.log.validation.validator import LogValidator
from tidelog.protocol.errors import InvalidRecordError, MessageTooLargeError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.compression import CompressionType, compress
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch, set_crc

GZIP, ZSTD = CompressionType.GZIP, CompressionType.ZSTD


def validate(records: bytes | bytearray, budget: WorkBudget, **params: int | bool | None) -> ValidationResult:
    validator = LogValidator(ValidationParams(**params))  # type: ignore[arg-type]
    return validator.validate_and_assign_offsets(memoryview(bytearray(records)), 0, 0, NOW_MS, budget=budget)


def records(count: int, size: int = 1, step: int = 1) -> list[Record]:
    return [Record(number * step, NOW_MS, None, b"v" * size) for number in range(count)]


def batch(count: int, size: int = 1, codec: int = 0, step: int = 1) -> bytearray:
    return build_batch(records(count, size, step), BatchOptions(compression=codec, last_offset_delta=count - 1))


def with_headers(count: int) -> bytearray:
    return build_batch([Record(0, NOW_MS, None, b"v", [("", None)] * count)])


def old_set(count: int, codec: int = 0) -> bytes:
    return build_message_set(records(count), MessageSetOptions(1, codec))


TOO_MUCH: dict[str, tuple[Callable[[], bytes | bytearray], dict[str, int]]] = {
    "packed bytes": (lambda: batch(2, TURN_PLAIN_BYTES // 2 + 1, GZIP), {}),
    "packed bytes, going the general way": (lambda: batch(2, TURN_PLAIN_BYTES // 2 + 1, GZIP), {"timestamp_type": 1}),
    "records": (lambda: batch(TURN_RECORDS + 1), {}),
    "records, going the general way": (lambda: batch(TURN_RECORDS + 1), {"timestamp_type": 1}),
    "headers": (lambda: with_headers(TURN_HEADER_BYTES), {}),
    "recompressed bytes": (lambda: batch(2, TURN_RECOMPRESSED_BYTES), {"compression": ZSTD}),
    "wrong offset deltas": (lambda: batch(TURN_REBUILT_RECORDS + 1, step=2), {}),
    "records with faults": (lambda: batch(TURN_REBUILT_RECORDS + 1), {"timestamp_before_max_ms": -1000}),
    "an old set": (lambda: old_set(TURN_OLD_BYTES // 30), {}),
    "an old set, packed": (lambda: old_set(TURN_OLD_BYTES // 30, GZIP), {}),
}


@pytest.fixture(autouse=True)
def plain_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain Python, whether or not the package is compiled."""
    monkeypatch.setattr(engine, "IS_COMPILED", False)
    monkeypatch.setattr(engine, "check_section", reference.check_section)
    monkeypatch.setattr(validator, "_IS_COMPILED", False)


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_batch_that_takes_longer_than_a_turn_is_left_unchanged_to_a_thread(name: str) -> None:
    make, params = TOO_MUCH[name]
    sent = bytearray(make())
    view = memoryview(sent)
    checked = LogValidator(ValidationParams(max_message_bytes=1 << 24, **params))  # type: ignore[arg-type]
    before = bytes(sent)
    for budget in (TURN, WorkBudget(in_turn=True)):
        with pytest.raises(TooMuchForTurnError):
            checked.validate_and_assign_offsets(view, 0, 0, NOW_MS, budget=budget)
    assert bytes(sent) == before


@pytest.mark.parametrize("name", TOO_MUCH)
def test_validation_in_a_thread_equals_validation_without_a_budget(name: str) -> None:
    make, params = TOO_MUCH[name]
    sent = make()

    def outcome(budget: WorkBudget) -> bytes | type[Exception]:
        try:
            return bytes(validate(sent, budget, max_message_bytes=1 << 24, **params).records)
        except RejectedTimestampsError as error:
            return type(error)

    assert outcome(WorkBudget(in_turn=False)) == outcome(work_budget.NO_BUDGET)


def test_batch_left_to_a_thread_is_counted_once() -> None:
    budget = WorkBudget(in_turn=True, compressed_records=10)
    packed = compress(bytes(2 * work_budget.TURN_PLAIN_BYTES), CompressionType.GZIP)
    with pytest.raises(TooMuchForTurnError):
        budget.decompress(packed, CompressionType.GZIP, NO_LIMIT, 10)
    budget.enter_turn(in_turn=False)
    assert len(budget.decompress(packed, CompressionType.GZIP, NO_LIMIT, 10)) == 2 * work_budget.TURN_PLAIN_BYTES


def test_a_batch_can_be_validated_again_without_counting_twice() -> None:
    budget = WorkBudget(in_turn=False, compressed_records=25, plain_bytes=2_500, rebuilt_records=25)
    sent = batch(10, 100, codec=ZSTD, step=2)
    validate(sent, budget)
    left = budget.left
    for _ in range(3):
        budget.restore(left)
        validate(sent, budget)
    with pytest.raises(MessageTooLargeError):
        validate(sent, budget)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_usual_batches_fit_into_a_turn(codec: int) -> None:
    for sent in (batch(1, 16_384, codec), batch(160, 100, codec), batch(1, 900_000, codec), batch_of(1)):
        assert validate(sent, TURN).shallow_count == 1


def spent(limits: dict[str, int]) -> WorkBudget:
    return WorkBudget(in_turn=False, **limits)


@pytest.mark.parametrize(
    ("limits", "make"),
    [
        ({"plain_bytes": 25_000}, lambda: batch(1, 10_000, GZIP)),
        ({"plain_bytes": 2_500}, lambda: old_set(25, GZIP)),
        ({"compressed_records": 25}, lambda: batch(10, codec=ZSTD)),
        ({"compressed_records": 25}, lambda: batch(10, codec=ZSTD, step=2)),  # decompressed in both ways
        ({"plain_bytes": 2_500}, lambda: batch(10, 100, codec=ZSTD, step=2)),
        ({"rebuilt_records": 25}, lambda: batch(10, step=2)),
        ({"rebuilt_records": 25}, lambda: old_set(10)),
        ({"rebuilt_records": 25}, lambda: old_set(10, GZIP)),
    ],
)
def test_all_batches_of_a_request_share_its_limits(
    limits: dict[str, int], make: Callable[[], bytes | bytearray]
) -> None:
    budget = spent(limits)
    for _ in range(2):
        validate(make(), budget)
    with pytest.raises(MessageTooLargeError):
        validate(make(), budget)


TAKEN_APART: dict[str, tuple[Callable[[], bytes | bytearray], dict[str, int]]] = {
    "wrong offset deltas": (lambda: batch(10, step=2), {}),
    "wrong offset deltas, packed": (lambda: batch(10, codec=ZSTD, step=2), {}),
    "records with faults": (lambda: batch(10), {"timestamp_before_max_ms": -1000}),
    "a topic of an old format": (lambda: batch(10), {"magic": 1}),
    "an old set": (lambda: old_set(10), {}),
    "an old set, packed": (lambda: old_set(10, GZIP), {"compression": ZSTD}),
}
"""Records that become objects one by one."""


@pytest.mark.parametrize("name", TAKEN_APART)
def test_a_request_of_one_batch_takes_no_more_records_apart_than_any_other(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A topic allows two million records by its bytes: ten seconds of the interpreter and a gigabyte."""
    make, params = TAKEN_APART[name]
    sent = make()
    budget = one_batch_budget()
    budget.enter_turn(in_turn=False)
    budget.rebuild_old(MAX_REBUILT_RECORDS - 9)
    for module in (validator, message_sets):
        monkeypatch.setattr(module, "rebuild", pytest.fail)
        monkeypatch.setattr(module, "check_each_record", pytest.fail)
    with pytest.raises(MessageTooLargeError):
        validate(sent, budget, **params)


@pytest.mark.parametrize("name", TAKEN_APART)
def test_the_budget_that_all_short_requests_share_is_never_used_up(name: str) -> None:
    make, params = TAKEN_APART[name]
    sent = make()
    before = TURN.rebuilt_records
    with contextlib.suppress(RejectedTimestampsError):
        validate(sent, TURN, **params)
    assert TURN.rebuilt_records > work_budget.NO_LIMIT // 2
    assert before - TURN.rebuilt_records <= 20


def test_an_old_set_is_refused_before_its_messages_are_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(buffer: memoryview) -> Iterator[object]:
        nonlocal made
        for entry in iter_batches(buffer):
            made += 1
            yield entry

    monkeypatch.setattr(validator, "iter_batches", counted)
    with pytest.raises(MessageTooLargeError):
        validate(old_set(1000), spent({"rebuilt_records": 50}))
    assert made <= 51


def test_a_set_of_messages_and_wrappers_is_refused() -> None:
    """Kafka refuses it; half of the wrapper's messages were lost here."""
    with pytest.raises(InvalidRecordError, match="more than one"):
        validate(old_set(1) + old_set(3, GZIP), work_budget.NO_BUDGET)


def test_many_batches_in_one_set_are_refused_at_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(buffer: memoryview) -> Iterator[object]:
        nonlocal made
        for entry in iter_batches(buffer):
            made += 1
            yield entry

    monkeypatch.setattr(validator, "iter_batches", counted)
    with pytest.raises(InvalidRecordError, match="more than one"):
        validate(bytes(batch(1)) * 1000, work_budget.NO_BUDGET)
    assert made == 2


def test_large_malformed_sections_are_not_walked_over_again(monkeypatch: pytest.MonkeyPatch) -> None:
    count = reference.EXPLAINED_RECORDS + 1
    broken = batch(count)[61:-1]
    monkeypatch.setattr(reference, "check_records", pytest.fail)
    with pytest.raises(InvalidRecordError, match="structure"):
        section_walk.check_section(broken, count)


def test_a_lying_count_costs_nothing() -> None:
    sent = batch(2, codec=ZSTD)
    struct.pack_into(">i", sent, 23, 2**31 - 2)
    struct.pack_into(">i", sent, 57, 2**31 - 1)
    set_crc(sent, 0, len(sent))
    with pytest.raises(MessageTooLargeError):
        validate(sent, WorkBudget(in_turn=False))
