"""LZ4 for whole chunks of batches, compiled: decompression into the scratch, compression of the output.

A library that is called for each batch releases and takes the interpreter lock each time. If two threads compete for
the lock, that takes longer than the library's work (28 µs instead of 3 µs for a batch of 2.5 KB).

``expand_lz4`` decodes frames as Kafka's clients write them: one frame, its blocks independent or linked, without block
or content checksums and without content size. It stops at any other frame. The caller calls the lz4 library then, which
decides whether the batch is damaged. Every length is checked against the block and the buffer before it is used.

``pack_lz4`` writes such frames by a greedy search with a table of 4,096 positions, as LZ4's own fast compressor does.

C types are in ``lz4_frames.pxd``. Any thread. Source: LZ4 frame format 1.6.3 and block format descriptions.
"""

from __future__ import annotations

from typing import Any

from tidelog.cleaner.engine.batch_table import (
    ATTRIBUTES,
    BATCH_OVERHEAD,
    BODY,
    BODY_SIZE,
    CODEC_MASK,
    COLUMNS,
    COUNT,
    LOG_OVERHEAD,
    LZ4,
    LZ4_HASH_SLOTS,
    OUT_CODEC,
    OUT_COLUMNS,
    OUT_POSITION,
    OUT_SIZE,
    REASON,
    SMALLEST_RECORD,
    STATE,
    BatchState,
    ExpandLimits,
    Unreadable,
)
from tidelog.protocol.compiled import words
from tidelog.protocol.compiled.words import Buffer

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

_PACKED, _EXPANDED, _POISON = int(BatchState.PACKED), int(BatchState.EXPANDED), int(BatchState.POISON)
_BAD_COUNT = int(Unreadable.COUNT)
_MAGIC = 0x184D2204
_LINKED, _INDEPENDENT = 0x40, 0x60
# The checksum byte of frame headers for blocks of 64 KB, 256 KB, 1 MB and 4 MB: four for linked ones, then four for
# independent ones.
_CHECKS = bytes((0xC0, 0x77, 0x96, 0xDF, 0x82, 0xFB, 0x51, 0x73))
_HEADER_CHECKS = _CHECKS  # in C their address
_LEFT_TO_LIBRARY = -1
_STORED = 0x80000000
_BLOCK_BYTES = 65536
_MIN_MATCH, _LAST_LITERALS, _MATCH_LIMIT = 4, 5, 12
_HASH_FACTOR, _HASH_SHIFT = 2654435761, 20
_SHORT_MATCH = 64

Integers = memoryview
"""An array of 64-bit integers; in C an address."""
Bytes = memoryview
"""Bytes that may be written to; in C an address."""


def expand_lz4(buffer: Any, table: Any, rows: tuple[int, int], used: int, limits: ExpandLimits) -> tuple[int, int]:
    """Decompress the LZ4 batches of ``rows`` to ``buffer[used:]``, each after a copy of its header.

    Returns the first row that is not done (the scratch is full, or the library has to
    decode it), and the bytes used.
    """
    first, end = rows
    capacity, max_batch_bytes, full = limits
    held = words.hold_writable(buffer)
    batches = words.hold_writable(table)
    with cython.nogil:
        done, used = _expand(held.bytes, batches.integers, first, end, used, capacity, max_batch_bytes, full)
    words.release(batches)
    words.release(held)
    return done, used


def pack_lz4(out: Any, out_table: Any, rows: tuple[int, int], packed: Any, target: int) -> tuple[int, int]:
    """Copy the batches of ``rows`` to ``packed[target:]``, with those of LZ4 compressed, and set their OUT_SIZE.

    ``packed`` must be large enough for data that cannot be compressed. Returns the first row of another codec, and the
    end of the output.
    """
    first, end = rows
    held = words.hold(out)
    batches = words.hold_writable(out_table)
    target_bytes = words.hold_writable(packed)
    hashes = words.hold_writable(bytearray(8 * LZ4_HASH_SLOTS))
    with cython.nogil:
        done, target = _pack(held.data, batches.integers, first, end, target_bytes.bytes, target, hashes.integers)
    words.release(hashes)
    words.release(target_bytes)
    words.release(batches)
    words.release(held)
    return done, target


# ---- decompression


def _length(data: Buffer, position: int, end: int, nibble: int) -> tuple[int, int]:
    """Read a length: (length, position after it or -1). A ``nibble`` of 15 means that bytes follow which are added; the
    last one is not 255."""
    if nibble < 15:
        return nibble, position
    length = nibble
    while position < end:
        byte = data[position]
        position += 1
        length += byte
        if byte != 255:
            return length, position
    return 0, -1


