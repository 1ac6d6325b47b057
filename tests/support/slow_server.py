"""An HTTP server in the test's thread that sends one byte of a header each time the client looks at its clock."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


class SlowServer:
    """The server, and the clock of its client: one second passes with each look."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.accepted: list[socket.socket] = []
        self.now_s = 0.0
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def look_at_clock(self) -> float:
        """Return the time, after the next byte was sent."""
        self.now_s += 1
        if self.now_s == 3:  # the time of the start, and of the connection, were looked up before
            self.accepted.append(self._listener.accept()[0])
            self.accepted[0].sendall(b"HTTP/1.1 200 OK\r\nX: ")
        for each in self.accepted:
            each.sendall(b"a")
        return self.now_s


@contextmanager
def slow_server() -> Iterator[SlowServer]:
    """A server that accepts one client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = SlowServer(listener)
        yield server
        for each in server.accepted:
            each.close()
