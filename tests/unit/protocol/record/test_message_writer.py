"""MessageWriter over BufferingOutputStream: the same bytes at any segment size; fields that are filled in later across
segments."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.protocol.record.compression import CompressionType, decompress
from tidelog.protocol.record.message_writer import (
    MAX_SEGMENT_BYTES,
    MIN_SEGMENT_BYTES,
    BufferingOutputStream,
    MessageWriter,
    segment_size_for,
)

segment_sizes = st.integers(1, 17)


@given(segment_bytes=segment_sizes, pieces=st.lists(st.binary(max_size=40), max_size=10))
def test_written_pieces_are_joined_unchanged(segment_bytes: int, pieces: list[bytes]) -> None:
    stream = BufferingOutputStream(segment_bytes)
    for piece in pieces:
        assert stream.write(piece) == len(piece)
    assert stream.to_bytes() == b"".join(pieces)
    assert stream.size == sum(map(len, pieces))
    assert all(len(part) == segment_bytes for part in list(stream.slices())[:-1])


@given(segment_bytes=segment_sizes, before=st.binary(max_size=30), after=st.binary(max_size=30))
def test_reserved_room_is_filled_across_segments(segment_bytes: int, before: bytes, after: bytes) -> None:
    stream = BufferingOutputStream(segment_bytes)
    stream.write(before)
    place = stream.reserve(12)
    stream.write(after)
    place.write_long(-2)
    place.write_int(7)
    assert stream.to_bytes() == before + struct.pack(">qi", -2, 7) + after


@given(segment_bytes=segment_sizes, body=st.binary(max_size=60))
def test_prefixes_have_length_and_crc_of_their_body(segment_bytes: int, body: bytes) -> None:
    stream = BufferingOutputStream(segment_bytes)
    stream.write(b"ab")
    with stream.with_length_prefix(), stream.with_crc32_prefix():
        stream.write(body)
    assert stream.to_bytes() == b"ab" + struct.pack(">iI", len(body) + 4, crc32(body)) + body


def test_ints_and_longs_are_written_across_segments() -> None:
    stream = BufferingOutputStream(3)
    stream.write_int(-1)
    stream.write_long(1)
    stream.skip(2)
    assert stream.to_bytes() == b"\xff" * 4 + b"\x00" * 7 + b"\x01" + b"\x00\x00"


def test_more_than_reserved_is_refused() -> None:
    place = BufferingOutputStream(4).reserve(3)
    with pytest.raises(ValueError, match="do not fit"):
        place.write_int(1)
    place.write(b"abc")
    with pytest.raises(ValueError, match="do not fit"):
        place.write(b"d")


def test_only_written_bytes_are_replaced() -> None:
    stream = BufferingOutputStream(4)
    stream.write(b"abcdef")
    stream.overwrite(2, b"XYZ")
    assert stream.to_bytes() == b"abXYZf"
    for position in (-1, 5):
        with pytest.raises(ValueError, match="not all written"):
            stream.overwrite(position, b"12")


def test_nonsense_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="segment"):
        BufferingOutputStream(0)
    with pytest.raises(ValueError, match="backwards"):
        BufferingOutputStream().skip(-1)


@pytest.mark.parametrize(("estimate", "size"), [(0, MIN_SEGMENT_BYTES), (10_000, 5_000), (10**9, MAX_SEGMENT_BYTES)])
def test_first_segment_is_a_hint(estimate: int, size: int) -> None:
    assert segment_size_for(estimate) == size


def test_messages_of_both_magics_are_written() -> None:
    writer = MessageWriter(5)
    with writer.entry(9), writer.message(1, 0x08, 77, b"k"):
        writer.write_nullable(None)
    content = b"\x01\x08" + struct.pack(">qi", 77, 1) + b"k" + struct.pack(">i", -1)
    assert writer.to_bytes() == struct.pack(">qiI", 9, len(content) + 4, crc32(content)) + content
    writer = MessageWriter()
    with writer.entry(0), writer.message(0, 0, 77, None):
        writer.write_nullable(b"value")
    content = b"\x00\x00" + struct.pack(">ii", -1, 5) + b"value"
    assert writer.to_bytes() == struct.pack(">qiI", 0, len(content) + 4, crc32(content)) + content


def test_compressed_content_is_written_on_leaving() -> None:
    writer = MessageWriter()
    with writer.with_length_prefix(), writer.compress(CompressionType.GZIP, 1, 0) as inner:
        inner.write(b"inner" * 100)
    encoded = writer.to_bytes()
    assert struct.unpack(">i", encoded[:4]) == (len(encoded) - 4,)
    assert decompress(encoded[4:], CompressionType.GZIP, 500) == b"inner" * 100


@given(segment_bytes=segment_sizes, key=st.none() | st.binary(max_size=9), value=st.none() | st.binary(max_size=30))
def test_write_message_equals_a_message_written_with_prefixes(
    segment_bytes: int, key: bytes | None, value: bytes | None
) -> None:
    slow, fast = MessageWriter(), MessageWriter(segment_bytes)
    with slow.entry(7), slow.message(1, 0x08, 77, key):
        slow.write_nullable(value)
    fast.write_message(7, struct.pack(">Bbq", 1, 0x08, 77), key, value)
    assert fast.to_bytes() == slow.to_bytes()
