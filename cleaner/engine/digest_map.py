"""Key hashing and the map of keys, compiled.

The map has buckets of 64 bytes, one cache line each, with three entries, so that a look-up costs one cache miss::

    bytes  0..47   three digests of 16 bytes
    bytes 48..59   low 32 bits of three values        bytes 60..62   high 8 bits of them        byte 63   unused

A value is a record's ordinal + 1; 0 marks a free entry. A key takes 21.3 bytes, and 24 in Kafka's map. The bucket of a
digest is its first word scaled to the number of buckets; if a bucket is full, the next one is used. A probe compares a
whole bucket. Entries are removed only all together, so a search ends at the first free one.

``put_block`` keeps the larger ordinal of a key and sets the "superseded" bit of the smaller one. For segments whose
keys were put, the copy pass only reads the bits, without hashing or probing. It looks up the keys of other segments. A
block of keys is hashed before it is probed, so that the cache misses of independent probes overlap.

The digest is SipHash-2-4 with 128 bits under a random key, so that an adversary cannot make two keys collide, or MD5 as
in Kafka. Python's MD5 would take the interpreter lock for each key; the one here never takes it.

Tables are arrays of 64-bit words; a digest is a row of three: first word, second word, ordinal. Blocks are processed
without the interpreter lock. C types are in ``digest_map.pxd``. One thread at a time may use a map.
"""

from __future__ import annotations

import math
from typing import Any

from tidelog.cleaner.engine.batch_table import (
    BUCKET_BYTES,
    BUCKET_WORDS,
    DIRTY_ORDINALS,
    ENTRIES_PER_BUCKET,
    LOOKUPS,
    MD5,
    PROBES,
    SIZE_COUNTER,
)
from tidelog.protocol.compiled import words
from tidelog.protocol.compiled.words import Buffer

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

_PREFETCH_DISTANCE = 16
"""Number of keys between the prefetch of a bucket and its probe. With 1 M keys a put takes 35 ns, and 112 ns without
prefetch."""
_LOW_VALUES, _HIGH_VALUES = 48, 60  # positions in a bucket
_DIGEST_WORDS, _KEY_COLUMNS = 3, 3

# SipHash's initial state: the text "somepseudorandomlygeneratedbytes"
_SIP_0, _SIP_1, _SIP_2, _SIP_3 = 0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573
_MD5_A, _MD5_B, _MD5_C, _MD5_D = 0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476
_SHIFTS = bytes((7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21))
_SINES = b"".join([int(abs(math.sin(step + 1)) * 2**32).to_bytes(4, "little") for step in range(64)])
# In C these are the addresses of the tables above.
_MD5_SHIFTS, _MD5_SINES = _SHIFTS, _SINES

Integers = memoryview
"""An array of 64-bit integers; in C an address."""
Bytes = memoryview
"""Bytes that may be written to; in C an address."""


def hash_keys(buffer: Any, keys: Any, count: int, algorithm: int, secret: bytes, digests: Any) -> None:
    """Fill ``digests`` with two words and the ordinal of each of the first ``count`` keys from ``parse_records``."""
    held = words.hold(buffer)
    rows = words.hold(keys)
    hidden = words.hold(secret)
    scratch = words.hold_writable(bytearray(128))
    found = words.hold_writable(digests)
    with cython.nogil:
        if algorithm == MD5:
            _hash_by_md5(held.data, rows.integers, count, scratch.bytes, found.words)
        else:
            _hash_by_siphash(held.data, rows.integers, count, hidden.words[0], hidden.words[1], found.words)
    words.release(found)
    words.release(scratch)
    words.release(hidden)
    words.release(rows)
    words.release(held)


def put_block(digests: Any, span: tuple[int, int], table: Any, bits: tuple[Any, Any], limit: int, counters: Any) -> int:
    """Put the digests ``span`` (first, end) into the map. Of two ordinals of a key the map keeps the larger one, and
    the bit of the smaller one is set.

    ``table`` is the map. ``bits`` are the superseded bits of the clean and of the dirty section. The call stops before
    the map would have more than ``limit`` keys; it returns the first digest that was not put.
    """
    first, end = span
    rows = words.hold(digests)
    held = words.hold_writable(table)
    clean = words.hold_writable(bits[0])
    dirty = words.hold_writable(bits[1])
    counted = words.hold_writable(counters)
    with cython.nogil:
        done = _put(
            rows.words, first, end, held.words, held.bytes, held.size // BUCKET_BYTES, clean.bytes, dirty.bytes, limit,
            counted.integers,
        )  # fmt: skip
    words.release(counted)
    words.release(dirty)
    words.release(clean)
    words.release(held)
    words.release(rows)
    return done


