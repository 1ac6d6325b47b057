"""A client that measures a broker during a storm of connections, in a process of its own.

``python -m tests.support.insider PORT`` logs in and produces. After each produce request it prints the milliseconds
that the request took, and logs in once more on another connection. It ends when its standard input does. In a process
of its own, it does not wait for the threads of the test that causes the storm.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
import time
from typing import TextIO

from tests.support import raw_client
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest

USER, PASSWORD, TOPIC = "ann", "secret", "topic"
LIMIT_S = 120.0
PAUSE_S = 0.02


def login_frames(password: str) -> bytes:
    """Return the requests of a login by PLAIN."""
    token = f"\0{USER}\0{password}".encode()
    handshake = SaslHandshakeRequest(mechanism="PLAIN").encode(1)
    return raw_client.frame(17, 1, 1, handshake) + raw_client.frame(
        36, 0, 2, SaslAuthenticateRequest(auth_bytes=token).encode(0)
    )


def log_in(port: int) -> socket.socket:
    """Return a connection that has logged in, from an address that the storm does not use."""
    connection = socket.create_connection(("127.0.0.1", port), LIMIT_S, source_address=("127.0.0.99", 0))
    connection.sendall(login_frames(PASSWORD))
    raw_client.receive_frame(connection)
    assert raw_client.receive_frame(connection)[4:6] == b"\0\0"
    return connection


def main() -> None:
    """Produce and log in until the input ends."""
    port = int(sys.argv[1])
    connection = log_in(port)
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        began = time.monotonic()
        connection.sendall(raw_client.produce(TOPIC, b"here"))
        assert raw_client.receive_produced(connection)[1] == 0
        print((time.monotonic() - began) * 1e3, flush=True)
        log_in(port).close()


class Insider:
    """The client's process; ``waits_ms`` has the times of its produce requests so far."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", __name__, str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.waits_ms: list[float] = []
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)

    def _read(self, lines: TextIO) -> None:
        with lines:
            self.waits_ms.extend(map(float, lines))

    def __enter__(self) -> Insider:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the process. Raises AssertionError if a request or a login failed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join(LIMIT_S)
        assert self._process.wait(LIMIT_S) == 0

    def wait_for(self, more: int) -> None:
        """Wait until this many more produce requests are answered."""
        wanted, deadline = len(self.waits_ms) + more, time.monotonic() + LIMIT_S
        while len(self.waits_ms) < wanted:
            assert self._process.poll() is None, "the client inside ended"
            assert time.monotonic() < deadline
            time.sleep(0.01)


if __name__ == "__main__":
    main()
