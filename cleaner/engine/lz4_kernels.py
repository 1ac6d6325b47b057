"""LZ4 for whole chunks of batches, compiled: decompression into the scratch, compression of what is written.

Called batch by batch a codec costs the interpreter lock twice for each, which takes longer than its work when two
threads want the lock (28 µs in place of 3 for a batch of 2.5 KB).

``expand_lz4`` takes what Kafka's clients write: one frame, its blocks independent or linked, no checksums, no content
size. Where anything else comes it stops, and the caller asks the library, which decides whether the batch is damaged.
Every length is checked against the block and the room before it is followed.

``pack_lz4`` writes such frames: a greedy search over a table of 4,096 positions, as LZ4's own fast compressor does.

Source: LZ4 frame format 1.6.3 and block format descriptions.
"""

from __future__ import annotations

import numpy as np

from tidelog.cleaner.engine.batch_table import (
    ATTRIBUTES,
    BATCH_OVERHEAD,
    BODY,
    BODY_SIZE,
    CODEC_MASK,
    COUNT,
    LOG_OVERHEAD,
    LZ4,
    OUT_CODEC,
    OUT_POSITION,
    OUT_SIZE,
    REASON,
    SMALLEST_RECORD,
    STATE,
    BatchState,
    Unreadable,
)
from tidelog.log.records.intrinsics import (
    ByteArray,
    Integer,
    IntegerArray,
    copy_bytes,
    crc32c,
    kernel,
    load_u64,
    store_be_u32,
)

_PACKED, _EXPANDED, _POISON = int(BatchState.PACKED), int(BatchState.EXPANDED), int(BatchState.POISON)
_BAD_COUNT = int(Unreadable.COUNT)
_MAGIC = 0x184D2204
_LINKED, _INDEPENDENT = 0x40, 0x60
# The header's checksum byte for block sizes of 64 KB, 256 KB, 1 MB and 4 MB.
_LINKED_CHECKS = (0xC0, 0x77, 0x96, 0xDF)
_INDEPENDENT_CHECKS = (0x82, 0xFB, 0x51, 0x73)
_NOT_MINE = -1
_STORED = 0x80000000
_BLOCK_BYTES = 65536
_MIN_MATCH, _LAST_LITERALS, _MATCH_LIMIT = 4, 5, 12


@kernel
def _load_u32(buffer: ByteArray, position: Integer) -> Integer:
    return np.int64(load_u64(buffer, position) & np.uint64(0xFFFFFFFF))


# ---- decompression


@kernel
def _length(buffer: ByteArray, position: Integer, end: Integer, nibble: Integer) -> tuple[Integer, Integer]:
    """(length, position behind it or -1): 15 means that bytes follow, of which the last is not 255."""
    if nibble < 15:
        return nibble, position
    length = nibble
    while position < end:
        byte = np.int64(buffer[position])
        position += 1
        length += byte
        if byte != 255:
            return length, position
    return 0, -1


@kernel
def _copy_match(buffer: ByteArray, target: Integer, distance: Integer, size: Integer) -> None:
    """``size`` bytes from ``distance`` before ``target``; a match longer than its distance repeats itself."""
    copied = min(distance, size)
    copy_bytes(buffer, target, buffer, target - distance, copied)
    while copied < size:
        step = min(copied + distance, size - copied)
        copy_bytes(buffer, target + copied, buffer, target - distance, step)
        copied += step


@kernel
def _decode_block(
    buffer: ByteArray, span: tuple[Integer, Integer], target: Integer, limit: Integer, lowest: Integer
) -> Integer:
    """Decode a block to ``buffer[target:limit]``; matches reach back to ``lowest``. Returns the end, or -1."""
    position, end = span
    while position < end:
        token = np.int64(buffer[position])
        literals, position = _length(buffer, position + 1, end, token >> 4)
        if position < 0 or literals > end - position or literals > limit - target:
            return _NOT_MINE
        copy_bytes(buffer, target, buffer, position, literals)
        position += literals
        target += literals
        if position == end:
            return target
        if position + 2 > end:
            return _NOT_MINE
        distance = np.int64(buffer[position]) | (np.int64(buffer[position + 1]) << 8)
        size, position = _length(buffer, position + 2, end, token & 15)
        size += _MIN_MATCH
        if position < 0 or distance == 0 or distance > target - lowest or size > limit - target:
            return _NOT_MINE
        _copy_match(buffer, target, distance, size)
        target += size
    return _NOT_MINE


