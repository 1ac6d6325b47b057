"""Random bytes give records or a documented error: the walk over entries, both formats, validation, down-conversion."""

from __future__ import annotations

import contextlib
from time import thread_time

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import DEPTH
from tests.support.records import NOW_MS, record_lists
from tidelog.log.records.down_convert import down_convert
from tidelog.log.records.work_budget import TooMuchForTurnError, WorkBudget
from tidelog.log.validation.params import AppendOrigin, ValidationParams
from tidelog.log.validation.validator import LogValidator
from tidelog.protocol.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.compression import CompressionType
from tidelog.protocol.record.message_set import (
    ByteBufferMessageSet,
    LegacyRecordBatch,
    MessageSetOptions,
    build_message_set,
)
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch, set_crc

READING = (CorruptMessageError, InvalidRecordError, UnsupportedCompressionTypeError, MessageTooLargeError)
VALIDATING = (*READING, InvalidTimestampError, UnsupportedForMessageFormatError)
BOUND = 1 << 20


@st.composite
def mutated(draw: st.DrawFn) -> bytearray:
    """A batch or message set of any format and codec with some bytes changed, its checksums often made right again."""
    records = draw(record_lists(max_size=6))
    magic = draw(st.integers(0, 2))
    codec = draw(st.sampled_from(list(CompressionType)[: 5 if magic == 2 else 4]))
    data = (
        build_batch(records, BatchOptions(compression=codec))
        if magic == 2
        else bytearray(build_message_set(records, MessageSetOptions(magic, codec)))
    )
    for position, byte in draw(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4)):
        data[position % len(data)] = byte
    if draw(st.booleans()):
        mend(data, magic)
    cut = draw(st.integers(0, len(data)) | st.just(0))
    return data[: len(data) - cut]


def mend(data: bytearray, magic: int) -> None:
    if magic == 2:
        set_crc(data, 0, len(data))
        return
    with contextlib.suppress(*READING):
        for entry in ByteBufferMessageSet(bytes(data)).shallow_entries():
            start = entry.position + 12
            data[start : start + 4] = crc_of(entry).to_bytes(4, "big")


def crc_of(entry: LegacyRecordBatch) -> int:
    from zlib import crc32

    return crc32(entry.view()[16:])


inputs = st.one_of(st.binary(max_size=200).map(bytearray), mutated())


@settings(max_examples=400 * DEPTH, deadline=None)
@given(data=inputs)
def test_any_bytes_are_read_or_refused(data: bytearray) -> None:
    with contextlib.suppress(*READING):
        for batch in iter_batches(data):
            batch.is_valid()
            for record in batch.records(BOUND):
                assert isinstance(record, Record)
    with contextlib.suppress(*READING):
        for record in ByteBufferMessageSet(data, BOUND).deep_entries():
            assert isinstance(record, Record)


@settings(max_examples=400 * DEPTH, deadline=None)
@given(
    data=inputs,
    params=st.builds(
        ValidationParams,
        magic=st.integers(0, 2),
        compression=st.sampled_from([None, 0, 1, 2, 3, 4]),
        timestamp_type=st.integers(0, 1),
        is_compacted=st.booleans(),
        timestamp_after_max_ms=st.sampled_from([1000, 2**62]),
        topic_partition=st.just("topic-0"),
        compression_level=st.none(),
        timestamp_before_max_ms=st.just(2**62),
        max_message_bytes=st.just(BOUND),
        max_decompressed_bytes=st.sampled_from([None, 20]),
    ),
    origin=st.sampled_from(AppendOrigin),
)
def test_accepted_records_can_be_read_back(data: bytearray, params: ValidationParams, origin: AppendOrigin) -> None:
    """Accepted records can be read back, whole and in order; refused ones leave the buffer as it was."""
    view = memoryview(bytearray(data))
    try:
        result = LogValidator(params).validate_and_assign_offsets(view, 1000, 3, NOW_MS, origin)
    except VALIDATING:
        assert view == data
        return
    offsets = []
    for batch in iter_batches(result.records):
        batch.ensure_valid()
        offsets += [record.offset for record in batch.records(BOUND)]
    if origin is AppendOrigin.CLIENT:
        assert offsets == list(range(1000, 1000 + len(offsets)))
        assert (result.first_offset, result.last_offset) == (1000, 999 + len(offsets))


@settings(max_examples=300 * DEPTH, deadline=None)
@given(data=inputs, magic=st.integers(0, 1), max_bytes=st.integers(0, 3000), first_offset=st.integers(0, 5))
def test_any_bytes_are_converted_or_refused(data: bytearray, magic: int, max_bytes: int, first_offset: int) -> None:
    with contextlib.suppress(*READING):
        for piece in down_convert([bytes(data)], magic, first_offset, max_bytes):
            for entry in ByteBufferMessageSet(piece).shallow_entries():
                assert entry.magic <= magic


MAX_CPU_S = 2.0
"""For one request of up to 64 KiB packed. Plain Python validates a million records in one second on a usual machine."""


@st.composite
def large(draw: st.DrawFn) -> bytearray:
    """Thousands of records of any format and codec, up to a megabyte once unpacked, with lies and damage."""
    magic, count = draw(st.integers(0, 2)), draw(st.integers(1, 5000))
    codec = draw(st.sampled_from(list(CompressionType)[: 5 if magic == 2 else 4]))
    step, value = draw(st.integers(0, 2)), b"v" * draw(st.integers(0, 200))
    headers = [("", None)] * draw(st.sampled_from([0, 0, 3])) if magic == 2 else []
    records = [Record(number * step, NOW_MS, b"k", value, headers) for number in range(count)]
    if magic == 2:
        data = build_batch(records, BatchOptions(compression=codec, last_offset_delta=count - 1))
    else:
        data = bytearray(build_message_set(records, MessageSetOptions(magic, codec)))
    for position, byte in draw(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 255)), max_size=3)):
        data[position % len(data)] = byte
    if draw(st.booleans()):
        mend(data, magic)
    return data


def stored_or_refused(data: bytearray, params: ValidationParams, budget: WorkBudget) -> bytes | str:
    """Return the appended records, or the name of the error."""
    view = memoryview(bytearray(data))
    try:
        return bytes(LogValidator(params).validate_and_assign_offsets(view, 5, 1, NOW_MS, budget=budget).records)
    except (*VALIDATING, TooMuchForTurnError) as error:
        return type(error).__name__


@settings(max_examples=60 * DEPTH, deadline=None)
@given(data=large(), compression=st.sampled_from([None, 0, 4]), timestamp_type=st.integers(0, 1))
def test_large_requests_take_bounded_time_and_are_equal_in_a_turn_and_a_thread(
    data: bytearray, compression: int | None, timestamp_type: int
) -> None:
    params = ValidationParams(compression=compression, timestamp_type=timestamp_type, max_message_bytes=BOUND)
    began = thread_time()
    in_turn = stored_or_refused(data, params, WorkBudget(in_turn=True))
    in_thread = stored_or_refused(data, params, WorkBudget(in_turn=False))
    assert thread_time() - began < MAX_CPU_S
    assert in_turn in (in_thread, TooMuchForTurnError.__name__)
