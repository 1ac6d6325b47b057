"""Compiled LZ4 against the LZ4 library: both read what the other wrote, refuse the same input, and write no byte
outside of the buffer."""

from __future__ import annotations

import random
from types import ModuleType

import lz4.frame
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import DEPTH
from tests.support.extensions import uncompiled
from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine import lz4_frames
from tidelog.cleaner.engine.arrays import ByteArray, IntegerArray
from tidelog.cleaner.engine.batch_table import BatchState
from tidelog.protocol.record.compression import CompressionType, compress

MODULES = (lz4_frames, uncompiled(lz4_frames))
GUARD = b"\xa5" * 64
PIECES = st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 30)), max_size=30)


def packed(data: bytes) -> bytes:
    """Compress data into a frame, by the compiled module or by plain Python."""
    one, other = (packed_by(module, data) for module in MODULES)
    assert one == other
    return one


def packed_by(module: ModuleType, data: bytes) -> bytes:
    out = np.frombuffer(bytes(at.BATCH_OVERHEAD) + data + bytes(at.PADDING), np.uint8).copy()
    row: IntegerArray = np.zeros((1, at.OUT_COLUMNS), np.int64)
    row[0, at.OUT_SIZE], row[0, at.OUT_CODEC] = at.BATCH_OVERHEAD + len(data), at.LZ4
    room = len(data) + len(data) // 128 + 64 + at.BATCH_OVERHEAD
    target: ByteArray = np.frombuffer(bytes(room) + GUARD, np.uint8).copy()
    done, end = module.pack_lz4(out, row, (0, 1), target, 0)
    assert (done, int(row[0, at.OUT_SIZE])) == (1, end)
    assert target[room:].tobytes() == GUARD
    return target[at.BATCH_OVERHEAD : end].tobytes()


def expanded(frame: bytes, room: int, count: int = 0) -> bytes | None:
    """Decompress a frame, by the compiled module or by plain Python; None when it is left to the library."""
    one, other = (expanded_by(module, frame, room, count) for module in MODULES)
    assert one == other
    return one


def expanded_by(module: ModuleType, frame: bytes, room: int, count: int) -> bytes | None:
    start = at.BATCH_OVERHEAD + len(frame)
    end = start + at.BATCH_OVERHEAD + room
    buffer = np.frombuffer(bytes(at.BATCH_OVERHEAD) + frame + bytes(end - start) + GUARD, np.uint8).copy()
    row: IntegerArray = np.zeros((1, at.COLUMNS), np.int64)
    row[0, at.STATE], row[0, at.ATTRIBUTES], row[0, at.COUNT] = BatchState.PACKED, at.LZ4, count
    row[0, at.BODY], row[0, at.BODY_SIZE] = at.BATCH_OVERHEAD, len(frame)
    done, used = module.expand_lz4(buffer, row, (0, 1), start, (end, 1 << 30, 1 << 40))
    assert buffer[end:].tobytes() == GUARD
    if row[0, at.STATE] != BatchState.EXPANDED:
        assert used == start
        return None
    body, size = int(row[0, at.BODY]), int(row[0, at.BODY_SIZE])
    assert (done, used) == (1, body + size)
    return buffer[body : body + size].tobytes()


def frames_of(data: bytes) -> list[bytes]:
    """Build frames as clients write them: independent and linked blocks of several sizes, other levels."""
    linked = [
        lz4.frame.compress(data, store_size=False, block_linked=True, block_size=size)
        for size in (lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX256KB, lz4.frame.BLOCKSIZE_MAX4MB)
    ]
    return [*linked, *(bytes(compress(data, CompressionType.LZ4, level)) for level in (None, 5, 12))]


@settings(max_examples=200 * DEPTH, deadline=None)
@given(pieces=PIECES)
def test_frames_of_the_library_and_of_the_compiled_code_are_read_by_both(pieces: list[tuple[bytes, int]]) -> None:
    data = b"".join(piece * times for piece, times in pieces)
    frame = packed(data)
    assert bytes(lz4.frame.decompress(frame)) == data
    for other in (frame, *frames_of(data)):
        assert expanded(other, len(data)) == data


@pytest.mark.parametrize("size", [0, 1, 4, 5, 12, 13, 14, 19, 65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("kind", ["zeros", "random", "text"])
def test_frames_are_read_at_the_edges_of_blocks(size: int, kind: str) -> None:
    data = {
        "zeros": bytes(size),
        "random": random.Random(size).randbytes(size),
        "text": (b"a line %d\n" * size)[:size],
    }[kind]
    frame = packed(data)
    assert bytes(lz4.frame.decompress(frame)) == data
    for other in (frame, *frames_of(data)):
        assert expanded(other, len(data)) == data


@settings(max_examples=300 * DEPTH, deadline=None)
@given(
    pieces=PIECES,
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 9),
)
def test_damage_is_left_to_the_library_or_harmless(
    pieces: list[tuple[bytes, int]], flips: list[tuple[int, int]], cut: int
) -> None:
    data = b"".join(piece * times for piece, times in pieces)
    frame = bytearray(frames_of(data)[0])
    for place, value in flips:
        frame[place % len(frame)] = value
    damaged = bytes(frame[: len(frame) - cut])
    found = expanded(damaged, len(data) + 100)
    if found is not None:
        assert bytes(lz4.frame.decompress(damaged)) == found


def test_unusual_frames_and_those_larger_than_the_buffer_are_left_to_the_library() -> None:
    data = b"some text " * 100
    frame = packed(data)
    assert expanded(frame, len(data) - 1) is None
    assert expanded(frame + frame, 2 * len(data)) is None
    assert expanded(lz4.frame.compress(data), len(data)) is None, "with content size"
    assert expanded(lz4.frame.compress(data, store_size=False, content_checksum=True), len(data)) is None
    assert expanded(lz4.frame.compress(data, store_size=False, block_checksum=True), len(data)) is None


def test_a_count_that_the_records_cannot_hold_is_poison() -> None:
    frame = packed(bytes(700))
    assert expanded(frame, 700, count=100) is not None
    assert expanded(frame, 700, count=101) is None


def test_batches_are_compressed_as_they_are_alone() -> None:
    """The compressor must not use positions in the batch before."""
    data = [b"the same text again and again " * 9, b"the same text again and again " * 7, bytes(300)]
    out = np.frombuffer(b"".join(bytes(at.BATCH_OVERHEAD) + piece for piece in data) + bytes(at.PADDING), np.uint8)
    rows: IntegerArray = np.zeros((3, at.OUT_COLUMNS), np.int64)
    rows[:, at.OUT_SIZE] = [at.BATCH_OVERHEAD + len(piece) for piece in data]
    rows[:, at.OUT_POSITION] = np.cumsum(rows[:, at.OUT_SIZE]) - rows[:, at.OUT_SIZE]
    rows[:, at.OUT_CODEC] = at.LZ4
    target: ByteArray = np.zeros(2000, np.uint8)
    done, end = lz4_frames.pack_lz4(out, rows, (0, 3), target, 0)
    assert done == 3
    expected = [bytes(at.BATCH_OVERHEAD) + packed(piece) for piece in data]
    found = [
        bytes(8) + bytes(4) + batch[12:17] + bytes(4) + batch[21:] for batch in pieces(target[:end].tobytes(), rows)
    ]
    assert found == expected


def pieces(data: bytes, rows: IntegerArray) -> list[bytes]:
    ends = np.cumsum(rows[:, at.OUT_SIZE]).tolist()
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
