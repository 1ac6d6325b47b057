"""Compression of record sets: none, gzip, snappy, lz4, zstd. The package of a codec is imported at its first use.

Decompression is bounded in every codec: no output, and no buffer sized by what the data claims, grows beyond
``max_bytes`` (plus one chunk). Only two decoders' own buffers may be larger: lz4's, about 8 MiB for blocks of 4 MiB,
and zstd's window, up to ``ZSTD_MAX_WINDOW_BYTES``. So a decompression bomb costs at most these bounds. Larger output
raises MessageTooLargeError (Java's producer then splits its batch, KIP-126), damaged data InvalidRecordError, an
unknown codec UnsupportedCompressionTypeError.

The work is linear in input and output: no part of a stream (gzip member, lz4 frame, snappy chunk) copies the rest of
it. gzip and lz4 read through a window that is small at the start of each further part. The number of parts is bounded
(``MAX_SMALL_PARTS``), since each costs a few calls even if it is empty; zstd's frames cost no calls in Python.

Formats that are read, and written:

    gzip    any number of members                        one member, no name, no time
    snappy  one raw block, or any number of xerial        xerial, chunks of 32 KiB (what Kafka's Java client expects)
            streams
    lz4     frames, any number; magic 0 sets carry        one frame of 64 KiB blocks, independent as Java needs them,
            a header checksum that covers too much        no checksums; magic 0: the same wrong checksum
    zstd    frames, any number; a declared size is        one frame
            allocated at once only up to 1 MiB

    xerial  = 0x82 "SNAPPY" 0 | version 1, 4 bytes | lowest compatible version 1, 4 bytes | (size, 4 bytes | raw block)*

lz4's frame header ends with one byte of xxHash32 over the descriptor; Kafka before 0.10 hashed the frame magic too
(KAFKA-3160). Readers of magic 0 sets ignored the byte. In these sets it is corrected before decoding, and made wrong
again after encoding.

Any thread may call these functions. The codecs release the GIL for their work.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tidelog.protocol.errors import InvalidRecordError, MessageTooLargeError, UnsupportedCompressionTypeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import zstandard

Buffer = bytes | bytearray | memoryview

#: Bit of a frame header's descriptor, and the type of a block that holds one repeated byte (RFC 8878).
_ZSTD_CHECKSUM_FLAG, _ZSTD_BLOCK_OF_ONE_BYTE = 0x04, 1
#: The decoders of gzip, lz4 and zstd return chunks of at most this size, whatever the data declares.
CHUNK_BYTES = 1 << 20
#: Largest number of parts (members, frames, chunks) of a stream, not counting one for each ``PART_BYTES`` of its
#: output. Encoders write one part, or chunks of 32 KiB; a megabyte of empty parts would take 2 s, a megabyte of data
#: takes 5 ms.
MAX_SMALL_PARTS = 1024
PART_BYTES = 1024
#: Bytes that a decoder gets in one piece: the size of the first piece of each part after the first part, and the
#: largest size. zlib and lz4 copy the bytes that are left over after a part.
_FIRST_WINDOW_BYTES, _MAX_WINDOW_BYTES = 4 * 1024, 256 * 1024
#: A copy element of snappy has 3 bytes and yields at most 64, so a raw block that declares more per byte is damaged.
SNAPPY_MAX_RATIO = 22
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024
LZ4_FRAME_MAGIC = b"\x04\x22\x4d\x18"
#: 2^27, zstd's own default: the largest window a decoder allocates for.
ZSTD_MAX_WINDOW_BYTES = 1 << 27

_INT = struct.Struct(">i")


class CompressionType(IntEnum):
    """Numbers of codecs in a batch's attributes. ``name.lower()`` is the name in configs, except that a topic's
    ``compression.type`` for NONE is ``uncompressed``."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def decompress(data: Buffer, codec: int, max_bytes: int, *, magic: int = 2) -> Buffer:
    """Decompress ``data`` to at most ``max_bytes``; with codec none return ``data`` itself.

    Raises MessageTooLargeError when the result would be larger, InvalidRecordError when the data is damaged,
    UnsupportedCompressionTypeError. Data that is cut may give a shorter result without an error: zstd's wherever it is
    cut, that of the other codecs between two parts.
    """
    if codec == CompressionType.NONE:
        return data
    decoder = _DECODERS.get(codec)
    if decoder is None:
        raise UnsupportedCompressionTypeError(f"Unknown compression type id: {codec}")
    if codec == CompressionType.LZ4 and magic == 0:
        data = _with_lz4_header_checksum(data, broken=False)
    return decoder(data, max_bytes)


