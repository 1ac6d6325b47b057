"""List of the clients' connections for the console, made only when a page shows it. Loop thread only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple


class ConnectedClient(NamedTuple):
    """One connection: client id, principal, address, listener, the API of its last request, and the time since its last
    receive or late answer.
    """

    client_id: str | None
    principal: str
    host: str
    listener: str
    api_key: int
    api_version: int
    idle_ms: float


class ConnectedClients:
    """The connections of a broker, collected from all sources that were added."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Iterable[ConnectedClient]]] = []
        self._counts: list[Callable[[], int]] = []

    def add_source(self, read: Callable[[], Iterable[ConnectedClient]], count: Callable[[], int]) -> None:
        """Add a function that returns connections, for ``list``, and one that counts them, for ``count``."""
        self._sources.append(read)
        self._counts.append(count)

    def count(self) -> int:
        """Return the number of connections."""
        return sum(count() for count in self._counts)

    def list(self, limit: int) -> list[ConnectedClient]:
        """Return up to ``limit`` connections."""
        return list(islice((one for read in self._sources for one in read()), limit))
