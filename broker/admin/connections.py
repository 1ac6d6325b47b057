"""The open connections of the admin interface, at most ``admin.max.connections`` of them.

One too many closes another: the oldest whose first request has not come, else one whose client takes no answer, else
one that waits for its next request. Where all are being answered the new one is closed. So a flood costs a bounded
number of descriptors, and a new client's request is answered beside it. Loop thread only.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol


class Activity(IntEnum):
    """Activities of a connection, in the order in which they are closed for a new one."""

    NEW = 0
    """Its first request is not whole yet."""
    STUCK = 1
    """Its client does not take the answer."""
    IDLE = 2
    """It has been answered before."""
    BUSY = 3
    """A request of it is being answered."""


class Connection(Protocol):
    """The part of a connection that ``Connections`` uses."""

    @property
    def activity(self) -> Activity: ...

    def abort(self) -> None:
        """Close at once."""
        ...


class Connections:
    """The open connections in the order in which they came."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        """Take a new connection in; one is closed where there are too many."""
        victim = min(self._open, key=lambda one: one.activity) if len(self._open) >= self._limit else None
        self._open[connection] = None
        if victim is not None:
            self._end(connection if victim.activity is Activity.BUSY else victim)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self._open.pop(connection, None)

    def _end(self, connection: Connection) -> None:
        del self._open[connection]
        connection.abort()
