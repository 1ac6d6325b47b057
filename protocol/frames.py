"""Frames of Kafka's protocol: an int32 length, then that many bytes. Sans-io: bytes are put in, frames taken out.

    reader = FrameReader(max_frame_bytes)
    view = reader.get_buffer(); n = socket.recv_into(view); reader.buffer_updated(n)      # or receive_data(data)
    while (frame := reader.next_frame()) is not None: ...

One bytearray per connection holds what arrived and was not taken yet, between ``_start`` and ``_end``:

    |  taken  |_start  frame, frame, part of a frame  _end|  room  |

Invariants: a frame is a view of that array, writable, and valid until the next ``get_buffer`` or ``receive_data``,
which may move or replace its bytes. The array is never resized, because views of it may be in use, but only replaced.
It grows by doubling when bytes that have *arrived* fill it, never by a length that a peer merely claims: a peer that
announces a frame of 100 MB and stops costs what it sent. It starts small, for ten thousand idle connections.

A buffer that grows to LAZY_BYTES or more is anonymous memory, not an array, and has room for the whole frame. The
system allocates a page when a byte arrives in it, so a claimed length still costs nothing, and the frame is not copied
again. With arrays of any size one doubling blocked the loop for 70 ms, and with arrays up to 8 MiB for 17 ms.

A frame of more than OWNED_BYTES keeps its memory: the reader continues in another buffer. So a long request that is
handled in steps needs no copy; copying 40 MB took 30 ms.
"""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct

from tidelog.protocol.errors import InvalidReceiveError
from tidelog.protocol.types import Buffer

INITIAL_BUFFER_BYTES = 4_096
READ_AHEAD_BYTES = 262_144  # a buffer that a receive fills is doubled up to this size, even if no frame needs it
MIN_ROOM_BYTES = 1_024  # get_buffer returns at least this much, so that a receive is worth its system call
LAZY_BYTES = 1024 * 1024  # buffers from this size on are mapped, and grow at once to hold their frame
OWNED_BYTES = 4 * 1024 * 1024  # the memory of a larger frame is not reused

TLS_HANDSHAKE = 0x1603  # first two bytes of a TLS client's first record

_LENGTH = Struct(">i")
_unpack_length = _LENGTH.unpack_from
_unpack_api_key = Struct(">h").unpack_from
_EMPTY = memoryview(bytearray())


class FrameReader:
    """Reader that cuts one connection's stream into frames. Not thread-safe."""

    __slots__ = ("_capacity", "_end", "_filled", "_start", "_view", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._view = _EMPTY
        self._capacity = 0
        self._start = 0
        self._end = 0
        self._filled = False

    @property
    def buffered_bytes(self) -> int:
        """Bytes that have arrived and were not taken as frames yet."""
        return self._end - self._start

    @property
    def missing_bytes(self) -> int:
        """Bytes that the next frame still needs; 0 if the frame is complete, or its length has not arrived."""
        waiting = self._end - self._start
        if waiting < 4:
            return 0
        length: int = _unpack_length(self._view, self._start)[0]
        return max(0, length + 4 - waiting)

    @property
    def capacity_bytes(self) -> int:
        """Size of the buffer. A mapped one takes memory only for the bytes that have arrived."""
        return self._capacity

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes; never empty. Frames of up to OWNED_BYTES that were taken before are
        invalid from here on."""
        if self._start == self._end:
            self._start = self._end = 0
        if self._filled or self._capacity - self._end < MIN_ROOM_BYTES:
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, n: int) -> None:
        """Note that ``n`` bytes were written to the start of the last ``get_buffer``."""
        self._end += n
        self._filled = self._end == self._capacity

    def receive_data(self, data: Buffer) -> None:
        """Copy ``data`` into the buffer, for callers that do not receive into it."""
        data = memoryview(data)
        if not self._capacity and len(data) > INITIAL_BUFFER_BYTES:  # for all of it, at most READ_AHEAD_BYTES
            self._replace(min(1 << len(data).bit_length(), READ_AHEAD_BYTES))
        while data:
            room = self.get_buffer()
            n = min(len(room), len(data))
            room[:n] = data[:n]
            self.buffer_updated(n)
            data = data[n:]

    def next_frame(self) -> memoryview | None:
        """Take the next complete frame, without its length; return None until more bytes arrive. Raises
        InvalidReceiveError.

        A frame of more than OWNED_BYTES stays valid as long as it is referred to.
        """
        start = self._start + 4
        if start > self._end:
            return None
        (length,) = _unpack_length(self._view, start - 4)
        if not 0 <= length <= self.max_frame_bytes:
            raise refuse_size(length, self.max_frame_bytes)
        end = start + length
        if end > self._end:
            return None
        self._start = end
        frame = self._view[start:end]
        if length > OWNED_BYTES:
            self._replace(max(INITIAL_BUFFER_BYTES, 2 * (self._end - end)))
        return frame

    def next_api_key(self) -> int | None:
        """Return the API key of the next frame, even if the frame is incomplete; None until the key has arrived."""
        if self._start + 6 > self._end:
            return None
        key: int = _unpack_api_key(self._view, self._start + 4)[0]
        return key

    def _make_room(self) -> None:
        """Move the waiting bytes to the start of the buffer: of a larger one if they fill more than half of this one,
        or the last receive filled it.
        """
        waiting = self._end - self._start
        grow = self._capacity < INITIAL_BUFFER_BYTES or waiting > self._capacity // 2
        if self._filled and self._capacity < READ_AHEAD_BYTES:
            grow = True
        self._filled = False
        if grow:
            self._replace(self._next_capacity())
        elif self._start:
            self._view[:waiting] = self._view[self._start : self._end]
            self._start, self._end = 0, waiting

    def _next_capacity(self) -> int:
        """Return twice the capacity, or for a large frame at least its size."""
        doubled = max(INITIAL_BUFFER_BYTES, self._capacity * 2)
        if doubled < LAZY_BYTES:
            return doubled
        length: int = _unpack_length(self._view, self._start)[0]
        return max(doubled, min(length, self.max_frame_bytes) + MIN_ROOM_BYTES)

    def _replace(self, capacity: int) -> None:
        """Continue in a new buffer. The old one lives as long as frames that are views of it."""
        waiting = self._end - self._start
        view = _EMPTY
        if capacity:
            view = memoryview(anonymous_memory(capacity) if capacity >= LAZY_BYTES else bytearray(capacity))
        view[:waiting] = self._view[self._start : self._end]
        self._view, self._capacity = view, capacity
        self._start, self._end = 0, waiting


def refuse_size(length: int, max_frame_bytes: int) -> InvalidReceiveError:
    """Build the error for a length that no frame may have; its text says if the bytes look like a TLS handshake."""
    hint = "; the client seems to speak TLS, which this listener does not" if length >> 16 == TLS_HANDSHAKE else ""
    return InvalidReceiveError(f"a frame of {length} bytes; allowed are 0 to {max_frame_bytes}{hint}")


def anonymous_memory(capacity: int) -> mmap:
    """Map memory that takes no pages until it is written. Private: freeing 100 MB of it takes 4 ms, and
    of shared memory 9 ms."""
    return mmap(-1, capacity, flags=MAP_PRIVATE | MAP_ANONYMOUS)
