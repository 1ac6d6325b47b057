"""SkimpyOffsetMap: Kafka's layout, probing and statistics; digests."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cleaner.engine.offset_map import (
    HASH_ALGORITHMS,
    MD5_ALGORITHM,
    OffsetMapFullError,
    SkimpyOffsetMap,
    digest_of,
    siphash128,
)

KEYS = st.binary(max_size=20)


def test_siphash_has_the_published_vectors() -> None:
    secret = bytes(range(16))

    assert siphash128(b"", secret).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash128(b"\0", secret).hex() == "da87c1d86b99af44347659119b22fc45"
    assert siphash128(bytes(range(15)), secret).hex() == "5493e99933b0a8117e08ec0f97cfc3d9"


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
@given(puts=st.lists(st.tuples(KEYS, st.integers(0, 2**62)), max_size=60))
def test_get_answers_the_largest_offset_put(algorithm: str, puts: list[tuple[bytes, int]]) -> None:
    offset_map, model = SkimpyOffsetMap(61 * 24, algorithm), dict[bytes, int]()
    for key, offset in puts:
        offset_map.put(key, offset)
        model[key] = max(model.get(key, -1), offset)

    assert {key: offset_map.get(key) for key in model} == model
    assert offset_map.size == len(model)
    assert offset_map.get(b"a key that is longer than any") == -1


def test_md5_entries_are_where_kafka_puts_them() -> None:
    slots = 7
    offset_map = SkimpyOffsetMap(slots * 24 + 5, MD5_ALGORITHM)
    expected = bytearray(slots * 24 + 5)
    for number in range(slots):
        key = b"key %d" % number
        offset_map.put(key, number)
        digest = hashlib.md5(key, usedforsecurity=False).digest()
        for attempt in range(100):
            start = min(attempt, 12)
            probe = struct.unpack_from(">i", digest, start)[0] + max(0, attempt - 12)
            position = (abs(probe) % slots) * 24
            if not any(expected[position : position + 24]):
                expected[position : position + 24] = digest + struct.pack(">q", number)
                break

    assert offset_map.slots == slots
    assert offset_map.buffer.tobytes() == bytes(expected)
    assert offset_map.utilization == 1.0


def test_probe_of_the_smallest_integer_is_slot_zero() -> None:
    offset_map = SkimpyOffsetMap(5 * 24, digest=lambda _: b"\x80\0\0\0" + b"\x01" * 12)

    offset_map.put(b"", 9)

    assert offset_map.buffer[:16].tobytes() == b"\x80\0\0\0" + b"\x01" * 12


def test_put_into_a_full_map_raises_even_for_a_known_key() -> None:
    offset_map = SkimpyOffsetMap(24)
    offset_map.put(b"a", 1)

    with pytest.raises(OffsetMapFullError):
        offset_map.put(b"a", 2)


def test_collision_rate_counts_probes_beyond_the_first() -> None:
    same = b"\0\0\0\1"
    digests = {b"a": same + b"a" * 12, b"b": same + b"b" * 12, b"": b"e" * 16}
    offset_map = SkimpyOffsetMap(100 * 24, digest=digests.__getitem__)

    assert offset_map.collision_rate == 0.0
    offset_map.put(b"a", 1)
    offset_map.put(b"b", 2)  # its first slot is taken

    assert offset_map.collision_rate == 0.5


def test_get_gives_up_when_every_slot_was_tried() -> None:
    offset_map = SkimpyOffsetMap(3 * 24)
    for number in range(3):
        offset_map.put(b"%d" % number, number)

    assert offset_map.get(b"absent") == -1


def test_clear_forgets_keys_and_statistics() -> None:
    offset_map = SkimpyOffsetMap(10 * 24)
    offset_map.put(b"a", 5)
    offset_map.clear()

    assert (offset_map.size, offset_map.get(b"a")) == (0, -1)


def test_entries_lists_digests_with_offsets() -> None:
    offset_map = SkimpyOffsetMap(10 * 24, MD5_ALGORITHM)
    offset_map.put(b"a", 5)

    assert offset_map.entries() == [(hashlib.md5(b"a", usedforsecurity=False).digest(), 5)]


def test_memory_below_one_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="too few for an entry"):
        SkimpyOffsetMap(23)


def test_unknown_algorithm_is_named() -> None:
    with pytest.raises(ValueError, match=r"'crc'.*siphash128, md5"):
        digest_of("crc")
