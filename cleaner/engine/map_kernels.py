"""Key hashing and the map of keys, compiled.

The map holds three entries per bucket of 64 bytes, one cache line, so that a look-up costs one cache miss::

    word 0..5   three digests of 16 bytes
    48..59      low 32 bits of three values        60..62   high 8 bits of them        63  unused

A value is a record's ordinal + 1; 0 marks a free entry. 21.3 bytes per key against 24 in Kafka's map. The bucket is
the digest's first word scaled to the number of buckets (a probe looks at a whole bucket); a full bucket overflows
into the next one. Nothing is ever removed, so a search ends at the first free entry.

``put`` keeps the larger ordinal of a key and sets the "superseded" bit of the smaller: that bit is all the copy pass
reads, it neither hashes nor probes. A block of keys is hashed before it is probed, so that the cache misses of
independent probes overlap.

Digests: SipHash-2-4 with 128 bits under a random key (an adversary cannot make two keys collide), or MD5 as Kafka.
"""

from __future__ import annotations

import numpy as np

from tidelog.cleaner.engine.batch_table import (
    BUCKET_WORDS,
    DIRTY_ORDINALS,
    ENTRIES_PER_BUCKET,
    LOOKUPS,
    MD5,
    PROBES,
)
from tidelog.cleaner.engine.batch_table import SIZE_COUNTER as SIZE
from tidelog.log.records.intrinsics import ByteArray, Integer, IntegerArray, WordArray, kernel, load_u64, prefetch

#: How many keys ahead of the probe the bucket is asked for; 1 M keys: 112 ns per put without, 35 ns with.
PREFETCH_DISTANCE = 16

_MD5_SHIFTS = np.array([7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21], np.uint32)
_MD5_SINES = np.array([int(abs(np.sin(step + 1.0)) * 2**32) for step in range(64)], np.uint32)
_INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


@kernel
def _rotate(word: Integer, bits: Integer) -> Integer:
    shift = np.uint64(bits)
    return (np.uint64(word) << shift) | (np.uint64(word) >> (np.uint64(64) - shift))


@kernel
def _sip_round(v0: Integer, v1: Integer, v2: Integer, v3: Integer) -> tuple[Integer, Integer, Integer, Integer]:
    v0 += v1
    v2 += v3
    v1 = _rotate(v1, 13) ^ v0
    v3 = _rotate(v3, 16) ^ v2
    v0 = _rotate(v0, 32)
    v2 += v1
    v0 += v3
    v1 = _rotate(v1, 17) ^ v2
    v3 = _rotate(v3, 21) ^ v0
    return v0, v1, _rotate(v2, 32), v3


@kernel
def _sip_absorb(
    v0: Integer, v1: Integer, v2: Integer, v3: Integer, word: Integer
) -> tuple[Integer, Integer, Integer, Integer]:
    v3 ^= word
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return v0 ^ word, v1, v2, v3


@kernel
def _sip_finish(v0: Integer, v1: Integer, v2: Integer, v3: Integer) -> tuple[Integer, Integer, Integer, Integer]:
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return v0, v1, v2, v3


