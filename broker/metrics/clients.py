"""Connections of clients as the console shows them; asked for only when a page is. Loop thread only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple


class ConnectedClient(NamedTuple):
    """A connection: its client as it calls itself, its user and address, and its last request."""

    client_id: str | None
    principal: str
    host: str
    listener: str
    api_key: int
    api_version: int
    idle_ms: float


class ConnectedClients:
    """The connections of a broker, from whatever holds them."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Iterable[ConnectedClient]]] = []

    def source(self, read: Callable[[], Iterable[ConnectedClient]]) -> None:
        """Ask ``read`` for connections whenever they are listed."""
        self._sources.append(read)

    def list(self, most: int) -> list[ConnectedClient]:
        """List up to ``most`` of the connections there are."""
        return list(islice((one for read in self._sources for one in read()), most))
