"""Bound on the bytes of partly received requests, over all connections.

``queued.max.request.bytes`` bounds them, as in Kafka. Only frames beyond SMALL_BYTES count: smaller ones are read to
their end in any case, so that ordinary requests never wait for large ones.

    full: more than the limit is held -> of those that want to read, the longest holder alone goes on
    its frame is complete, it closes, or is too slow (``Connection.inspect``) -> the next one
    not full any more -> all go on

Invariants: while the memory is full one connection may read, so that its frame gets complete and its bytes are
released; what is held is at most the limit, one whole frame, and SMALL_BYTES and one receive of each connection. Loop
thread only.
"""

from __future__ import annotations

from typing import Protocol

SMALL_BYTES = 64 * 1024


class Holder(Protocol):
    """A connection that holds bytes of a partly received request."""

    def wants_to_read(self) -> bool:
        """Return whether the connection could handle a request now, if it had a complete one."""
        ...

    def update_reading(self) -> None:
        """Start or stop reading from the socket: the answer of ``admits`` may have changed."""
        ...


class RequestMemory:
    """Bound on the memory of queued requests. A limit of 0 or less means no limit."""

    __slots__ = ("_held", "_limit_bytes", "held_bytes", "is_full")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[Holder, int] = {}
        """Bytes of each connection with a frame beyond SMALL_BYTES, longest holder first."""
        self.held_bytes = 0
        self.is_full = False

    def note(self, holder: Holder, held_bytes: int) -> None:
        """Set the bytes that the connection holds, and let the holders read that now may."""
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
        """Return whether the connection may read on. Above the limit only these may: the first holder that wants to,
        and connections without a large request."""
        return not self.is_full or holder not in self._held or self._first() is holder

    def _first(self) -> Holder | None:
        return next((holder for holder in self._held if holder.wants_to_read()), None)