def _copy_match(data: Bytes, target: int, distance: int, size: int, limit: int) -> None:
    """Copy ``size`` bytes from ``distance`` bytes before ``target``; a match longer than its distance repeats itself.

    Up to seven more bytes may be written, below ``limit``.
    """
    copied = 0
    if distance >= 8 and size <= _SHORT_MATCH and size + 8 <= limit - target:
        while copied < size:
            words.store_u64(data, target + copied, words.load_u64(data, target - distance + copied))
            copied += 8
        return
    copied = min(distance, size)
    words.copy_bytes(data, target, data, target - distance, copied)
    while copied < size:
        step = min(copied + distance, size - copied)
        words.copy_bytes(data, target + copied, data, target - distance, step)
        copied += step


def _copy_literals(data: Bytes, target: int, position: int, size: int, end: int, limit: int) -> None:
    """Copy ``size`` bytes from ``position``. If ``size`` is at most 16, 16 bytes are copied where source and target
    have that many left."""
    if size <= 16 and end - position >= 16 and limit - target >= 16:
        words.store_u64(data, target, words.load_u64(data, position))
        words.store_u64(data, target + 8, words.load_u64(data, position + 8))
    else:
        words.copy_bytes(data, target, data, position, size)


def _decode_block(data: Bytes, position: int, end: int, target: int, limit: int, lowest: int) -> int:
    """Decode the block at ``position`` to ``data[target:limit]``; matches may reach back to ``lowest``.

    Returns the end, or -1 if the library has to decode it.
    """
    while position < end:
        token = data[position]
        literals, position = _length(data, position + 1, end, token >> 4)
        if position < 0 or literals > end - position or literals > limit - target:
            return _LEFT_TO_LIBRARY
        _copy_literals(data, target, position, literals, end, limit)
        position += literals
        target += literals
        if position == end:
            return target
        if position + 2 > end:
            return _LEFT_TO_LIBRARY
        distance = words.load_u16(data, position)
        size, position = _length(data, position + 2, end, token & 15)
        size += _MIN_MATCH
        if position < 0 or distance == 0 or distance > target - lowest or size > limit - target:
            return _LEFT_TO_LIBRARY
        _copy_match(data, target, distance, size, limit)
        target += size
    return _LEFT_TO_LIBRARY


def _block_bytes(data: Buffer, position: int, end: int) -> int:
    """Return the frame's largest block size by its header at ``position``; -1 if the library has to decode it."""
    if end - position < 11 or words.load_u32(data, position) != _MAGIC:
        return _LEFT_TO_LIBRARY
    flags, sizes = data[position + 4], data[position + 5]
    kind = (sizes >> 4) - 4
    if sizes & 0x8F or kind < 0 or flags not in (_LINKED, _INDEPENDENT):
        return _LEFT_TO_LIBRARY
    if data[position + 6] != _HEADER_CHECKS[kind + (4 if flags == _INDEPENDENT else 0)]:
        return _LEFT_TO_LIBRARY
    return _BLOCK_BYTES << (2 * kind)


def _decode_frame(data: Bytes, position: int, end: int, target: int, limit: int) -> int:
    """Decode the frame ``data[position:end]`` to ``data[target:limit]``. Returns the end, or -1 if the library has to
    decode it."""
    max_block_bytes = _block_bytes(data, position, end)
    if max_block_bytes < 0:
        return _LEFT_TO_LIBRARY
    is_independent = data[position + 4] == _INDEPENDENT
    position += 7
    start = target
    while end - position >= 4:
        size = words.load_u32(data, position)
        position += 4
        if size == 0:
            return target if position == end else _LEFT_TO_LIBRARY
        is_stored = size >= _STORED
        size -= _STORED if is_stored else 0
        block_limit = min(limit, target + max_block_bytes)
        if size > end - position or size > max_block_bytes or (is_stored and size > block_limit - target):
            return _LEFT_TO_LIBRARY
        if is_stored:
            words.copy_bytes(data, target, data, position, size)
            target += size
        else:
            lowest = target if is_independent else start
            target = _decode_block(data, position, position + size, target, block_limit, lowest)
            if target < 0:
                return _LEFT_TO_LIBRARY
        position += size
    return _LEFT_TO_LIBRARY


def _expand(
    data: Bytes, table: Integers, first: int, end: int, used: int, capacity: int, max_batch_bytes: int, full: int
) -> tuple[int, int]:
    """See :func:`expand_lz4`."""
    for number in range(first, end):
        row = number * COLUMNS
        if table[row + STATE] != _PACKED:
            continue
        if used >= full or table[row + ATTRIBUTES] & CODEC_MASK != LZ4 or table[row + COUNT] < 0:
            return number, used
        body, start = table[row + BODY], used + BATCH_OVERHEAD
        target = _decode_frame(data, body, body + table[row + BODY_SIZE], start, min(capacity, start + max_batch_bytes))
        if target < 0:
            return number, used
        if table[row + COUNT] * SMALLEST_RECORD > target - start:
            table[row + STATE], table[row + REASON] = _POISON, _BAD_COUNT
            continue
        words.copy_bytes(data, used, data, body - BATCH_OVERHEAD, BATCH_OVERHEAD)
        table[row + BODY], table[row + BODY_SIZE], table[row + STATE] = start, target - start, _EXPANDED
        used = target
    return end, used


