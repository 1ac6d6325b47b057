"""RocketMQ's hashes: Java's ``String.hashCode`` over the bytes, each byte taken as a character.

    h("")        = 0
    h(s + byte)  = 31 * h(s) + byte        (32 bits, signed)
    key hash     = |h("topic#key")|, 0 where that overflows        4 bytes, never negative
    tag hash     = h(tag)                                          8 bytes, sign kept

The key is the record's key; the tag is the value of its tag header (``tidelog.log.find.engine.reference``). For ASCII
these are the numbers that RocketMQ stores. They collide easily ("Aa" and "BB"): after finding a record by a hash,
compare its key or its tag.
"""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview

NO_KEY = -1
"""Value in place of a key hash for a record without a key, which is not indexed."""


def java_hash(data: Buffer, seed: int = 0) -> int:
    """Compute ``String.hashCode`` of ``data``, after bytes whose hash is ``seed``; the result has 32 signed bits."""
    value = seed & 0xFFFFFFFF
    for byte in data:
        value = (31 * value + byte) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


def key_seed(topic: str) -> int:
    """Return the hash of ``topic#``, with which every key hash of a topic begins."""
    return java_hash(f"{topic}#".encode())


def key_hash(seed: int, key: Buffer) -> int:
    """Compute the key hash of ``key``, 0 to 2^31 - 1; ``seed`` is the topic's :func:`key_seed`."""
    value = abs(java_hash(key, seed))
    return value if value <= 0x7FFFFFFF else 0


def tag_hash(tag: Buffer) -> int:
    """Compute the hash of a tag: signed, in the range of 32 bits, stored in 64."""
    return java_hash(tag)
