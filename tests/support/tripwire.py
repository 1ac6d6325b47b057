"""A TCP proxy before a broker that halts a connection at a chosen request, so that a test can kill the client there.

    after=False    the proxy has the request, and the broker has not received it
    after=True     the broker has answered, and the client has not received the answer

Each connection has a thread, which forwards one request and its answer at a time. Give the broker the proxy's address
as ``advertised.listeners``: clients connect to the address that Metadata returns.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

_LENGTH = struct.Struct(">i")
_API_KEY = struct.Struct(">h")


@dataclass
class Trip:
    """The kind of request at which a connection halts: an API key, and the side of the broker (``after``).

    ``reached`` is set when a connection halts. The connection then stays open, and nothing more is forwarded.
    """

    api_key: int
    after: bool = False
    reached: threading.Event = field(default_factory=threading.Event)


class Tripwire:
    """The proxy, a context manager. It listens on ``port`` of 127.0.0.1; call `connect_to` before a client connects."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._broker_port = 0
        self._trip: Trip | None = None
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def bootstrap(self) -> str:
        """Address of the proxy for clients, HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    def connect_to(self, port: int) -> None:
        """Set the broker of connections that clients open from here on: its port of 127.0.0.1."""
        self._broker_port = port

    def arm(self, api_key: int, *, after: bool = False) -> Trip:
        """Halt the connection that sends the next request with this API key; an earlier trip not reached is dropped."""
        self._trip = Trip(api_key, after)
        return self._trip

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._broker_port)) as broker:
            while (request := _frame(client)) is not None:
                trip = self._taken(request)
                if trip is not None and not trip.after:
                    self._halt(trip)
                    return
                broker.sendall(request)
                answer = _frame(broker)
                if trip is not None:
                    self._halt(trip)
                    return
                if answer is None:
                    return
                client.sendall(answer)

    def _taken(self, request: bytes) -> Trip | None:
        """Return the armed trip, and disarm it, if the request has its API key; None if not."""
        trip = self._trip
        if trip is None or _API_KEY.unpack_from(request, _LENGTH.size)[0] != trip.api_key:
            return None
        self._trip = None
        return trip

    def _halt(self, trip: Trip) -> None:
        trip.reached.set()
        self._stopped.wait()


def _frame(source: socket.socket) -> bytes | None:
    """Read the next frame with its length; None if the peer has closed the connection."""
    head = _exactly(source, _LENGTH.size)
    if head is None:
        return None
    body = _exactly(source, _LENGTH.unpack(head)[0])
    return None if body is None else head + body


def _exactly(source: socket.socket, count: int) -> bytes | None:
    """Read ``count`` bytes; None if the peer closes the connection earlier."""
    parts = bytearray()
    while len(parts) < count:
        part = source.recv(count - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
