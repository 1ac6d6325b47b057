"""Producer snapshots: Kafka's bytes, and damage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.log.files.checkpoints import CheckpointCorruptError
from tidelog.log.producer.snapshot import ENTRY_SIZE, HEAD_SIZE, SnapshotEntry, decode_snapshot, seal_snapshot
from tidelog.protocol.record.crc import crc32c

ENTRY = SnapshotEntry(7, 2, 41, 1000, 4, 1_700_000_000_000, -1, 996)
longs = st.integers(-1, 2**63 - 1)
ints = st.integers(-1, 2**31 - 1)
entries = st.builds(SnapshotEntry, longs, st.integers(-1, 2**15 - 1), ints, longs, ints, longs, ints, longs)


def encode_snapshot(items: list[SnapshotEntry]) -> bytes:
    """Encode a snapshot file with these entries."""
    data = bytearray(HEAD_SIZE) + b"".join(struct.pack(">qhiqiqiq", *item) for item in items)
    seal_snapshot(data)
    return bytes(data)


def test_a_snapshot_has_kafkas_bytes() -> None:
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", *ENTRY)
    assert encode_snapshot([ENTRY]) == struct.pack(">hI", 1, crc32c(body)) + body
    assert len(encode_snapshot([ENTRY])) == HEAD_SIZE + ENTRY_SIZE == 10 + 46


@given(st.lists(entries, max_size=20))
def test_an_encoded_snapshot_is_decoded_to_its_entries(items: list[SnapshotEntry]) -> None:
    assert decode_snapshot(encode_snapshot(items), "x") == items


@pytest.mark.parametrize("size", [0, 5, 9, 10, 55])
def test_short_file_is_refused(size: int) -> None:
    with pytest.raises(CheckpointCorruptError):
        decode_snapshot(encode_snapshot([ENTRY])[:size], "x")


@given(st.integers(0, 55), st.integers(1, 255))
def test_any_changed_byte_is_refused(position: int, change: int) -> None:
    data = bytearray(encode_snapshot([ENTRY]))
    data[position] ^= change
    with pytest.raises(CheckpointCorruptError):
        decode_snapshot(bytes(data), "x")
