"""Bytes of requests that were received in part, over all connections; and who may go on when they are too many.

``queued.max.request.bytes`` bounds them, as in Kafka. Only frames beyond SMALL_BYTES count: those below are read to
their end whatever happens, so that ordinary requests never wait for large ones.

    full: more than the limit is held -> the connection that holds for longest and wants to read goes on, no other
    it has its frame whole, goes away, or is too slow (``Connection.inspect``) -> the next one
    not full any more -> all go on

Invariants: while it is full one connection may read, so that a frame becomes whole and its bytes are given back; what
is held is at most the limit, one whole frame, and SMALL_BYTES and one receive of each connection. Loop thread only.
"""

from __future__ import annotations

from typing import Protocol

SMALL_BYTES = 64 * 1024


class Holder(Protocol):
    """A connection, as its memory is seen."""

    def wants_to_read(self) -> bool:
        """Whether it could handle a frame if it had one."""
        ...

    def update_reading(self) -> None:
        """Read, or stop reading, as ``admits`` now says."""
        ...


class RequestMemory:
    """Bound on the memory of queued requests. A limit of 0 or less is none."""

    __slots__ = ("_held", "_limit_bytes", "held_bytes", "is_full")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[Holder, int] = {}
        """In the order in which they began to hold something."""
        self.held_bytes = 0
        self.is_full = False

    def note(self, holder: Holder, held_bytes: int) -> None:
        """From now on this connection holds so many bytes of requests."""
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
        """Whether this connection may read on. Those that hold nothing may."""
        return not self.is_full or holder not in self._held or self._first() is holder

    def _first(self) -> Holder | None:
        return next((holder for holder in self._held if holder.wants_to_read()), None)
