"""Kafka's default partitioner for keys: murmur2 of the key's bytes, modulo the number of partitions.

Source: ``org.apache.kafka.clients.producer.internals.BuiltInPartitioner`` and ``common.utils.Utils.murmur2``.
"""

from __future__ import annotations

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """Compute the partition that Kafka's own producers choose for a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Compute the 32-bit MurmurHash2 of ``data``, unsigned."""
    value = (_SEED ^ len(data)) & _MASK
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _FACTOR & _MASK
        word = (word ^ (word >> 24)) * _FACTOR & _MASK
        value = (value * _FACTOR & _MASK) ^ word
    rest = data[whole:]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * _FACTOR & _MASK
    value = (value ^ (value >> 13)) * _FACTOR & _MASK
    return value ^ (value >> 15)