def compress(data: Buffer, codec: int, level: int | None = None, *, magic: int = 2) -> Buffer:
    """Compress ``data`` as Kafka's clients expect it; with codec none return ``data`` itself. ``level`` None: the
    default.

    Raises UnsupportedCompressionTypeError on an unknown codec.
    """
    if codec == CompressionType.NONE:
        return data
    encoder = _ENCODERS.get(codec)
    if encoder is None:
        raise UnsupportedCompressionTypeError(f"Unknown compression type id: {codec}")
    encoded = encoder(data, level)
    if codec == CompressionType.LZ4 and magic == 0:
        encoded = _with_lz4_header_checksum(encoded, broken=True)
    return encoded


def compress_many(parts: Sequence[Buffer], codec: int, level: int | None = None) -> Sequence[Buffer]:
    """Compress each of ``parts`` as :func:`compress` does. zstd takes them all in one call without the interpreter
    lock: if another thread wants the lock, giving it up for each part of 2.5 KB costs more than compressing the part.
    """
    if codec == CompressionType.ZSTD and len(parts) > 1 and all(map(len, parts)):
        with _zstd_encoder(3 if level is None else level) as encoder:
            packed: Any = encoder.multi_compress_to_buffer(list(parts), threads=1)
        return [memoryview(packed[number]) for number in range(len(parts))]
    return [compress(part, codec, level) for part in parts]


def zstd_size(part: Buffer, max_bytes: int) -> int:
    """Return the size that a single zstd frame declares; 0 when it declares none or too much, or ``part`` is not one
    frame."""
    import zstandard

    try:
        size = zstandard.frame_content_size(part)
        if not 0 < size <= min(max_bytes, CHUNK_BYTES):
            return 0
        end = zstandard.frame_header_size(part)
        has_checksum = part[4] & _ZSTD_CHECKSUM_FLAG
    except (zstandard.ZstdError, IndexError):
        return 0
    is_last = False
    while not is_last:
        header = int.from_bytes(part[end : end + 3], "little")
        is_last = bool(header & 1)
        end += 3 + (1 if header >> 1 & 3 == _ZSTD_BLOCK_OF_ONE_BYTE else header >> 3)
        if end > len(part):
            return 0
    return size if end + (4 if has_checksum else 0) == len(part) else 0


def decompress_zstd_frames(parts: Sequence[Buffer], sizes: Sequence[int]) -> list[memoryview] | None:
    """Decompress frames for which :func:`zstd_size` gave ``sizes``, in one call without the interpreter lock; return
    None if one is damaged.
    """
    import zstandard

    decoder = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW_BYTES)
    declared = struct.pack(f"={len(sizes)}Q", *sizes)
    try:
        found: Any = decoder.multi_decompress_to_buffer(list(parts), decompressed_sizes=declared, threads=1)
    except (zstandard.ZstdError, ValueError):
        return None
    return [memoryview(found[number]) for number in range(len(parts))]


