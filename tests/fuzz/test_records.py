"""Any bytes give records or a documented error: the walk over entries, both formats, validation, down-conversion."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from log.records.down_convert import down_convert
from log.validator import AppendOrigin, LogValidator, ValidationParams
from protocol.compression import CompressionType
from protocol.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
from protocol.message_set import ByteBufferMessageSet, LegacyRecordBatch, MessageSetOptions, build_message_set
from protocol.record_batch import BatchOptions, Record, build_batch, iter_batches, set_crc
from tests.support.records import NOW_MS, record_lists

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
        for entry in ByteBufferMessageSet(bytes(data)).shallow():
            start = entry.position + 12
            data[start : start + 4] = crc_of(entry).to_bytes(4, "big")


def crc_of(entry: LegacyRecordBatch) -> int:
    from zlib import crc32

    return crc32(entry.view()[16:])


inputs = st.one_of(st.binary(max_size=200).map(bytearray), mutated())


@settings(max_examples=400, deadline=None)
@given(data=inputs)
def test_reading(data: bytearray) -> None:
    with contextlib.suppress(*READING):
        for batch in iter_batches(data):
            batch.is_valid()
            for record in batch.records(BOUND):
                assert isinstance(record, Record)
    with contextlib.suppress(*READING):
        for record in ByteBufferMessageSet(data, BOUND).deep():
            assert isinstance(record, Record)


@settings(max_examples=400, deadline=None)
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
def test_validation(data: bytearray, params: ValidationParams, origin: AppendOrigin) -> None:
    """What is accepted can be read back, whole and in order; what is refused leaves the buffer as it was."""
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


@settings(max_examples=300, deadline=None)
@given(data=inputs, magic=st.integers(0, 1), max_bytes=st.integers(0, 3000), first_offset=st.integers(0, 5))
def test_down_conversion(data: bytearray, magic: int, max_bytes: int, first_offset: int) -> None:
    with contextlib.suppress(*READING):
        for piece in down_convert([bytes(data)], magic, first_offset, max_bytes):
            for entry in ByteBufferMessageSet(piece).shallow():
                assert entry.magic <= magic