def look_up_block(digests: Any, count: int, table: Any, bits: Any, bias: int, counters: Any) -> None:
    """Set bit (ordinal - ``bias``) for each of the first ``count`` digests that is in the map."""
    rows = words.hold(digests)
    held = words.hold(table)
    marked = words.hold_writable(bits)
    counted = words.hold_writable(counters)
    with cython.nogil:
        _look_up(
            rows.words, count, held.words, held.data, held.size // BUCKET_BYTES, marked.bytes, bias, counted.integers
        )
    words.release(counted)
    words.release(marked)
    words.release(held)
    words.release(rows)


def copy_entries(table: Any, span: tuple[int, int], digests: Any) -> int:
    """Copy the entries of the buckets ``span`` (first, end) into ``digests``; return how many there are."""
    first, end = span
    held = words.hold(table)
    rows = words.hold_writable(digests)
    with cython.nogil:
        found = _entries(held.words, held.data, first, end, rows.words)
    words.release(rows)
    words.release(held)
    return found


def partition_digests(digests: Any, count: int, partitioned: Any, starts: Any) -> None:
    """Sort ``digests[:count]`` by the top bits of their second word into partitions (counting sort).

    The bucket in the map comes from the first word, so each partition still spreads over the whole map. The number of
    partitions is a power of two. ``starts`` receives the row at which each begins, and at last ``count``.
    """
    partitions = len(starts) - 1
    rows = words.hold(digests)
    target = words.hold_writable(partitioned)
    begins = words.hold_writable(starts)
    with cython.nogil:
        _partition(rows.words, count, target.words, begins.integers, partitions)
    words.release(begins)
    words.release(target)
    words.release(rows)


# ---- SipHash


def _rotate(word: int, bits: int) -> int:
    """Rotate the 64-bit ``word`` left by ``bits``."""
    return ((word << bits) & words.MASK_64) | (word >> (64 - bits))


def _sip_round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = (v0 + v1) & words.MASK_64
    v2 = (v2 + v3) & words.MASK_64
    v1 = _rotate(v1, 13) ^ v0
    v3 = _rotate(v3, 16) ^ v2
    v0 = _rotate(v0, 32)
    v2 = (v2 + v1) & words.MASK_64
    v0 = (v0 + v3) & words.MASK_64
    v1 = _rotate(v1, 17) ^ v2
    v3 = _rotate(v3, 21) ^ v0
    return v0, v1, _rotate(v2, 32), v3


def _sip_absorb(v0: int, v1: int, v2: int, v3: int, word: int) -> tuple[int, int, int, int]:
    v3 ^= word
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return v0 ^ word, v1, v2, v3


