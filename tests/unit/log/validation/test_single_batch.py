"""The compiled check of the usual batch against the one in plain Python: same results, same bytes written."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.extensions import uncompiled
from tidelog.log.records import section_walk
from tidelog.log.records.work_budget import NO_BUDGET, TURN, TooMuchForTurnError
from tidelog.log.validation import single_batch
from tidelog.log.validation.params import AppendContext, ValidationParams
from tidelog.log.validation.validator import LogValidator, validate_generally
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch, set_crc

NOW_MS = 1_700_000_000_000
PLAIN: Any = uncompiled(single_batch)
PLAIN.section_walk = uncompiled(section_walk)
FIELDS = {"base offset": (0, ">q"), "length": (8, ">i"), "magic": (16, ">b"), "attributes": (21, ">h"),
          "last offset delta": (23, ">i"), "base timestamp": (27, ">q"), "max timestamp": (35, ">q"),
          "producer id": (43, ">q"), "epoch": (51, ">h"), "sequence": (53, ">i"), "count": (57, ">i")}  # fmt: skip
NUMBERS = st.sampled_from([-1, 0, 1, 2, 8, 16, 32, 64, 127, 1 << 14, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1,
                           -(1 << 63), (1 << 62) + 5, NOW_MS, NOW_MS + 7_200_000])  # fmt: skip
RECORDS = st.builds(
    Record, st.just(0), st.sampled_from([NOW_MS, NOW_MS + 5, NOW_MS - 90_000_000, -1]),
    st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=9), st.just([]),
)  # fmt: skip
OPTIONS = st.builds(
    lambda **given: BatchOptions(**given),
    compression=st.sampled_from([0, 0, 0, 1, 2, 3, 4]), producer_id=st.sampled_from([-1, 5]),
    producer_epoch=st.just(0), base_sequence=st.sampled_from([-1, 0, (1 << 31) - 1]), is_transactional=st.booleans(),
)  # fmt: skip
PARAMS = st.builds(
    lambda **given: ValidationParams(**given),
    compression=st.sampled_from([None, None, 0, 1]), is_compacted=st.booleans(),
    max_message_bytes=st.sampled_from([100, 1 << 20]), timestamp_before_max_ms=st.sampled_from([(1 << 63) - 1, 60_000]),
    timestamp_after_max_ms=st.sampled_from([(1 << 63) - 1, 3_600_000]),
)  # fmt: skip


@st.composite
def batches(draw: Any) -> bytes:
    """A valid batch, or one with some other fields or bytes."""
    records = [record._replace(offset=index) for index, record in enumerate(draw(st.lists(RECORDS, min_size=1)))]
    built = bytearray(build_batch(records, draw(OPTIONS)))
    for name in draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=2)):
        at, layout = FIELDS[name]
        size = struct.calcsize(layout)
        built[at : at + size] = (draw(NUMBERS) & ((1 << 8 * size) - 1)).to_bytes(size, "big")
    for at in draw(st.lists(st.integers(61, len(built) - 1), max_size=1)):
        built[at] = draw(st.integers(0, 255))
    if draw(st.integers(0, 9)):
        set_crc(memoryview(built), 0, len(built))
    return bytes(built[: draw(st.integers(0, len(built)))]) if not draw(st.integers(0, 9)) else bytes(built)


def outcome(check: Any, sent: bytes) -> object:
    """Return the result with the bytes as they are then; None where the general way is to be asked."""
    view = memoryview(bytearray(sent))
    try:
        result = check(view)
    except (KafkaError, TooMuchForTurnError):
        result = None
    if result is None:
        assert bytes(view) == sent
        return None
    return result._replace(records=bytes(result.records)), bytes(view)


@given(sent=batches(), params=PARAMS)
def test_both_take_the_same_batches_and_write_the_same(sent: bytes, params: ValidationParams) -> None:
    validator = LogValidator(params)

    def plain(view: memoryview) -> object:
        is_one = len(view) >= 61 and view[16] == 2
        checked = single_batch.CheckedBatch()
        is_usual = is_one and validator._assign_single(view, 77, 3, NOW_MS, NO_BUDGET, checked)
        return checked.build_result() if is_usual else None

    expected = outcome(plain, sent)
    for module in (single_batch, PLAIN):
        codec = module.NO_CODEC if params.compression is None else params.compression
        limits = module.BatchLimits(
            codec, params.max_message_bytes, params.decompressed_bound, params.timestamp_before_max_ms,
            params.timestamp_after_max_ms, is_keyed=params.is_compacted,
        )  # fmt: skip

        def compiled(view: memoryview, module: Any = module, limits: Any = limits) -> object:
            checked = module.CheckedBatch()
            is_usual = module.check_and_assign(view, 77, 3, NOW_MS, limits, NO_BUDGET, checked)
            return checked.build_result() if is_usual else None

        assert outcome(compiled, sent) == expected


@pytest.mark.parametrize("module", [single_batch, PLAIN])
def test_a_read_only_buffer_is_left_to_the_general_check(module: Any) -> None:
    sent = bytes(build_batch([Record(0, NOW_MS, None, b"v", [])]))
    limits = module.BatchLimits(module.NO_CODEC, 1 << 20, 1 << 24, 1 << 62, 1 << 62, is_keyed=False)
    assert not module.check_and_assign(memoryview(sent), 0, 0, NOW_MS, limits, TURN, module.CheckedBatch())


@given(sent=batches(), params=PARAMS)
def test_the_usual_batch_is_noted_as_the_general_way_has_it(sent: bytes, params: ValidationParams) -> None:
    validator, view, checked = LogValidator(params), memoryview(bytearray(sent)), single_batch.CheckedBatch()
    try:
        is_usual = validator.assign_unchanged(view, 77, 3, NOW_MS, NO_BUDGET, checked)
    except KafkaError:
        is_usual = False
    if not is_usual:
        return
    again = single_batch.CheckedBatch()
    again.take(validate_generally(memoryview(bytearray(sent)), params, AppendContext(77, 3, NOW_MS)))
    for name in single_batch.CheckedBatch.__slots__:
        assert getattr(checked, name) == getattr(again, name), name


@pytest.mark.parametrize("module", [single_batch, PLAIN])
@given(sent=batches(), cut=st.integers(0, 70))
def test_attributes_are_those_of_exactly_one_batch(module: Any, sent: bytes, cut: int) -> None:
    for records in (sent, sent[:cut], sent + b"x"):
        size = len(records)
        is_one = size >= 61 and records[16] == 2 and struct.unpack_from(">i", records, 8)[0] == size - 12
        expected = struct.unpack_from(">H", records, 21)[0] if is_one else -1
        assert module.attributes_of(memoryview(records)) == expected
    assert module.attributes_of(None) == -1
