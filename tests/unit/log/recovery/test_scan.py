"""The scan of recovery, compiled and in plain Python: equal tables and results for valid, damaged and foreign
chunks."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.extensions import uncompiled
from tests.support.records import NOW_MS, batch_of
from tidelog.log.recovery import scan
from tidelog.protocol.record.crc import crc32c

PLAIN = uncompiled(scan)
CARRIED = (
    "next_offset", "last_entry_position", "largest_timestamp", "largest_offset", "last_entry_timestamp",
    "latest_epoch", "offset_room", "time_room", "consumed", "is_stopped",
)  # fmt: skip
NUMBERS = [(">q", 0), (">i", 8), (">i", 12), (">i", 23), (">q", 35), (">q", 43), (">i", 57)]
"""Header: base offset, length, leader epoch, last offset delta, largest timestamp, producer id and record count."""
ATTRIBUTES = (0, 0, 0x10, 0x10, 0x30)
"""None, transactional, the marker of a transaction."""
BATCHES = [bytes(batch_of(count, value_bytes=size)) for count, size in ((1, 0), (1, 60), (3, 5))]
LAST_OFFSET = 2**31 - 1
"""The last of a segment, counted from its base offset."""


def seal(data: bytearray) -> bytearray:
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    return data


def good_chunk(chance: random.Random, first: int) -> list[bytearray]:
    """Build consecutive batches of several producers, epochs and transactions."""
    parts, base, epoch = [], first, 0
    for _ in range(chance.randrange(16)):
        data = bytearray(chance.choice(BATCHES))
        epoch += chance.random() < 0.1
        numbers = (base, epoch, chance.choice(ATTRIBUTES), NOW_MS + chance.randrange(-50, 50), chance.randrange(-1, 3))
        for (layout, at), number in zip(
            ((">q", 0), (">i", 12), (">h", 21), (">q", 35), (">q", 43)), numbers, strict=True
        ):
            struct.pack_into(layout, data, at, number)
        parts.append(seal(data))
        base += struct.unpack_from(">i", data, 23)[0] + chance.choice([1, 1, 1, 5])
    return parts


def damage(chance: random.Random, data: bytearray) -> None:
    """Change a header field or any byte; for half of the chunks the checksum is made correct again."""
    if chance.random() < 0.5:
        layout, at = chance.choice(NUMBERS)
        bound = 2 ** (8 * struct.calcsize(layout) - 1)
        struct.pack_into(
            layout, data, at, chance.choice([-bound, -1, 0, 1, bound - 1, chance.randrange(-bound, bound)])
        )
    else:
        data[chance.randrange(len(data))] = chance.randrange(256)
    if chance.random() < 0.5:
        seal(data)


def walk(module: Any, chunk: bytes, start: int, base: int, interval: int, room: int) -> object:
    """Scan a chunk; return the answer of the scan, the state that it carries on, and all its tables."""
    found = module.SegmentScan(base, interval)
    found.offset_room, found.time_room = room, room
    is_full = found.scan(chunk, start, len(chunk), 7)
    tables = found.offset_entries(), found.time_entries(), found.epochs(), found.needed_rows()
    return is_full, [getattr(found, name) for name in CARRIED], tables


def assert_walked_alike(chunk: bytes, base: int, interval: int, room: int, start: int = 0) -> None:
    assert walk(scan, chunk, start, base, interval, room) == walk(PLAIN, chunk, start, base, interval, room)


INTERVALS, ROOMS = st.sampled_from([0, 300]), st.sampled_from([1, 5, 100])


@pytest.mark.parametrize("below_the_end", [None, 20])
@given(chance=st.randoms(use_true_random=False), interval=INTERVALS, room=ROOMS)
def test_batches_are_walked_alike(below_the_end: int | None, chance: random.Random, interval: int, room: int) -> None:
    first = 100 if below_the_end is None else 100 + LAST_OFFSET - below_the_end
    parts = good_chunk(chance, first)
    if parts and chance.random() < 0.5:
        damage(chance, chance.choice(parts))
    chunk = b"".join(parts)
    assert_walked_alike(chunk, 100, interval, room)
    assert_walked_alike(chunk[: chance.randint(0, len(chunk))], 100, interval, room)


@given(chunk=st.binary(max_size=200), start=st.integers(0, 200))
def test_any_bytes_are_walked_alike(chunk: bytes, start: int) -> None:
    assert_walked_alike(chunk, 0, 0, 3, min(start, len(chunk)))
