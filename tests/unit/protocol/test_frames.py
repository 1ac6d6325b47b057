"""Frames read from a stream of bytes, in receives of any size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.protocol import frames
from tidelog.protocol.errors import InvalidReceiveError
from tidelog.protocol.frames import FrameReader

LIMIT = 1 << 24


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def all_frames(reader: FrameReader) -> list[bytes]:
    taken = []
    while (frame := reader.next_frame()) is not None:
        taken.append(bytes(frame))
    return taken


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 6_000), max_size=12),
    cuts=st.lists(st.integers(1, 30_000), min_size=1),
)
def test_frames_do_not_depend_on_how_bytes_arrive(sizes: list[int], cuts: list[int]) -> None:
    bodies = [bytes(range(256)) * (size // 256) + b"x" * (size % 256) for size in sizes]
    reader = FrameReader(LIMIT)
    stream = memoryview(framed(*bodies))
    taken = []
    turn = 0
    while stream:
        room = reader.get_buffer()
        assert len(room) >= frames.MIN_ROOM_BYTES
        n = min(len(room), cuts[turn % len(cuts)], len(stream))
        room[:n] = stream[:n]
        reader.buffer_updated(n)
        stream = stream[n:]
        taken += all_frames(reader)
        turn += 1
    assert taken == bodies
    assert reader.buffered_bytes == 0


def test_receive_data_takes_more_than_the_buffer_holds() -> None:
    reader = FrameReader(LIMIT)
    bodies = [b"a" * 100_000, b"", b"b" * 70_000]
    reader.receive_data(framed(*bodies))
    assert all_frames(reader) == bodies


def test_part_of_a_frame_waits() -> None:
    reader = FrameReader(LIMIT)
    reader.receive_data(b"\0\0\0")
    assert reader.next_frame() is None
    reader.receive_data(b"\x02a")
    assert reader.next_frame() is None
    assert reader.buffered_bytes == 5
    reader.receive_data(b"b")
    assert all_frames(reader) == [b"ab"]


def test_frame_is_a_writable_view() -> None:
    reader = FrameReader(LIMIT)
    reader.receive_data(framed(b"abc"))
    frame = reader.next_frame()
    assert frame is not None
    frame[0] = 0x7A
    assert bytes(frame) == b"zbc"


@pytest.mark.parametrize("length", ["ffffffff", "80000000", "00000065", "7fffffff"])
def test_length_out_of_bounds_is_refused(length: str) -> None:
    reader = FrameReader(100)
    reader.receive_data(bytes.fromhex(length))
    with pytest.raises(InvalidReceiveError, match="allowed are 0 to 100"):
        reader.next_frame()


def test_largest_frame_is_accepted() -> None:
    reader = FrameReader(100)
    reader.receive_data(framed(b"a" * 100))
    assert all_frames(reader) == [b"a" * 100]


def test_claimed_length_allocates_nothing() -> None:
    reader = FrameReader(1 << 30)
    reader.receive_data((1 << 29).to_bytes(4, "big") + b"x" * 10)
    assert reader.next_frame() is None
    assert reader.capacity_bytes == frames.INITIAL_BUFFER_BYTES


def test_buffer_doubles_with_the_received_bytes() -> None:
    reader = FrameReader(1 << 30)
    reader.receive_data((1 << 29).to_bytes(4, "big"))
    for _ in range(50):
        reader.receive_data(b"x" * 10_000)
        assert reader.next_frame() is None
        assert reader.capacity_bytes <= max(2 * reader.buffered_bytes + 4096, frames.READ_AHEAD_BYTES)
    assert reader.buffered_bytes == 500_004


def test_received_bytes_get_their_buffer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(capacity: int) -> bytearray:
        made.append(capacity)
        return bytearray(capacity)

    monkeypatch.setattr(frames, "bytearray", counted, raising=False)
    arrived = (200_000).to_bytes(4, "big") + bytes(100_000)
    reader = FrameReader(1 << 20)
    reader.receive_data(arrived)
    assert made == [131_072]
    reader.receive_data(bytes(100_000))
    frame = reader.next_frame()
    assert frame is not None
    assert frame.nbytes == 200_000


def test_receives_that_fill_the_buffer_make_it_read_ahead() -> None:
    reader = FrameReader(LIMIT)
    for _ in range(20):
        room = reader.get_buffer()
        assert len(room) % 8 == 0
        room[:] = framed(b"1234") * (len(room) // 8)
        reader.buffer_updated(len(room))
        assert set(all_frames(reader)) == {b"1234"}
    assert reader.capacity_bytes == frames.READ_AHEAD_BYTES


def test_waiting_bytes_move_to_the_start_when_room_runs_out() -> None:
    reader = FrameReader(LIMIT)
    reader.receive_data(framed(b"a" * 3_000))
    assert len(all_frames(reader)[0]) == 3_000
    reader.receive_data(framed(b"b" * 200)[:100])
    room = reader.get_buffer()
    assert reader.capacity_bytes == frames.INITIAL_BUFFER_BYTES
    room[:104] = b"b" * 104
    reader.buffer_updated(104)
    assert all_frames(reader) == [b"b" * 200]


def test_the_next_api_key_is_seen_before_its_frame_is_whole() -> None:
    reader = FrameReader(1000)
    assert reader.next_api_key() is None
    reader.receive_data(b"\0\0\0\x10\0")
    assert reader.next_api_key() is None
    reader.receive_data(b"\x02")
    assert reader.next_api_key() == 2
    assert reader.next_frame() is None


def test_missing_bytes_of_the_next_frame_are_known_with_its_length() -> None:
    reader, missing = FrameReader(1000), []
    for byte in b"\0\0\0\x03abc" + b"\0\0\0\x01":
        missing.append(reader.missing_bytes)
        reader.receive_data(bytes([byte]))
    assert missing == [0, 0, 0, 0, 3, 2, 1, 0, 0, 0, 0]
    assert reader.missing_bytes == 0, "the first is whole, and not taken yet"
    reader.next_frame()
    assert reader.missing_bytes == 1


def test_a_large_frame_gets_a_buffer_of_its_size_whose_memory_grows_with_the_received_bytes() -> None:
    size = 5 * frames.LAZY_BYTES
    reader = FrameReader(2 * size)
    reader.receive_data(size.to_bytes(4, "big"))
    capacities = set()
    piece = bytes(range(256)) * 256
    for _ in range(size // len(piece)):
        assert reader.next_frame() is None
        reader.receive_data(piece)
        capacities.add(reader.capacity_bytes)
    assert max(capacities) <= size + 4 + frames.MIN_ROOM_BYTES
    assert sorted(capacities)[-2] < frames.LAZY_BYTES
    frame = reader.next_frame()
    assert frame is not None
    assert len(frame) == size
    assert bytes(frame[: len(piece)]) == bytes(frame[-len(piece) :]) == piece


def test_a_length_that_is_only_claimed_maps_nothing_larger_than_the_limit() -> None:
    reader = FrameReader(20 * frames.LAZY_BYTES)
    reader.receive_data((2**31 - 1).to_bytes(4, "big"))
    reader.receive_data(bytes(frames.LAZY_BYTES))
    assert reader.capacity_bytes <= reader.max_frame_bytes + frames.MIN_ROOM_BYTES
    with pytest.raises(InvalidReceiveError):
        reader.next_frame()


def test_a_frame_that_belongs_to_its_taker_outlives_all_that_is_received_later() -> None:
    size = frames.OWNED_BYTES + 1
    reader = FrameReader(2 * size)
    content = bytes(range(256)) * (size // 256) + b"!"
    following = b"\0\0\0\x03abc\0\0\0\x05d"
    reader.receive_data(size.to_bytes(4, "big") + content + following)
    frame = reader.next_frame()
    assert frame is not None
    assert bytes(reader.next_frame() or b"") == b"abc"
    reader.receive_data(b"efgh" + size.to_bytes(4, "big") + bytes(size))
    assert bytes(reader.next_frame() or b"") == b"defgh"
    assert bytes(reader.next_frame() or b"") == bytes(size)
    assert bytes(frame) == content
