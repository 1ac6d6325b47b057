"""Map from keys to last offsets in plain Python, with the layout and probing of Kafka's map, over one numpy buffer.

    entry = digest (16 bytes with MD5) | offset 8 (big-endian)          24 bytes, slots = memory // 24

Only the digests of keys are stored, so every key takes the same memory. The slot of probe k is the absolute value,
modulo the slots, of a signed big-endian number: 4 bytes of the digest, from byte min(k, digest size - 4) on. Each probe
after the last of these positions adds 1 to that number. An entry of zeros is free. With ``md5``, and offsets put in
ascending order, the buffer is byte for byte that of Apache Kafka's map. The default digest is SipHash-2-4 with 128 bits
under a random key of this process, so that a client cannot make two keys that collide: in a compacted log a collision
deletes a record that is not obsolete.

This is the reference, into which a round puts ordinals as offsets; ``tidelog.cleaner.engine.digest_map`` is the
compiled map, with another layout. One thread at a time may use a map.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

Digest = Callable[[bytes], bytes]
MD5_ALGORITHM = "md5"
SIPHASH_ALGORITHM = "siphash128"
HASH_ALGORITHMS = (SIPHASH_ALGORITHM, MD5_ALGORITHM)
DIGEST_BYTES = 16
_OFFSET_BYTES = 8
_WORD = 0xFFFFFFFFFFFFFFFF
_NO_OFFSET = -1

#: The secret key of this process's digests; it is never stored, so that files cannot reveal it.
PROCESS_SECRET = os.urandom(16)


class OffsetMapFullError(Exception):
    """A key was put into a map without a free slot; as in Kafka, this is an error even if the map has the key.
    ``ReferenceMap`` raises it, too, for a new key above its limit.
    """


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _WORD


def _sip_rounds(state: tuple[int, int, int, int], rounds: int) -> tuple[int, int, int, int]:
    v0, v1, v2, v3 = state
    for _ in range(rounds):
        v0, v2 = (v0 + v1) & _WORD, (v2 + v3) & _WORD
        v1, v3 = _rotate(v1, 13) ^ v0, _rotate(v3, 16) ^ v2
        v0 = _rotate(v0, 32)
        v2, v0 = (v2 + v1) & _WORD, (v0 + v3) & _WORD
        v1, v3 = _rotate(v1, 17) ^ v2, _rotate(v3, 21) ^ v0
        v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


def siphash128(key: bytes, secret: bytes) -> bytes:
    """Compute SipHash-2-4 with 16 bytes of output under a 16-byte ``secret``. Source: Aumasson and Bernstein, 2012."""
    k0, k1 = int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")
    state = (
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    )
    whole = len(key) & ~7
    words = [int.from_bytes(key[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append((len(key) & 0xFF) << 56 | int.from_bytes(key[whole:], "little"))
    for word in words:
        v0, v1, v2, v3 = _sip_rounds((state[0], state[1], state[2], state[3] ^ word), 2)
        state = (v0 ^ word, v1, v2, v3)
    v0, v1, v2, v3 = state = _sip_rounds((state[0], state[1], state[2] ^ 0xEE, state[3]), 4)
    first = v0 ^ v1 ^ v2 ^ v3
    v0, v1, v2, v3 = _sip_rounds((state[0], state[1] ^ 0xDD, state[2], state[3]), 4)
    return first.to_bytes(8, "little") + (v0 ^ v1 ^ v2 ^ v3).to_bytes(8, "little")


def digest_of(algorithm: str, secret: bytes = PROCESS_SECRET) -> Digest:
    """Return the digest function of a ``log.cleaner.hash.algorithm``. Raises ValueError for an unknown name."""
    if algorithm.lower() == MD5_ALGORITHM:
        return lambda key: hashlib.md5(key, usedforsecurity=False).digest()
    if algorithm.lower() == SIPHASH_ALGORITHM:
        return lambda key: siphash128(key, secret)
    raise ValueError(f"unknown hash algorithm {algorithm!r}, expected one of {', '.join(HASH_ALGORITHMS)}")


class SkimpyOffsetMap:
    """Map with open addressing in ``memory`` bytes; see the module. ``digest`` replaces the algorithm's, if given."""

    def __init__(self, memory: int, algorithm: str = SIPHASH_ALGORITHM, digest: Digest | None = None) -> None:
        self._digest = digest_of(algorithm) if digest is None else digest
        self._digest_size = len(self._digest(b""))
        self.bytes_per_entry = self._digest_size + _OFFSET_BYTES
        self._slots = memory // self.bytes_per_entry
        if self._slots < 1:
            raise ValueError(f"{memory} bytes are too few for an entry of {self.bytes_per_entry} bytes")
        self.buffer: np.ndarray[Any, np.dtype[np.uint8]] = np.zeros(memory, np.uint8)
        self._view = self.buffer.data
        self._free = bytes(self.bytes_per_entry)
        self._entries = self._lookups = self._probes = 0

    @property
    def slots(self) -> int:
        """Number of keys that fit."""
        return self._slots

    @property
    def size(self) -> int:
        """Number of keys in the map."""
        return self._entries

    @property
    def utilization(self) -> float:
        """Share of the slots in use."""
        return self._entries / self._slots

    @property
    def collision_rate(self) -> float:
        """Probes after the first one, on average for each look-up."""
        return (self._probes - self._lookups) / self._lookups if self._lookups else 0.0

    def clear(self) -> None:
        """Forget keys and statistics."""
        self.buffer[:] = 0
        self._entries = self._lookups = self._probes = 0

    def put(self, key: bytes, offset: int) -> None:
        """Set the last offset of ``key``, unless it has a higher one already.

        Raises OffsetMapFullError when no slot is free.
        """
        self.put_digest(self._digest(key), offset)

    def put_digest(self, digest: bytes, offset: int) -> int:
        """Set the last offset of the key with this digest, as ``put`` does; return the one before, -1 for a new key.

        Raises OffsetMapFullError.
        """
        if self._entries >= self._slots:
            raise OffsetMapFullError(f"all {self._slots} slots of the offset map are in use")
        self._lookups += 1
        position, entry = self._probe(digest, self._slots + self._digest_size)
        before = _NO_OFFSET if entry == self._free else self._offset(entry)
        if entry == self._free:
            self._entries += 1
        latest = max(before, offset)
        self._view[position : position + self.bytes_per_entry] = digest + latest.to_bytes(8, "big", signed=True)
        return before

    def get(self, key: bytes) -> int:
        """Return the last offset of ``key``, -1 when it is not in the map."""
        return self.get_digest(self._digest(key))

    def get_digest(self, digest: bytes) -> int:
        """Return the last offset of the key with this digest, -1 when it is not in the map."""
        self._lookups += 1
        _, entry = self._probe(digest, self._slots + self._digest_size - 4)
        return self._offset(entry) if entry[: self._digest_size] == digest and entry != self._free else _NO_OFFSET

    def entries(self) -> list[tuple[bytes, int]]:
        """Return all (digest, offset), in slot order."""
        found = []
        for slot in range(self._slots):
            entry = bytes(self._view[slot * self.bytes_per_entry : (slot + 1) * self.bytes_per_entry])
            if entry != self._free:
                found.append((entry[: self._digest_size], self._offset(entry)))
        return found

    def _offset(self, entry: bytes) -> int:
        return int.from_bytes(entry[self._digest_size :], "big", signed=True)

    def _probe(self, digest: bytes, attempts: int) -> tuple[int, bytes]:
        """Find the entry at which a search for ``digest`` ends: its own, a free one, or the last one after ``attempts``
        probes. Return its position and bytes.
        """
        position, entry = 0, self._free
        for attempt in range(attempts):
            position = self._position(digest, attempt)
            entry = bytes(self._view[position : position + self.bytes_per_entry])
            if entry == self._free or entry[: self._digest_size] == digest:
                break
        return position, entry

    def _position(self, digest: bytes, attempt: int) -> int:
        last_window = self._digest_size - 4
        start = min(attempt, last_window)
        window = int.from_bytes(digest[start : start + 4], "big", signed=True)
        probe = (window + max(0, attempt - last_window) + 2**31) % 2**32 - 2**31  # 32-bit arithmetic wraps
        self._probes += 1
        # -2**31 has no absolute value in 32 bits: Kafka takes 0.
        return (0 if probe == -(2**31) else abs(probe)) % self._slots * self.bytes_per_entry
