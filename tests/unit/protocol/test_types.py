"""Varints, UUIDs and tagged fields."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.no_file import NoFile
from tidelog.protocol import types
from tidelog.protocol.transferable import TransferableRecords
from tidelog.protocol.types import MalformedError


@given(st.integers(0, (1 << 32) - 1))
def test_unsigned_varint_round_trip(value: int) -> None:
    encoded = types.unsigned_varint(value)
    assert len(encoded) == max(1, (value.bit_length() + 6) // 7)
    assert types.read_unsigned_varint(b"x" + encoded + b"y", 1) == (value, 1 + len(encoded))


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_varint_round_trip(value: int) -> None:
    encoded = types.unsigned_varint((value << 1) ^ (value >> 31))
    assert types.read_varint(encoded, 0) == (value, len(encoded))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varlong_round_trip(value: int) -> None:
    encoded = types.unsigned_varint((value << 1) ^ (value >> 63))
    assert types.read_varlong(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (-65, "8101"), (2**31 - 1, "feffffff0f")],
)
def test_varints_are_zigzag(value: int, encoded: str) -> None:
    assert types.read_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@pytest.mark.parametrize("data", ["808080808000", "ffffffffff", "ffffffff7f", "8080808010"])
def test_varint_of_more_than_32_bits_is_malformed(data: str) -> None:
    with pytest.raises(MalformedError):
        types.read_unsigned_varint(bytes.fromhex(data), 0)


@pytest.mark.parametrize("data", ["80" * 10 + "00", "ff" * 9 + "7f"])
def test_varlong_of_more_than_64_bits_is_malformed(data: str) -> None:
    with pytest.raises(MalformedError):
        types.read_varlong(bytes.fromhex(data), 0)


def test_short_varint_ends_with_index_error() -> None:
    with pytest.raises(IndexError):
        types.read_varint(b"\x80", 0)


def test_records_size_counts_memory_and_promises() -> None:
    promise = TransferableRecords(NoFile(), 0, 7)
    assert types.records_size(b"abc") == 3
    assert types.records_size(promise) == 7
    assert types.records_size([b"abc", promise]) == 10


def test_uuid_text_is_kafkas() -> None:
    assert types.uuid_to_str(types.ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert types.uuid_to_str(bytes.fromhex("fbefbe" * 5 + "fb")) == "--" * 10 + "-w"
    assert types.uuid_to_str(bytes.fromhex("ff" * 16)) == "_" * 21 + "w"


@given(st.binary(min_size=16, max_size=16))
def test_uuid_text_round_trip(uuid: bytes) -> None:
    assert types.uuid_from_str(types.uuid_to_str(uuid)) == uuid


@pytest.mark.parametrize("text", ["", "A", "A" * 18, "A" * 23, "A" * 30, "+" * 22, "é" * 22, "AAAAAAAAAAAAAAAAAAAAA!"])
def test_bad_uuid_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="UUID"):
        types.uuid_from_str(text)


def test_random_uuids_are_version_4_and_never_reserved_nor_dashed() -> None:
    source = random.Random(5)
    uuids = {types.random_uuid(source) for _ in range(500)}
    assert len(uuids) == 500
    assert {uuid[6] >> 4 for uuid in uuids} == {4}
    assert {uuid[8] >> 6 for uuid in uuids} == {2}
    assert not [uuid for uuid in uuids if types.uuid_to_str(uuid).startswith("-")]


@pytest.mark.parametrize("bits", [1, 7, 8, 9, 31, 128])
def test_a_random_number_has_no_more_bits_than_asked_for(bits: int) -> None:
    drawn = [types.SystemRandom().getrandbits(bits) for _ in range(64)]
    seen = 0
    for number in drawn:
        seen |= number
    assert all(0 <= number < 1 << bits for number in drawn)
    assert seen == (1 << bits) - 1, "each bit is drawn: missing in 64 numbers once in 10^17 runs"


def test_tagged_fields_are_skipped() -> None:
    section = bytes.fromhex("020001aa0502bbcc")
    assert types.skip_tagged_fields(section + b"rest", 0) == len(section)


@pytest.mark.parametrize("section", ["0100ff0f", "010002aa", "ffffffff0f", "c08e3d"])
def test_bad_tagged_fields_are_malformed(section: str) -> None:
    with pytest.raises(MalformedError):
        types.skip_tagged_fields(bytes.fromhex(section), 0)