class _BoundedOutput:
    """The output of a decoder, which may not exceed a bound; ``room()`` limits the decoder's next chunk."""

    __slots__ = ("_chunks", "_codec", "_max_bytes", "_parts", "_size")

    def __init__(self, codec: CompressionType, max_bytes: int) -> None:
        self._codec = codec
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []
        self._parts = 0
        self._size = 0

    def begin_part(self) -> None:
        """Count a member, frame or chunk. Raises InvalidRecordError if there are too many for their output."""
        self._parts += 1
        if self._parts > MAX_SMALL_PARTS + self._size // PART_BYTES:
            raise build_damage_error(self._codec, f"it consists of more than {MAX_SMALL_PARTS} nearly empty parts")

    def room(self) -> int:
        """Return one byte more than the bound leaves, so that an excess is noticed; at most CHUNK_BYTES."""
        return min(CHUNK_BYTES, self._max_bytes - self._size + 1)

    def append(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > self._max_bytes:
            raise build_size_error(self._codec, self._max_bytes)
        if chunk:
            self._chunks.append(chunk)

    def reserve(self, size: int) -> None:
        """Refuse ``size`` declared bytes that exceed the bound, before they are allocated."""
        if size > self._max_bytes - self._size:
            raise build_size_error(self._codec, self._max_bytes)

    def value(self) -> bytes:
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)


def build_size_error(codec: CompressionType, max_bytes: int) -> MessageTooLargeError:
    """Build the error for data that decompresses beyond its bound."""
    return MessageTooLargeError(f"{codec.name.lower()} data decompresses to more than {max_bytes} bytes")


def build_damage_error(codec: CompressionType, reason: object) -> InvalidRecordError:
    """Build the error for data that its codec cannot decode."""
    return InvalidRecordError(f"{codec.name.lower()} data does not decompress: {reason}")


# --- gzip ------------------------------------------------------------------------------------------------------------


class _Window:
    """Window over ``data`` for the decoders of its parts: each gets pieces, which grow within a part."""

    __slots__ = ("_position", "_size", "_view")

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data)
        self._position = 0
        self._size = _MAX_WINDOW_BYTES  # nearly every stream is one part

    @property
    def is_empty(self) -> bool:
        return self._position >= len(self._view)

    def next_piece(self) -> memoryview:
        """Return the bytes that follow; empty at the end of the data."""
        piece = self._view[self._position : self._position + self._size]
        self._position += len(piece)
        self._size = min(2 * self._size, _MAX_WINDOW_BYTES)
        return piece

    def end_part(self, unused_bytes: int) -> None:
        """Go back by the bytes that the part's decoder did not use."""
        self._position -= unused_bytes
        self._size = _FIRST_WINDOW_BYTES


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    import zlib

    output, window = _BoundedOutput(CompressionType.GZIP, max_bytes), _Window(data)
    try:
        _append_gzip_member(window, output)
        while not window.is_empty:
            _append_gzip_member(window, output)
    except zlib.error as error:
        raise build_damage_error(CompressionType.GZIP, error) from error
    return output.value()


def _append_gzip_member(window: _Window, output: _BoundedOutput) -> None:
    import zlib

    output.begin_part()
    member = zlib.decompressobj(wbits=31)
    while not member.eof:
        piece = member.unconsumed_tail or window.next_piece()
        chunk = member.decompress(piece, output.room())
        if not chunk and not piece and not member.eof:
            raise build_damage_error(CompressionType.GZIP, "it ends early")
        output.append(chunk)
    window.end_part(len(member.unused_data))


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    import zlib

    encoder = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
    return encoder.compress(data) + encoder.flush()


# --- snappy ----------------------------------------------------------------------------------------------------------


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytes:
    output = _BoundedOutput(CompressionType.SNAPPY, max_bytes)
    view = memoryview(data)
    if view[:8] != XERIAL_MAGIC:
        _append_snappy_block(view, output)
        return output.value()
    position = 0
    while position < len(view):
        output.begin_part()
        if view[position : position + 8] == XERIAL_MAGIC:
            position += len(XERIAL_HEADER)
            continue
        if len(view) - position < _INT.size:
            raise build_damage_error(CompressionType.SNAPPY, "a chunk's size is cut")
        (size,) = _INT.unpack_from(view, position)
        position += _INT.size
        if size < 0 or size > len(view) - position:
            raise build_damage_error(CompressionType.SNAPPY, f"chunk of {size} bytes, {len(view) - position} there")
        _append_snappy_block(view[position : position + size], output)
        position += size
    return output.value()