# ---- compression


def _count_matching(source: Buffer, first: int, second: int, end: int) -> int:
    """Count the bytes from ``second`` to below ``end`` that equal those from ``first`` on."""
    begin = second
    while second + 8 <= end and words.load_u64(source, first) == words.load_u64(source, second):
        first += 8
        second += 8
    while second < end and source[first] == source[second]:
        first += 1
        second += 1
    return second - begin


def _write_length(out: Bytes, target: int, rest: int) -> int:
    """Write the part of a length above 15; return the end."""
    while rest >= 255:
        out[target] = 255
        rest -= 255
        target += 1
    out[target] = rest
    return target + 1


def _write_literals(source: Buffer, start: int, end: int, out: Bytes, target: int, match: int) -> int:
    """Write a token, literal length and literals; return the end. ``match`` is the match length minus 4."""
    literals = end - start
    out[target] = (min(literals, 15) << 4) | min(match, 15)
    target += 1
    if literals >= 15:
        target = _write_length(out, target, literals - 15)
    words.copy_bytes(out, target, source, start, literals)
    return target + literals


def _compress_block(source: Buffer, start: int, end: int, out: Bytes, target: int, hashes: Integers) -> int:
    """Compress at most 64 KB; return the end. ``out`` is large enough for data that cannot be compressed."""
    anchor = position = start
    while position < end - _MATCH_LIMIT:
        word = words.load_u32(source, position)
        slot = ((word * _HASH_FACTOR) & words.MASK_32) >> _HASH_SHIFT
        found = hashes[slot]
        hashes[slot] = position
        # Blocks are independent: a position in an earlier block is not a match.
        if found < start or words.load_u32(source, found) != word:
            position += 1 + ((position - anchor) >> 6)
            continue
        while position > anchor and found > start and source[position - 1] == source[found - 1]:
            position -= 1
            found -= 1
        size = _count_matching(source, found, position, end - _LAST_LITERALS)
        target = _write_literals(source, anchor, position, out, target, size - _MIN_MATCH)
        words.store_u16(out, target, position - found)
        target += 2
        if size - _MIN_MATCH >= 15:
            target = _write_length(out, target, size - _MIN_MATCH - 15)
        position += size
        anchor = position
    return _write_literals(source, anchor, end, out, target, 0)


def _compress_frame(source: Buffer, position: int, end: int, out: Bytes, target: int, hashes: Integers) -> int:
    """Compress ``source[position:end]`` to a frame at ``out[target:]``; return the end."""
    words.store_u32(out, target, _MAGIC)
    out[target + 4], out[target + 5], out[target + 6] = _INDEPENDENT, 0x40, _HEADER_CHECKS[4]
    target += 7
    while position < end:
        size = min(end - position, _BLOCK_BYTES)
        block_end = _compress_block(source, position, position + size, out, target + 4, hashes)
        if block_end - target - 4 >= size:
            words.copy_bytes(out, target + 4, source, position, size)
            block_end = target + 4 + size
            words.store_u32(out, target, size | _STORED)
        else:
            words.store_u32(out, target, block_end - target - 4)
        target = block_end
        position += size
    words.store_u32(out, target, 0)
    return target + 4


def _pack(
    out: Buffer, table: Integers, first: int, end: int, packed: Bytes, target: int, hashes: Integers
) -> tuple[int, int]:
    """See :func:`pack_lz4`."""
    for slot in range(LZ4_HASH_SLOTS):
        hashes[slot] = -1
    for number in range(first, end):
        row = number * OUT_COLUMNS
        start, size = table[row + OUT_POSITION], table[row + OUT_SIZE]
        if table[row + OUT_CODEC] == 0:
            words.copy_bytes(packed, target, out, start, size)
            target += size
            continue
        if table[row + OUT_CODEC] != LZ4:
            return number, target
        words.copy_bytes(packed, target, out, start, BATCH_OVERHEAD)
        after = _compress_frame(out, start + BATCH_OVERHEAD, start + size, packed, target + BATCH_OVERHEAD, hashes)
        words.store_be_u32(packed, target + 8, after - target - LOG_OVERHEAD)
        words.store_be_u32(packed, target + 17, words.crc32c(packed, target + 21, after - target - 21))
        table[row + OUT_SIZE] = after - target
        target = after
    return end, target