@kernel
def _block_bytes(buffer: ByteArray, position: Integer, end: Integer) -> Integer:
    """The largest block of the frame whose header is at ``position``, or -1 when it is none of those taken here."""
    if end - position < 11 or _load_u32(buffer, position) != _MAGIC:
        return _NOT_MINE
    flags, sizes, check = np.int64(buffer[position + 4]), np.int64(buffer[position + 5]), buffer[position + 6]
    kind = (sizes >> 4) - 4
    if sizes & 0x8F or kind < 0:
        return _NOT_MINE
    if flags == _INDEPENDENT and check == _INDEPENDENT_CHECKS[kind]:
        return _BLOCK_BYTES << (2 * kind)
    if flags == _LINKED and check == _LINKED_CHECKS[kind]:
        return _BLOCK_BYTES << (2 * kind)
    return _NOT_MINE


@kernel
def _decode_frame(buffer: ByteArray, position: Integer, end: Integer, target: Integer, limit: Integer) -> Integer:
    """Decode the one frame ``buffer[position:end]`` to ``buffer[target:limit]``. Returns the end, or -1."""
    most = _block_bytes(buffer, position, end)
    if most < 0:
        return _NOT_MINE
    independent = buffer[position + 4] == _INDEPENDENT
    position += 7
    start = target
    while end - position >= 4:
        size = _load_u32(buffer, position)
        position += 4
        if size == 0:
            return target if position == end else _NOT_MINE
        stored = size & _STORED
        size &= ~_STORED
        if size > end - position or size > most:
            return _NOT_MINE
        block_limit = min(limit, target + most)
        if stored:
            if size > block_limit - target:
                return _NOT_MINE
            copy_bytes(buffer, target, buffer, position, size)
            target += size
        else:
            lowest = target if independent else start
            target = _decode_block(buffer, (position, position + size), target, block_limit, lowest)
            if target < 0:
                return _NOT_MINE
        position += size
    return _NOT_MINE


@kernel
def expand_lz4(
    buffer: ByteArray,
    table: IntegerArray,
    rows: tuple[Integer, Integer],
    used: Integer,
    limits: tuple[Integer, Integer, Integer],
) -> tuple[Integer, Integer]:
    """Expand the LZ4 batches of ``rows`` to ``buffer[used:]``, each behind a copy of its header.

    ``limits``: where the room ends, most bytes of one batch, and where the scratch is full. Returns (the first row not
    done: the scratch is full, or it is none for this kernel; bytes used).
    """
    for row in range(rows[0], rows[1]):
        if table[row, STATE] != _PACKED:
            continue
        if used >= limits[2] or table[row, ATTRIBUTES] & CODEC_MASK != LZ4 or table[row, COUNT] < 0:
            return row, used
        body, start = table[row, BODY], used + BATCH_OVERHEAD
        end = _decode_frame(buffer, body, body + table[row, BODY_SIZE], start, min(limits[0], start + limits[1]))
        if end < 0:
            return row, used
        if table[row, COUNT] * SMALLEST_RECORD > end - start:
            table[row, STATE], table[row, REASON] = _POISON, _BAD_COUNT
            continue
        copy_bytes(buffer, used, buffer, body - BATCH_OVERHEAD, BATCH_OVERHEAD)
        table[row, BODY], table[row, BODY_SIZE], table[row, STATE] = start, end - start, _EXPANDED
        used = end
    return rows[1], used


# ---- compression


@kernel
def _store_u32(out: ByteArray, target: Integer, value: Integer) -> Integer:
    for byte in range(4):
        out[target + byte] = np.uint8((value >> (8 * byte)) & 0xFF)
    return target + 4


@kernel
def _matching(source: ByteArray, first: Integer, second: Integer, end: Integer) -> Integer:
    """How many bytes at ``second``, before ``end``, are those at ``first``."""
    begin = second
    while second + 8 <= end and load_u64(source, first) == load_u64(source, second):
        first += 8
        second += 8
    while second < end and source[first] == source[second]:
        first += 1
        second += 1
    return second - begin