def _append_snappy_block(block: memoryview, output: _BoundedOutput) -> None:
    import cramjam

    try:
        declared = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise build_damage_error(CompressionType.SNAPPY, error) from error
    if declared > SNAPPY_MAX_RATIO * len(block):
        raise build_damage_error(CompressionType.SNAPPY, f"{len(block)} bytes declare {declared}")
    output.reserve(declared)
    try:
        output.append(bytes(cramjam.snappy.decompress_raw(block)))
    except cramjam.DecompressionError as error:
        raise build_damage_error(CompressionType.SNAPPY, error) from error


def _compress_snappy(data: Buffer, level: int | None) -> bytes:
    del level  # snappy has no levels
    import cramjam

    view = memoryview(data)
    out = bytearray(XERIAL_HEADER)
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        out += _INT.pack(len(block))
        out += block
    return bytes(out)


# --- lz4 -------------------------------------------------------------------------------------------------------------


def _decompress_lz4(data: Buffer, max_bytes: int) -> bytes:
    output, window = _BoundedOutput(CompressionType.LZ4, max_bytes), _Window(data)
    try:
        while not window.is_empty:
            _append_lz4_frame(window, output)
    except RuntimeError as error:
        raise build_damage_error(CompressionType.LZ4, error) from error
    return output.value()


def _append_lz4_frame(window: _Window, output: _BoundedOutput) -> None:
    from lz4.frame import LZ4FrameDecompressor

    output.begin_part()
    frame = LZ4FrameDecompressor()
    while not frame.eof:
        piece: Buffer = window.next_piece() if frame.needs_input else b""
        chunk = frame.decompress(piece, max_length=output.room())
        if not chunk and not piece and not frame.eof and frame.needs_input:
            raise build_damage_error(CompressionType.LZ4, "it ends early")
        output.append(chunk)
    window.end_part(len(frame.unused_data or b""))


