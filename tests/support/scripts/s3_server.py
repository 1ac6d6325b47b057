"""An S3 server by the package moto, controlled by standard input: ``s3_server.py``.

Each line of standard input is answered by a line of standard output. ``start PORT`` serves on 127.0.0.1 (0: any port),
and is answered by the port. After ``stop`` connections are refused, and those that were open are closed. Objects are in
memory, and stay after a ``stop``.

moto lists its own directory for each request, logs the request, and ends the connection after it. This script prevents
all three, which saves a third of its CPU time. It also gives the requests to moto's S3 at once. Otherwise Flask finds
the service and the function for each of them, which takes a fifth of the rest.
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from typing import Any, ClassVar

from moto import backends
from moto.core import serialize
from moto.core.request import Request
from moto.s3.responses import S3Response
from moto.server import MotoRequestHandler, ThreadedMotoServer


class ServedRequest(Request):
    """A request of a client, as moto's S3 expects it from a server."""

    from_wsgi_server = True


def answer(environ: dict[str, Any]) -> tuple[int, dict[str, Any], bytes]:
    """Answer a request of a path-style client, for a bucket or an object: status, headers and body."""
    request = ServedRequest(environ)
    _, _, key = request.raw_path.removeprefix("/").partition("/")
    answering = S3Response.key_dispatch if key else S3Response.ambiguous_dispatch
    status, headers, content = answering(request, request.raw_url, dict(request.headers))
    return status, headers, content.encode() if isinstance(content, str) else content


class LastingHandler(MotoRequestHandler):
    """Answers the requests of one connection until the client closes it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # a response is sent at once
    open: ClassVar[set[socket.socket]] = set()

    def handle(self) -> None:
        """Note the connection while it is open."""
        self.open.add(self.connection)
        try:
            super().handle()
        finally:
            self.open.discard(self.connection)

    def run_wsgi(self) -> None:
        """Answer one request; its body is read first, so that the next request follows in the stream."""
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.wfile.flush()
        self.environ = environ = self.make_environ()
        environ["wsgi.input"] = BytesIO(self._read_body(environ))
        self._respond(*answer(environ))

    def _read_body(self, environ: dict[str, Any]) -> bytes:
        stream = environ["wsgi.input"]
        if environ.get("wsgi.input_terminated"):  # a body in chunks, whose end the stream knows
            return bytes(stream.read())
        return bytes(stream.read(int(environ.get("CONTENT_LENGTH") or 0)))

    def _respond(self, status: int, headers: dict[str, Any], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        has_body = self.command != "HEAD" and status not in {204, 304}
        if has_body and not any(name.lower() == "content-length" for name in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing."""


def close_connections() -> None:
    """End the connections that are open."""
    for connection in list(LastingHandler.open):
        with suppress(OSError):  # it has just ended
            connection.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Execute the lines of standard input until it ends."""
    names = frozenset(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: names
    serialize.parse_to_aware_datetime = lru_cache(serialize.parse_to_aware_datetime)  # of each object in each list
    server: ThreadedMotoServer | None = None
    for line in sys.stdin:
        order, *rest = line.split()
        if order == "start":
            server = ThreadedMotoServer("127.0.0.1", int(rest[0]), verbose=False)
            server.start()
            assert server._server is not None
            server._server.RequestHandlerClass = LastingHandler
            print(server.get_host_and_port()[1], flush=True)
        elif server is not None:
            server.stop()
            assert server._server is not None
            server._server.server_close()
            close_connections()
            server = None
            print("stopped", flush=True)


if __name__ == "__main__":
    main()