@kernel
def _write_length(out: ByteArray, target: Integer, rest: Integer) -> Integer:
    while rest >= 255:
        out[target] = 255
        rest -= 255
        target += 1
    out[target] = np.uint8(rest)
    return target + 1


@kernel
def _write_literals(
    source: ByteArray, span: tuple[Integer, Integer], out: ByteArray, target: Integer, match: Integer
) -> Integer:
    """Token (``match``: match length - 4), literal length and literals; returns the end."""
    literals = span[1] - span[0]
    out[target] = np.uint8((min(literals, 15) << 4) | min(match, 15))
    target += 1
    if literals >= 15:
        target = _write_length(out, target, literals - 15)
    copy_bytes(out, target, source, span[0], literals)
    return target + literals


@kernel
def _compress_block(
    source: ByteArray, span: tuple[Integer, Integer], out: ByteArray, target: Integer, hashes: IntegerArray
) -> Integer:
    """Compress at most 64 KB; ``out`` has room for the worst case. Returns the end."""
    start, end = span
    anchor = position = start
    hashes[:] = -1
    while position < end - _MATCH_LIMIT:
        word = _load_u32(source, position)
        slot = ((word * 2654435761) & 0xFFFFFFFF) >> 20
        found = hashes[slot]
        hashes[slot] = position
        if found < 0 or _load_u32(source, found) != word:
            position += 1 + ((position - anchor) >> 6)
            continue
        while position > anchor and found > start and source[position - 1] == source[found - 1]:
            position -= 1
            found -= 1
        size = _matching(source, found, position, end - _LAST_LITERALS)
        target = _write_literals(source, (anchor, position), out, target, size - _MIN_MATCH)
        distance = position - found
        out[target], out[target + 1] = np.uint8(distance & 0xFF), np.uint8(distance >> 8)
        target += 2
        if size - _MIN_MATCH >= 15:
            target = _write_length(out, target, size - _MIN_MATCH - 15)
        position += size
        anchor = position
    return _write_literals(source, (anchor, end), out, target, 0)


@kernel
def _compress_frame(
    source: ByteArray, position: Integer, end: Integer, out: ByteArray, target: Integer, hashes: IntegerArray
) -> Integer:
    target = _store_u32(out, target, _MAGIC)
    out[target], out[target + 1], out[target + 2] = _INDEPENDENT, 0x40, _INDEPENDENT_CHECKS[0]
    target += 3
    while position < end:
        size = min(end - position, _BLOCK_BYTES)
        block_end = _compress_block(source, (position, position + size), out, target + 4, hashes)
        if block_end - target - 4 >= size:
            copy_bytes(out, target + 4, source, position, size)
            block_end = target + 4 + size
            _store_u32(out, target, size | _STORED)
        else:
            _store_u32(out, target, block_end - target - 4)
        target = block_end
        position += size
    return _store_u32(out, target, 0)


@kernel
def pack_lz4(
    out: ByteArray,
    out_table: IntegerArray,
    rows: tuple[Integer, Integer],
    packed: ByteArray,
    target: Integer,
    hashes: IntegerArray,
) -> tuple[Integer, Integer]:
    """Put the written batches of ``rows`` to ``packed[target:]``, those of LZ4 compressed; sets OUT_SIZE.

    ``packed`` has room for the worst case, ``hashes`` HASH_SLOTS slots. Returns (the first row not done, for it has
    another codec; the end).
    """
    for row in range(rows[0], rows[1]):
        start, size = out_table[row, OUT_POSITION], out_table[row, OUT_SIZE]
        if out_table[row, OUT_CODEC] == 0:
            copy_bytes(packed, target, out, start, size)
            target += size
            continue
        if out_table[row, OUT_CODEC] != LZ4:
            return row, target
        copy_bytes(packed, target, out, start, BATCH_OVERHEAD)
        end = _compress_frame(out, start + BATCH_OVERHEAD, start + size, packed, target + BATCH_OVERHEAD, hashes)
        store_be_u32(packed, target + 8, end - target - LOG_OVERHEAD)
        store_be_u32(packed, target + 17, crc32c(packed, target + 21, end - target - 21))
        out_table[row, OUT_SIZE] = end - target
        target = end
    return rows[1], target