LZ4_DEFAULT_LEVEL = 9
"""At this level Kafka uses the fast compressor, at any other the one with better compression."""


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    import lz4.frame

    encoded: bytes = lz4.frame.compress(
        data,
        compression_level=0 if level in (None, LZ4_DEFAULT_LEVEL) else max(3, level or 0),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return encoded


def _with_lz4_header_checksum(data: Buffer, *, broken: bool) -> bytes:
    """Copy ``data`` so that its first frame header has the right checksum, or magic 0's wrong one."""
    out = bytearray(data)
    if len(out) < 7 or out[:4] != LZ4_FRAME_MAGIC:
        return bytes(out)
    end = 6 + (8 if out[4] & 0x08 else 0) + (4 if out[4] & 0x01 else 0)
    if len(out) > end:
        out[end] = (_xxhash32(bytes(out[0 if broken else 4 : end])) >> 8) & 0xFF
    return bytes(out)


_XXH_PRIMES = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
_M32 = 0xFFFFFFFF


def _rotate_left(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _M32


def _xxhash32(data: bytes) -> int:
    """Compute xxHash32 with seed 0 (xxHash specification). A frame header has at most 18 bytes, so plain Python is fast
    enough.
    """
    p1, p2, p3, p4, p5 = _XXH_PRIMES
    position = 0
    accumulator = p5
    if len(data) >= 16:
        lanes = [(p1 + p2) & _M32, p2, 0, -p1 & _M32]
        while position + 16 <= len(data):
            for lane, word in enumerate(struct.unpack_from("<4I", data, position)):
                lanes[lane] = _rotate_left((lanes[lane] + word * p2) & _M32, 13) * p1 & _M32
            position += 16
        accumulator = sum(_rotate_left(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    accumulator = (accumulator + len(data)) & _M32
    while position + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, position)
        accumulator = _rotate_left((accumulator + word * p3) & _M32, 17) * p4 & _M32
        position += 4
    for byte in data[position:]:
        accumulator = _rotate_left((accumulator + byte * p5) & _M32, 11) * p1 & _M32
    accumulator = (accumulator ^ (accumulator >> 15)) * p2 & _M32
    accumulator = (accumulator ^ (accumulator >> 13)) * p3 & _M32
    return accumulator ^ (accumulator >> 16)


# --- zstd ------------------------------------------------------------------------------------------------------------


#: Decoders not in use, at most one per thread that ever decoded: making one takes 8 µs, using one 2. A
#: decoder serves one thread at a time; taking from and giving to a list is atomic. After damaged data it is not kept.
_idle_zstd_decoders: list[zstandard.ZstdDecompressor] = []


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytes:
    # ZstdDecompressor.decompress allocates what the frame declares, whatever its bound says: only a frame that declares
    # at most CHUNK_BYTES is given to it.
    import zstandard

    output = _BoundedOutput(CompressionType.ZSTD, max_bytes)
    try:
        decoder = _idle_zstd_decoders.pop()
    except IndexError:
        decoder = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW_BYTES)
    try:
        if 0 < zstandard.frame_content_size(data) <= min(max_bytes, CHUNK_BYTES):
            decoded = _decompress_zstd_frame(decoder, data)
            if decoded is not None:
                _idle_zstd_decoders.append(decoder)
                return decoded
        with decoder.stream_reader(data, read_across_frames=True) as reader:
            while chunk := reader.read(output.room()):
                output.append(chunk)
    except zstandard.ZstdError as error:
        raise build_damage_error(CompressionType.ZSTD, error) from error
    _idle_zstd_decoders.append(decoder)
    return output.value()


def _decompress_zstd_frame(decoder: zstandard.ZstdDecompressor, data: Buffer) -> bytes | None:
    """Decompress ``data`` if it is one frame of a declared size, in half the time of a reader; else return None."""
    import zstandard

    try:
        return decoder.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError:
        return None  # more frames follow, or the data is damaged: the caller's reader finds out which


#: Encoders not in use, by level: making one takes 15 µs, compressing 2.5 KB with it 6.
_idle_zstd_encoders: dict[int, list[zstandard.ZstdCompressor]] = {}


@contextmanager
def _zstd_encoder(level: int) -> Iterator[zstandard.ZstdCompressor]:
    """Yield an encoder for this thread alone; after an error it is not reused."""
    import zstandard

    idle = _idle_zstd_encoders.setdefault(level, [])
    try:
        encoder = idle.pop()
    except IndexError:
        if level < _FIRST_COSTLY_ZSTD_LEVEL:
            encoder = zstandard.ZstdCompressor(level=level)
        else:
            encoder = zstandard.ZstdCompressor(compression_params=_affordable_zstd_parameters(level))
    yield encoder
    idle.append(encoder)


#: From this level on zstd's tables grow beyond what a batch can use: level 22 takes 257 MiB, and up to 62 s for 15 MB
#: of digits. With the limits below it takes 33 MiB and 5 s, and the result is no larger.
_FIRST_COSTLY_ZSTD_LEVEL = 15
_ZSTD_WINDOW_LOG, _ZSTD_TABLE_LOG = 23, 22


def _affordable_zstd_parameters(level: int) -> zstandard.ZstdCompressionParameters:
    import zstandard

    usual = zstandard.ZstdCompressionParameters.from_level(level)
    return zstandard.ZstdCompressionParameters.from_level(
        level,
        window_log=min(usual.window_log, _ZSTD_WINDOW_LOG),
        chain_log=min(usual.chain_log, _ZSTD_TABLE_LOG),
        hash_log=min(usual.hash_log, _ZSTD_TABLE_LOG),
    )


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    with _zstd_encoder(3 if level is None else level) as encoder:
        return encoder.compress(data)


_DECODERS = {
    int(CompressionType.GZIP): _decompress_gzip,
    int(CompressionType.SNAPPY): _decompress_snappy,
    int(CompressionType.LZ4): _decompress_lz4,
    int(CompressionType.ZSTD): _decompress_zstd,
}
_ENCODERS = {
    int(CompressionType.GZIP): _compress_gzip,
    int(CompressionType.SNAPPY): _compress_snappy,
    int(CompressionType.LZ4): _compress_lz4,
    int(CompressionType.ZSTD): _compress_zstd,
}