@kernel
def siphash128(buffer: ByteArray, position: Integer, size: Integer, secret: WordArray) -> tuple[Integer, Integer]:
    """SipHash-2-4 with 128 bits of output, as two little-endian words. Source: Aumasson and Bernstein's reference."""
    v0, v1 = secret[0] ^ np.uint64(_INITIAL[0]), secret[1] ^ np.uint64(_INITIAL[1]) ^ np.uint64(0xEE)
    v2, v3 = secret[0] ^ np.uint64(_INITIAL[2]), secret[1] ^ np.uint64(_INITIAL[3])
    end = position + size - (size & 7)
    while position < end:
        v0, v1, v2, v3 = _sip_absorb(v0, v1, v2, v3, load_u64(buffer, position))
        position += 8
    tail = np.uint64(size) << np.uint64(56)
    if size & 7:
        tail |= load_u64(buffer, position) & ((np.uint64(1) << np.uint64(8 * (size & 7))) - np.uint64(1))
    v0, v1, v2, v3 = _sip_absorb(v0, v1, v2, v3, tail)
    v0, v1, v2, v3 = _sip_finish(v0, v1, v2 ^ np.uint64(0xEE), v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v0, v1, v2, v3 = _sip_finish(v0, v1 ^ np.uint64(0xDD), v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@kernel
def _md5_word(buffer: ByteArray, position: Integer, size: Integer, number: Integer) -> Integer:
    """32-bit word ``number`` of the padded message."""
    blocks = (size + 8) // 64 + 1
    if number >= blocks * 16 - 2:
        return np.uint32((np.uint64(size) * np.uint64(8)) >> np.uint64(32 * (number & 1)))
    word = np.uint32(0)
    for byte in range(4):
        at = number * 4 + byte
        value = np.uint32(buffer[position + at]) if at < size else np.uint32(0x80 if at == size else 0)
        word |= value << np.uint32(8 * byte)
    return word


@kernel
def _md5_mix(step: Integer, b: Integer, c: Integer, d: Integer) -> tuple[Integer, Integer]:
    if step < 16:
        return (b & c) | (~b & d), step
    if step < 32:
        return (d & b) | (~d & c), (5 * step + 1) & 15
    if step < 48:
        return b ^ c ^ d, (3 * step + 5) & 15
    return c ^ (b | ~d), (7 * step) & 15


@kernel
def md5(buffer: ByteArray, position: Integer, size: Integer) -> tuple[Integer, Integer]:
    """MD5 as two words, each the little-endian reading of eight digest bytes (RFC 1321)."""
    a0, b0, c0, d0 = np.uint32(0x67452301), np.uint32(0xEFCDAB89), np.uint32(0x98BADCFE), np.uint32(0x10325476)
    for block in range((size + 8) // 64 + 1):
        a, b, c, d = a0, b0, c0, d0
        for step in range(64):
            mixed, number = _md5_mix(step, b, c, d)
            total = np.uint32(mixed + a + _MD5_SINES[step] + _md5_word(buffer, position, size, block * 16 + number))
            shift = _MD5_SHIFTS[(step >> 4) * 4 + (step & 3)]
            turned = (total << shift) | (total >> np.uint32(np.uint32(32) - shift))
            a, d, c, b = d, c, b, np.uint32(b + turned)
        a0, b0, c0, d0 = np.uint32(a0 + a), np.uint32(b0 + b), np.uint32(c0 + c), np.uint32(d0 + d)
    high = np.uint64(32)
    return (np.uint64(b0) << high) | np.uint64(a0), (np.uint64(d0) << high) | np.uint64(c0)


@kernel
def hash_keys(
    buffer: ByteArray, keys: IntegerArray, count: Integer, hashing: tuple[Integer, WordArray], digests: WordArray
) -> None:
    """Digests of the first ``count`` keys of ``parse_records`` into ``digests[:, 0:2]``, their ordinals into ``[:,
    2]``.
    """
    algorithm, secret = hashing
    for index in range(count):
        if algorithm == MD5:
            first, second = md5(buffer, keys[index, 0], keys[index, 1])
        else:
            first, second = siphash128(buffer, keys[index, 0], keys[index, 1], secret)
        digests[index, 0], digests[index, 1], digests[index, 2] = first, second, np.uint64(keys[index, 2])


@kernel
def _bucket(first: Integer, buckets: Integer) -> Integer:
    """The digest's first word, scaled to ``buckets`` (below 2^32) without a division."""
    return np.int64(((np.uint64(first) >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32))


@kernel
def _supersede(ordinal: Integer, clean: ByteArray, dirty: ByteArray) -> None:
    if ordinal >= DIRTY_ORDINALS:
        bit = ordinal - DIRTY_ORDINALS
        dirty[bit >> 3] |= np.uint8(1 << (bit & 7))
    else:
        clean[ordinal >> 3] |= np.uint8(1 << (ordinal & 7))


@kernel
def _value(low: IntegerArray, high: ByteArray, bucket: Integer, entry: Integer) -> Integer:
    return (np.int64(high[bucket * 64 + 60 + entry]) << 32) | np.int64(low[bucket * 16 + 12 + entry])


@kernel
def _set_value(low: IntegerArray, high: ByteArray, bucket: Integer, entry: Integer, value: Integer) -> None:
    low[bucket * 16 + 12 + entry] = np.uint32(value & 0xFFFFFFFF)
    high[bucket * 64 + 60 + entry] = np.uint8(value >> 32)


@kernel
def put_block(
    digests: WordArray,
    span: tuple[Integer, Integer],
    table: tuple[WordArray, IntegerArray, ByteArray],
    bits: tuple[ByteArray, ByteArray],
    limit: Integer,
    counters: IntegerArray,
) -> Integer:
    """Put ``digests[span[0]:span[1]]``; of two ordinals of a key the larger stays, the smaller's bit is set.

    ``table``: the map's bytes as 64-, 32- and 8-bit words; ``bits``: superseded bits of the clean and dirty section.
    Stops before the map would hold more than ``limit`` keys; returns the first digest not put. One piece: with the
    probe in a function of its own a whole round takes 10 % more processor time.
    """
    words, low, high = table
    buckets = len(words) // BUCKET_WORDS
    size, probes = counters[SIZE], counters[PROBES]
    for index in range(span[0], span[1]):
        ahead = min(index + PREFETCH_DISTANCE, span[1] - 1)
        prefetch(words, _bucket(digests[ahead, 0], buckets) * BUCKET_WORDS)
        first, second, ordinal = digests[index, 0], digests[index, 1], np.int64(digests[index, 2])
        bucket = _bucket(first, buckets)
        done = False
        while not done:
            probes += 1
            for entry in range(ENTRIES_PER_BUCKET):
                value = _value(low, high, bucket, entry)
                place = bucket * BUCKET_WORDS + 2 * entry
                if value == 0:
                    if size >= limit:
                        counters[SIZE], counters[PROBES] = size, probes
                        counters[LOOKUPS] += index - span[0] + 1
                        return index
                    words[place], words[place + 1] = first, second
                    _set_value(low, high, bucket, entry, ordinal + 1)
                    size += 1
                    done = True
                    break
                if words[place] == first and words[place + 1] == second:
                    _supersede(min(value - 1, ordinal), bits[0], bits[1])
                    _set_value(low, high, bucket, entry, max(value, ordinal + 1))
                    done = True
                    break
            bucket = bucket + 1 if bucket + 1 < buckets else 0
    counters[SIZE], counters[PROBES] = size, probes
    counters[LOOKUPS] += span[1] - span[0]
    return span[1]


@kernel
def _find(
    first: Integer, second: Integer, table: tuple[WordArray, IntegerArray, ByteArray], counters: IntegerArray
) -> Integer:
    """The ordinal of a digest, -1 when absent."""
    words, low, high = table
    buckets = len(words) // BUCKET_WORDS
    bucket = _bucket(first, buckets)
    while True:
        counters[PROBES] += 1
        for entry in range(ENTRIES_PER_BUCKET):
            value = _value(low, high, bucket, entry)
            if value == 0:
                return -1
            place = bucket * BUCKET_WORDS + 2 * entry
            if words[place] == first and words[place + 1] == second:
                return value - 1
        bucket = bucket + 1 if bucket + 1 < buckets else 0


@kernel
def look_up_block(
    digests: WordArray,
    count: Integer,
    table: tuple[WordArray, IntegerArray, ByteArray],
    bits: ByteArray,
    bias: Integer,
    counters: IntegerArray,
) -> None:
    """Set bit (ordinal - ``bias``) of every record of the clean section whose key the map holds."""
    counters[LOOKUPS] += count
    buckets = len(table[0]) // BUCKET_WORDS
    for index in range(count):
        ahead = min(index + PREFETCH_DISTANCE, count - 1)
        prefetch(table[0], _bucket(digests[ahead, 0], buckets) * BUCKET_WORDS)
        if _find(digests[index, 0], digests[index, 1], table, counters) >= 0:
            bit = np.int64(digests[index, 2]) - bias
            bits[bit >> 3] |= np.uint8(1 << (bit & 7))


@kernel
def entries_of(
    table: tuple[WordArray, IntegerArray, ByteArray], span: tuple[Integer, Integer], digests: WordArray
) -> Integer:
    """Copy the entries of buckets ``span`` into ``digests``; returns how many."""
    words, low, high = table
    found = 0
    for bucket in range(span[0], span[1]):
        for entry in range(ENTRIES_PER_BUCKET):
            value = _value(low, high, bucket, entry)
            if value:
                place = bucket * BUCKET_WORDS + 2 * entry
                digests[found, 0], digests[found, 1] = words[place], words[place + 1]
                digests[found, 2] = np.uint64(value - 1)
                found += 1
    return found


@kernel
def partition_digests(digests: WordArray, count: Integer, partitioned: WordArray, starts: IntegerArray) -> None:
    """Sort ``digests[:count]`` by the top bits of their second word (counting sort).

    The map's bucket comes from the first word, so each partition still spreads over the whole map. ``starts`` has one
    slot more than there are partitions, a power of two; slot p is where partition p begins.
    """
    bits = 0
    while 1 << bits < len(starts) - 1:
        bits += 1
    shift = np.uint64(64 - bits)
    starts[:] = 0
    for index in range(count):
        starts[np.int64(digests[index, 1] >> shift) + 1] += 1
    for partition in range(1, len(starts)):
        starts[partition] += starts[partition - 1]
    for index in range(count):
        number: Integer = np.int64(digests[index, 1] >> shift)
        place = starts[number]
        partitioned[place, 0], partitioned[place, 1] = digests[index, 0], digests[index, 1]
        partitioned[place, 2] = digests[index, 2]
        starts[number] += 1
    for partition in range(len(starts) - 1, 0, -1):
        starts[partition] = starts[partition - 1]
    starts[0] = 0
