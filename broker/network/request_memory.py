"""Bound on the bytes of partly received requests, over all connections.

``queued.max.request.bytes`` bounds them, as in Kafka, or ``socket.request.max.bytes`` if that is larger. Only
connections that hold more than SMALL_BYTES count, the *holders*; smaller requests are read to their end in any case, so
that they never wait for large ones.

    full: holders have more than the limit  -> only one holder reads: the first to hold, of those that want to read
    the frame of this holder is complete, or it closes, or is too slow (``Connection.inspect``) -> the next holder reads
    not full any more                       -> all holders read

Invariants: while the memory is full one holder may read, so that its frame gets complete and its bytes are released.
All connections together hold at most the limit, one frame, and SMALL_BYTES and one receive each. Loop thread only.
"""

from __future__ import annotations

from typing import Protocol

SMALL_BYTES = 64 * 1024


class Holder(Protocol):
    """A connection that may hold bytes of a partly received request."""

    def wants_to_read(self) -> bool:
        """Return whether the connection could handle a request now, if it had a complete one."""
        ...

    def update_reading(self) -> None:
        """Start or stop reading from the socket: the answer of ``admits`` may have changed."""
        ...


class RequestMemory:
    """Bound on the memory of partly received requests. A limit of 0 or less means no limit."""

    __slots__ = ("_held", "_limit_bytes", "held_bytes", "is_full")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[Holder, int] = {}
        """Bytes of each holder, the first to hold first."""
        self.held_bytes = 0
        self.is_full = False

    def note(self, holder: Holder, held_bytes: int) -> None:
        """Set the bytes that the connection holds, and let those holders read that may from now on."""
        before = self._held.get(holder, 0)
        if not before and held_bytes <= SMALL_BYTES:
            return
        if held_bytes <= SMALL_BYTES:
            held_bytes = 0
            self._held.pop(holder, None)
        else:
            self._held[holder] = held_bytes
        self.held_bytes += held_bytes - before
        was_full, self.is_full = self.is_full, 0 < self._limit_bytes < self.held_bytes
        if self.is_full:
            first = self._first()
            if first is not None:
                first.update_reading()
        elif was_full:
            for other in list(self._held):
                other.update_reading()

    def admits(self, holder: Holder) -> bool:
        """Return whether the connection may read on. Above the limit only these may: the first holder that wants to
        read, and connections that are not holders."""
        return not self.is_full or holder not in self._held or self._first() is holder

    def _first(self) -> Holder | None:
        return next((holder for holder in self._held if holder.wants_to_read()), None)