def _sip_finish(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return _sip_round(v0, v1, v2, v3)


def _siphash(data: Buffer, position: int, size: int, first: int, second: int) -> tuple[int, int]:
    """Compute SipHash-2-4 with 128 bits of output, as two little-endian words. Source: Aumasson and Bernstein's
    reference.
    """
    v0, v1, v2, v3 = first ^ _SIP_0, second ^ _SIP_1 ^ 0xEE, first ^ _SIP_2, second ^ _SIP_3
    end = position + size - (size & 7)
    while position < end:
        v0, v1, v2, v3 = _sip_absorb(v0, v1, v2, v3, words.load_u64(data, position))
        position += 8
    tail = size & 0xFF
    tail <<= 56
    if size & 7:
        tail |= words.load_u64(data, position) & (words.MASK_64 >> (64 - 8 * (size & 7)))
    v0, v1, v2, v3 = _sip_absorb(v0, v1, v2, v3, tail)
    v0, v1, v2, v3 = _sip_finish(v0, v1, v2 ^ 0xEE, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v0, v1, v2, v3 = _sip_finish(v0, v1 ^ 0xDD, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


def _hash_by_siphash(data: Buffer, keys: Integers, count: int, first: int, second: int, digests: Integers) -> None:
    for index in range(count):
        key, row = index * _KEY_COLUMNS, index * _DIGEST_WORDS
        low, high = _siphash(data, keys[key], keys[key + 1], first, second)
        digests[row] = low
        digests[row + 1] = high
        digests[row + 2] = keys[key + 2]


# ---- MD5


def _md5_block(data: Buffer, at: int, a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    """Compute the MD5 state after the 64 bytes at ``at``."""
    first, second, third, fourth = a, b, c, d
    for step in range(64):
        if step < 16:
            mixed, number = (b & c) | (~b & d), step
        elif step < 32:
            mixed, number = (d & b) | (~d & c), (5 * step + 1) & 15
        elif step < 48:
            mixed, number = b ^ c ^ d, (3 * step + 5) & 15
        else:
            mixed, number = c ^ (b | (d ^ words.MASK_32)), (7 * step) & 15
        total = mixed + a + words.load_u32(_MD5_SINES, 4 * step) + words.load_u32(data, at + 4 * number)
        total &= words.MASK_32
        shift = _MD5_SHIFTS[(step >> 4) * 4 + (step & 3)]
        a, d, c = d, c, b
        b = (b + ((total << shift) | (total >> (32 - shift)))) & words.MASK_32
    mask = words.MASK_32
    return (first + a) & mask, (second + b) & mask, (third + c) & mask, (fourth + d) & mask


def _md5(data: Buffer, position: int, size: int, scratch: Bytes) -> tuple[int, int]:
    """Compute MD5 as two words, each the little-endian reading of eight digest bytes (RFC 1321)."""
    a, b, c, d = _MD5_A, _MD5_B, _MD5_C, _MD5_D
    rest = size & 63
    for block in range(size >> 6):
        a, b, c, d = _md5_block(data, position + 64 * block, a, b, c, d)
    words.copy_bytes(scratch, 0, data, position + size - rest, rest)
    scratch[rest] = 0x80
    end = 56 if rest < 56 else 120
    for at in range(rest + 1, end):
        scratch[at] = 0
    words.store_u64(scratch, end, 8 * size)
    a, b, c, d = _md5_block(scratch, 0, a, b, c, d)
    if end > 64:
        a, b, c, d = _md5_block(scratch, 64, a, b, c, d)
    return a | (b << 32), c | (d << 32)


def _hash_by_md5(data: Buffer, keys: Integers, count: int, scratch: Bytes, digests: Integers) -> None:
    for index in range(count):
        key, row = index * _KEY_COLUMNS, index * _DIGEST_WORDS
        low, high = _md5(data, keys[key], keys[key + 1], scratch)
        digests[row], digests[row + 1] = low, high
        digests[row + 2] = keys[key + 2]


# ---- the map


def _bucket(first: int, buckets: int) -> int:
    """Scale the digest's first word to ``buckets`` (below 2^32) without a division."""
    return ((first >> 32) * buckets) >> 32


def _value(cells: Bytes, bucket: int, entry: int) -> int:
    """Return the value of an entry: an ordinal + 1, or 0 if it is free."""
    at = bucket * BUCKET_BYTES
    high = cells[at + _HIGH_VALUES + entry]
    return words.load_u32(cells, at + _LOW_VALUES + 4 * entry) | (high << 32)


def _set_value(cells: Bytes, bucket: int, entry: int, value: int) -> None:
    at = bucket * BUCKET_BYTES
    words.store_u32(cells, at + _LOW_VALUES + 4 * entry, value)
    cells[at + _HIGH_VALUES + entry] = (value >> 32) & 0xFF


def _find(table: Integers, cells: Bytes, buckets: int, first: int, second: int) -> tuple[int, int, int]:
    """Find the entry of a digest, or the free entry for it: (bucket, entry in that, number of buckets probed)."""
    bucket = _bucket(first, buckets)
    probes = 1
    while True:
        for entry in range(ENTRIES_PER_BUCKET):
            if _value(cells, bucket, entry) == 0:
                return bucket, entry, probes
            cell = bucket * BUCKET_WORDS + 2 * entry
            if table[cell] == first and table[cell + 1] == second:
                return bucket, entry, probes
        bucket = bucket + 1 if bucket + 1 < buckets else 0
        probes += 1


def _supersede(ordinal: int, clean: Bytes, dirty: Bytes) -> None:
    """Set the bit of a record that is superseded by a later one."""
    if ordinal >= DIRTY_ORDINALS:
        ordinal -= DIRTY_ORDINALS
        dirty[ordinal >> 3] |= 1 << (ordinal & 7)
    else:
        clean[ordinal >> 3] |= 1 << (ordinal & 7)


def _put(
    digests: Integers,
    start: int,
    end: int,
    table: Integers,
    cells: Bytes,
    buckets: int,
    clean: Bytes,
    dirty: Bytes,
    limit: int,
    counters: Integers,
) -> int:
    """See :func:`put_block`."""
    size, all_probes = counters[SIZE_COUNTER], counters[PROBES]
    index = start
    while index < end:
        ahead = min(index + _PREFETCH_DISTANCE, end - 1)
        words.prefetch(cells, _bucket(digests[ahead * _DIGEST_WORDS], buckets) * BUCKET_BYTES)
        row = index * _DIGEST_WORDS
        ordinal = digests[row + 2]
        bucket, entry, probes = _find(table, cells, buckets, digests[row], digests[row + 1])
        all_probes += probes
        value = _value(cells, bucket, entry)
        if value == 0:
            if size >= limit:
                counters[LOOKUPS] += 1
                break
            cell = bucket * BUCKET_WORDS + 2 * entry
            table[cell] = digests[row]
            table[cell + 1] = digests[row + 1]
            size += 1
        else:
            _supersede(min(value - 1, ordinal), clean, dirty)
        _set_value(cells, bucket, entry, max(value, ordinal + 1))
        index += 1
    counters[SIZE_COUNTER], counters[PROBES] = size, all_probes
    counters[LOOKUPS] += index - start
    return index


def _look_up(
    digests: Integers,
    count: int,
    table: Integers,
    cells: Bytes,
    buckets: int,
    bits: Bytes,
    bias: int,
    counters: Integers,
) -> None:
    """See :func:`look_up_block`."""
    all_probes = counters[PROBES]
    for index in range(count):
        ahead = min(index + _PREFETCH_DISTANCE, count - 1)
        words.prefetch(cells, _bucket(digests[ahead * _DIGEST_WORDS], buckets) * BUCKET_BYTES)
        row = index * _DIGEST_WORDS
        bucket, entry, probes = _find(table, cells, buckets, digests[row], digests[row + 1])
        all_probes += probes
        if _value(cells, bucket, entry):
            bit = digests[row + 2]
            bit -= bias
            bits[bit >> 3] |= 1 << (bit & 7)
    counters[PROBES] = all_probes
    counters[LOOKUPS] += count


def _entries(table: Integers, cells: Bytes, start: int, end: int, digests: Integers) -> int:
    """See :func:`copy_entries`."""
    found = 0
    for bucket in range(start, end):
        for entry in range(ENTRIES_PER_BUCKET):
            value = _value(cells, bucket, entry)
            if value:
                cell, row = bucket * BUCKET_WORDS + 2 * entry, found * _DIGEST_WORDS
                digests[row], digests[row + 1], digests[row + 2] = table[cell], table[cell + 1], value - 1
                found += 1
    return found


def _partition(digests: Integers, count: int, partitioned: Integers, starts: Integers, partitions: int) -> None:
    """See :func:`partition_digests`."""
    shift = 64
    while 1 << (64 - shift) < partitions:
        shift -= 1
    for number in range(partitions + 1):
        starts[number] = 0
    for index in range(count):
        number = _top_bits(digests[index * _DIGEST_WORDS + 1], shift)
        starts[number + 1] += 1
    for number in range(partitions):
        starts[number + 1] += starts[number]
    for index in range(count):
        row = index * _DIGEST_WORDS
        number = _top_bits(digests[row + 1], shift)
        cell = starts[number] * _DIGEST_WORDS
        partitioned[cell], partitioned[cell + 1] = digests[row], digests[row + 1]
        partitioned[cell + 2] = digests[row + 2]
        starts[number] += 1
    for number in range(partitions, 0, -1):
        starts[number] = starts[number - 1]
    starts[0] = 0


def _top_bits(word: int, shift: int) -> int:
    """Return ``word >> shift``; in C a shift by 64 would be undefined."""
    return word >> shift if shift < 64 else 0
