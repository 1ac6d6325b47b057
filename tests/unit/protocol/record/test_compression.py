"""Codecs: round trips, output of other writers, damage, and decompression bombs."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import DEPTH
from tidelog.protocol.errors import InvalidRecordError, MessageTooLargeError, UnsupportedCompressionTypeError
from tidelog.protocol.record.compression import (
    LZ4_DEFAULT_LEVEL,
    MAX_SMALL_PARTS,
    PART_BYTES,
    XERIAL_HEADER,
    XERIAL_MAGIC,
    CompressionType,
    _affordable_zstd_parameters,
    compress,
    compress_many,
    decompress,
    decompress_zstd_frames,
    zstd_size,
)

GZIP, SNAPPY, LZ4, ZSTD = CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD
CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
MEBIBYTE = 1 << 20
TEXT = b"the quick brown fox jumps over the lazy dog; " * 3000


@given(data=st.binary(max_size=3000), codec=st.sampled_from(list(CompressionType)), magic=st.sampled_from([0, 1, 2]))
def test_compressed_data_is_decompressed_to_itself(data: bytes, codec: CompressionType, magic: int) -> None:
    assert decompress(compress(data, codec, magic=magic), codec, len(data), magic=magic) == data


@pytest.mark.parametrize("codec", CODECS)
def test_large_data_in_a_view_is_compressed_and_decompressed(codec: CompressionType) -> None:
    encoded = compress(memoryview(bytearray(TEXT)), codec)
    assert len(encoded) < len(TEXT) / 5
    assert decompress(memoryview(encoded), codec, len(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("codec", "low", "high"), [(GZIP, 1, 9), (LZ4, 1, 16), (ZSTD, -5, 19)], ids=["gzip", "lz4", "zstd"]
)
def test_a_higher_level_compresses_more(codec: CompressionType, low: int, high: int) -> None:
    data = bytes(zlib.crc32(bytes((i & 0xFF, i >> 8))) % 17 for i in range(20_000))
    sizes = []
    for level in (low, high):
        encoded = compress(data, codec, level)
        assert decompress(encoded, codec, len(data)) == data
        sizes.append(len(encoded))
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("codec", CODECS)
def test_one_byte_over_the_bound_is_refused(codec: CompressionType) -> None:
    encoded = compress(TEXT, codec)
    with pytest.raises(MessageTooLargeError, match="more than"):
        decompress(encoded, codec, len(TEXT) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_cut_data_is_refused_or_shorter(codec: CompressionType) -> None:
    encoded = compress(TEXT, codec)
    for cut in (1, 3, 9, len(encoded) // 2):
        try:
            assert TEXT.startswith(decompress(encoded[:-cut], codec, len(TEXT)))
        except (InvalidRecordError, MessageTooLargeError):
            continue


@settings(max_examples=300 * DEPTH)
@given(data=st.binary(max_size=300), codec=st.sampled_from(CODECS), magic=st.sampled_from([0, 2]))
def test_any_bytes_give_a_value_or_the_documented_error(data: bytes, codec: CompressionType, magic: int) -> None:
    try:
        assert len(decompress(data, codec, 1000, magic=magic)) <= 1000
    except (InvalidRecordError, MessageTooLargeError):
        return


@settings(max_examples=200 * DEPTH)
@given(codec=st.sampled_from(CODECS), position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_damaged_streams_give_a_value_or_the_documented_error(
    codec: CompressionType, position: int, value: int
) -> None:
    encoded = bytearray(compress(TEXT[:2000], codec))
    encoded[position % len(encoded)] = value
    try:
        assert len(decompress(encoded, codec, 4000)) <= 4000
    except (InvalidRecordError, MessageTooLargeError):
        return


def test_unknown_codecs_are_refused() -> None:
    for codec in (5, 6, 7):
        with pytest.raises(UnsupportedCompressionTypeError):
            decompress(b"", codec, 10)
        with pytest.raises(UnsupportedCompressionTypeError):
            compress(b"", codec)


# --- streams of several members, other writers -----------------------------------------------------------------------


def test_gzip_members_are_chained() -> None:
    assert decompress(gzip.compress(b"one") + gzip.compress(b"") + gzip.compress(b"two"), GZIP, 6) == b"onetwo"


def test_zstd_frames_are_chained() -> None:
    frame = zstandard.ZstdCompressor().compress
    streaming = zstandard.ZstdCompressor().compressobj()
    undeclared = streaming.compress(b"two") + streaming.flush()
    assert decompress(frame(b"one") + undeclared + frame(b"three"), ZSTD, 20) == b"onetwothree"


def test_lz4_frames_are_chained() -> None:
    assert decompress(lz4.frame.compress(b"one") + lz4.frame.compress(b"two"), LZ4, 6) == b"onetwo"


def test_lz4_is_written_as_java_reads_it() -> None:
    encoded = bytes(compress(TEXT, LZ4))
    assert encoded[:4] == b"\x04\x22\x4d\x18"
    assert encoded[4] == 0x60  # version 1, independent blocks, no checksums, no size: all that Kafka's reader knows
    assert encoded[5] == 0x40  # 64 KiB blocks


def test_lz4_of_magic_0_has_the_broken_header_checksum() -> None:
    right, broken = bytes(compress(TEXT, LZ4, magic=1)), bytes(compress(TEXT, LZ4, magic=0))
    assert right[6] == 0x82  # of the descriptor 0x60 0x40, as the LZ4 frame format says
    assert broken[6] != right[6]
    assert (broken[:6], broken[7:]) == (right[:6], right[7:])
    assert decompress(broken, LZ4, len(TEXT), magic=0) == TEXT
    with pytest.raises(InvalidRecordError):
        decompress(broken, LZ4, len(TEXT), magic=1)


@pytest.mark.parametrize("store_size", [False, True])
def test_lz4_header_checksum_is_mended_with_and_without_content_size(store_size: bool) -> None:
    encoded = bytearray(lz4.frame.compress(TEXT, store_size=store_size))
    header_end = 14 if store_size else 6
    encoded[header_end] ^= 0xFF
    assert decompress(encoded, LZ4, len(TEXT), magic=0) == TEXT


def test_snappy_is_read_raw_and_in_chunks() -> None:
    raw = bytes(cramjam.snappy.compress_raw(b"raw"))
    chunk = struct.pack(">i", len(raw)) + raw
    assert decompress(raw, SNAPPY, 3) == b"raw"
    assert decompress(XERIAL_HEADER + chunk + chunk, SNAPPY, 6) == b"rawraw"
    assert decompress(XERIAL_HEADER + chunk + XERIAL_HEADER + chunk, SNAPPY, 6) == b"rawraw"
    assert decompress(XERIAL_HEADER, SNAPPY, 6) == b""


def test_snappy_is_written_in_chunks() -> None:
    assert bytes(compress(TEXT, SNAPPY)[:8]) == XERIAL_MAGIC


@pytest.mark.parametrize("tail", [b"\x00\x00", struct.pack(">i", -1), struct.pack(">i", 100), struct.pack(">i", 0)])
def test_bad_snappy_chunks_are_refused(tail: bytes) -> None:
    with pytest.raises(InvalidRecordError):
        decompress(XERIAL_HEADER + tail, SNAPPY, 100)


# --- streams of many parts -------------------------------------------------------------------------------------------


def gzip_parts(content: bytes, count: int) -> bytes:
    return gzip.compress(content, 1) * count


def lz4_parts(content: bytes, count: int) -> bytes:
    return bytes(lz4.frame.compress(content)) * count


def snappy_parts(content: bytes, count: int) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(content))
    return XERIAL_HEADER + (struct.pack(">i", len(block)) + block) * count


def zstd_parts(content: bytes, count: int) -> bytes:
    return zstandard.ZstdCompressor().compress(content) * count


PARTS = [(GZIP, gzip_parts), (SNAPPY, snappy_parts), (LZ4, lz4_parts)]


@pytest.mark.parametrize(("codec", "parts"), PARTS)
def test_a_stream_of_many_tiny_parts_is_refused(codec: CompressionType, parts: Callable[[bytes, int], bytes]) -> None:
    for content in (b"", b"x"):
        assert len(decompress(parts(content, MAX_SMALL_PARTS // 2), codec, MEBIBYTE)) <= MAX_SMALL_PARTS
        with pytest.raises(InvalidRecordError, match="parts"):
            decompress(parts(content, 2 * MAX_SMALL_PARTS), codec, MEBIBYTE)


def test_snappy_headers_without_chunks_are_parts() -> None:
    with pytest.raises(InvalidRecordError, match="parts"):
        decompress(XERIAL_HEADER * (2 * MAX_SMALL_PARTS), SNAPPY, MEBIBYTE)


@pytest.mark.parametrize(("codec", "parts"), [*PARTS, (ZSTD, zstd_parts)])
def test_parts_that_hold_something_are_read_however_many(
    codec: CompressionType, parts: Callable[[bytes, int], bytes]
) -> None:
    content = random.Random(1).randbytes(PART_BYTES)
    count = 3 * MAX_SMALL_PARTS
    assert decompress(parts(content, count), codec, len(content) * count) == content * count


class CountingDecoder:
    """A decoder that counts its input, and the input that it returns unread: these bytes are copied."""

    moved_bytes = 0

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    def decompress(self, data: bytes | memoryview, *limits: int, **named: int) -> Any:
        found = self._decoder.decompress(data, *limits, **named)
        left = self._decoder.unused_data or getattr(self._decoder, "unconsumed_tail", b"")
        CountingDecoder.moved_bytes += len(data) + len(left)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)


@pytest.mark.parametrize(("codec", "parts", "where"), [(GZIP, gzip_parts, zlib), (LZ4, lz4_parts, lz4.frame)])
def test_bytes_moved_are_linear_in_the_stream(
    codec: CompressionType, parts: Callable[[bytes, int], bytes], where: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "decompressobj" if where is zlib else "LZ4FrameDecompressor"
    make = getattr(where, name)
    monkeypatch.setattr(where, name, lambda **named: CountingDecoder(make(**named)))
    content = random.Random(1).randbytes(2 * PART_BYTES)
    for count in (500, 1000, 2000):
        stream = parts(content, count)
        CountingDecoder.moved_bytes = 0
        decompress(stream, codec, len(content) * count)
        assert CountingDecoder.moved_bytes < 4 * len(stream) + 2 * MEBIBYTE


@pytest.mark.parametrize("level", [15, 19, 22])
def test_high_levels_of_zstd_take_little_memory(level: int) -> None:
    parameters = _affordable_zstd_parameters(level)
    assert parameters.estimated_compression_context_size() < 48 * MEBIBYTE
    encoded = compress(TEXT, ZSTD, level)
    assert decompress(encoded, ZSTD, len(TEXT)) == TEXT


# --- bombs (F15) -----------------------------------------------------------------------------------------------------


def gzip_bomb() -> bytes:
    return gzip.compress(bytes(64 * MEBIBYTE))


def snappy_bomb() -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(MEBIBYTE)))
    return XERIAL_HEADER + 64 * (struct.pack(">i", len(block)) + block)


def lz4_bomb() -> bytes:
    return bytes(lz4.frame.compress(bytes(64 * MEBIBYTE), store_size=True))


def zstd_bomb() -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(bytes(64 * MEBIBYTE))


def zstd_frame_that_declares(size: int) -> bytes:
    """Build a frame header with a content size field of 8 bytes, a window, and one empty last block."""
    return b"\x28\xb5\x2f\xfd" + bytes((0xC0, 0x58)) + struct.pack("<Q", size) + b"\x01\x00\x00"


def zstd_single_segment_that_declares(size: int) -> bytes:
    """Build a frame whose window is its content: a decoder that trusts the header would allocate all of it."""
    return b"\x28\xb5\x2f\xfd" + bytes((0xE0,)) + struct.pack("<Q", size) + b"\x01\x00\x00"


@pytest.mark.parametrize(
    ("codec", "make_bomb"),
    [
        (GZIP, gzip_bomb),
        (GZIP, lambda: gzip.compress(gzip_bomb()) * 3),
        (SNAPPY, snappy_bomb),
        (SNAPPY, lambda: b"\xff\xff\xff\xff\x0f" + b"\x00" * 20),
        (LZ4, lz4_bomb),
        (ZSTD, zstd_bomb),
        (ZSTD, lambda: zstd_frame_that_declares(4 << 30)),
        (ZSTD, lambda: zstd_single_segment_that_declares(4 << 30)),
        (ZSTD, lambda: zstd_single_segment_that_declares((1 << 64) - 1)),
    ],
    ids=["gzip", "gzip-many", "snappy", "snappy-declares", "lz4", "zstd", "zstd-4g", "zstd-window-4g", "zstd-2^64"],
)
def test_bombs_cost_their_bound_at_most(codec: CompressionType, make_bomb: Callable[[], bytes]) -> None:
    bound, bomb = 100_000, make_bomb()
    decompress(compress(b"warm", codec), codec, 10)  # so that imports are not counted
    tracemalloc.start()
    try:
        with contextlib.suppress(InvalidRecordError, MessageTooLargeError):
            assert len(decompress(bomb, codec, bound)) <= bound
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * MEBIBYTE


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("level", [None, 5])
def test_many_parts_are_compressed_as_each_alone(codec: CompressionType, level: int | None) -> None:
    parts: list[bytes | bytearray | memoryview] = [TEXT, b"x", TEXT[:100], memoryview(TEXT)[7:900]]
    for wanted in (parts, parts[:1], [], [b"", TEXT]):
        packed = compress_many(wanted, codec, None if codec is SNAPPY else level)
        assert [bytes(decompress(part, codec, MEBIBYTE)) for part in packed] == [bytes(part) for part in wanted]


def test_the_default_level_of_lz4_is_the_fast_compressor_as_in_kafka() -> None:
    assert bytes(compress(TEXT * 9, LZ4, LZ4_DEFAULT_LEVEL)) == bytes(compress(TEXT * 9, LZ4))


def test_zstd_frames_of_a_declared_size_are_decompressed_together() -> None:
    parts = [bytes(compress(text, ZSTD)) for text in (TEXT, b"x", bytes(100_000), random.Random(1).randbytes(300_000))]
    sizes = [zstd_size(memoryview(part), MEBIBYTE) for part in parts]
    assert sizes == [len(TEXT), 1, 100_000, 300_000]
    found = decompress_zstd_frames(parts, sizes)
    assert found is not None
    assert [bytes(part) for part in found] == [bytes(decompress(part, ZSTD, MEBIBYTE)) for part in parts]
    checked = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
    assert zstd_size(checked, MEBIBYTE) == len(TEXT)


def test_frames_without_a_declared_size_are_decompressed_alone() -> None:
    frame = bytes(compress(TEXT, ZSTD))
    undeclared = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    for part in (frame + frame, frame[:-1], frame + b"x", undeclared, b"", b"no frame", frame[:5]):
        assert zstd_size(part, MEBIBYTE) == 0
    assert zstd_size(frame, len(TEXT) - 1) == 0
    damaged = bytearray(frame)
    damaged[-2] ^= 0x55
    assert decompress_zstd_frames([frame, bytes(damaged)], [len(TEXT)] * 2) is None


@settings(deadline=None, max_examples=200 * DEPTH)
@given(data=st.binary(max_size=300), place=st.integers(0, 400), value=st.integers(0, 255))
def test_zstd_frames_decompressed_together_equal_those_decompressed_alone(data: bytes, place: int, value: int) -> None:
    frame = bytearray(compress(data * 3, ZSTD))
    frame[place % len(frame)] = value
    size = zstd_size(frame, MEBIBYTE)
    found = decompress_zstd_frames([frame], [size]) if size else None
    if found is not None:
        assert bytes(found[0]) == bytes(decompress(bytes(frame), ZSTD, MEBIBYTE))
