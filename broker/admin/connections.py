"""The open connections of an HTTP interface, at most ``admin.max.connections`` of them.

If there is one too many, another is closed: the oldest whose first request is not complete or whose request is still
being checked. Without such a one it is the oldest whose client does not read its answer, else the oldest that waits for
its next request. If all are being answered, the new one is closed. So a flood of connections takes a bounded number of
descriptors, and other clients are still answered. Loop thread only.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol


class Activity(IntEnum):
    """Activity of a connection, in the order in which connections are closed for a new one."""

    NEW = 0
    """The header of its first request is not complete yet, or one of its requests is still being checked."""
    STUCK = 1
    """Its client does not read the answer."""
    IDLE = 2
    """It waits for the next request."""
    BUSY = 3
    """Its request is being answered."""


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
        """Add a new connection. If there are too many then, one of them is closed."""
        victim = min(self._open, key=lambda one: one.activity) if len(self._open) >= self._limit else None
        self._open[connection] = None
        if victim is not None:
            self._end(connection if victim.activity is Activity.BUSY else victim)

    def remove(self, connection: Connection) -> None:
        """Remove a connection that is closed."""
        self._open.pop(connection, None)

    def _end(self, connection: Connection) -> None:
        del self._open[connection]
        connection.abort()
