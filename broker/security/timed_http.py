"""HTTP connections whose steps have one deadline together. The resolver, which looks up the host, has its own, and
:class:`TimedConnection` may take longer while it connects.

The timeout of a socket is for each read. With it alone, a server that sends a byte of a header every few seconds would
hold a thread without an end.
"""

from __future__ import annotations

import io
import socket
import ssl
from collections.abc import Callable
from http.client import HTTP_PORT, HTTPS_PORT, HTTPConnection, HTTPSConnection
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class Deadline:
    """The end of the time that something may take."""

    def __init__(self, limit_s: float, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._end_s = now_s() + limit_s

    def remaining_s(self) -> float:
        """Return the time that is left, over 0. Raises TimeoutError."""
        remaining = self._end_s - self._now_s()
        if remaining <= 0:
            raise TimeoutError("it takes too long")
        return remaining


class TimedSocket:
    """The part of a socket that http.client uses, with a deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._socket = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        """Send bytes. Raises OSError."""
        self._socket.settimeout(self._deadline.remaining_s())
        self._socket.sendall(data)

    def makefile(self, _mode: str, *_: Any) -> io.BufferedReader:
        """Return a file of what is received. It may be read after ``close``, like that of a socket."""
        return io.BufferedReader(_TimedFile(self._socket, self._deadline))

    def close(self) -> None:
        """Close the socket as soon as its files are closed."""
        self._socket.close()


class _TimedFile(io.RawIOBase):
    """A file of the bytes that a socket receives."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._socket = sock
        self._deadline = deadline
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        """Receive some bytes. Raises OSError."""
        self._socket.settimeout(self._deadline.remaining_s())
        return self._file.readinto(buffer)

    def close(self) -> None:
        """Let the socket close."""
        self._file.close()
        super().close()


class TimedConnection(HTTPConnection):
    """A connection of urllib, which may lead through a proxy. While it connects, each address of the host, each read of
    a proxy's answer, and the TLS handshake may take the whole time.
    """

    def __init__(self, deadline: Deadline, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._deadline = deadline

    def connect(self) -> None:
        """Connect. Raises OSError, and HTTPException for a malformed answer of a proxy."""
        self.timeout = self._deadline.remaining_s()
        super().connect()
        self.sock = cast(socket.socket, TimedSocket(self.sock, self._deadline))


class TimedTlsConnection(TimedConnection, HTTPSConnection):
    """Such a connection with TLS."""


def open_connection(
    scheme: str, host: str, port: int | None, context: ssl.SSLContext | None, deadline: Deadline
) -> HTTPConnection:
    """Open a connection to a server; ``port`` None is that of the scheme. ``context`` None trusts the system's
    certificates. Raises OSError."""
    if port is None:  # http.client would look for it in an IPv6 address
        port = HTTPS_PORT if scheme == "https" else HTTP_PORT
    if scheme != "https":
        plain = HTTPConnection(host, port)
        plain.sock = cast(socket.socket, TimedSocket(_connect(host, port, deadline), deadline))
        return plain
    context = context or ssl.create_default_context()
    connection = HTTPSConnection(host, port, context=context)
    sock = _connect(host, port, deadline)
    try:
        sock.settimeout(deadline.remaining_s())  # of the whole handshake
        sock = context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise
    connection.sock = cast(socket.socket, TimedSocket(sock, deadline))
    return connection


def _connect(host: str, port: int, deadline: Deadline) -> socket.socket:
    """Connect to the first address of a host that answers. Raises OSError."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        remaining_s = deadline.remaining_s()
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(remaining_s)
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure or OSError(f"{host} has no address")
