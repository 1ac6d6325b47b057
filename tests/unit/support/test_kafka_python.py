"""``kafka_python`` closes sockets that kafka-python would leave to the garbage collector."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from kafka.net.inet import KafkaNetSocket

from tests.support import kafka_python  # noqa: F401  (what it mends is tried)


class Waiting:
    """A loop of kafka-python's in which a socket never becomes writable."""

    class _Forever:
        def __await__(self) -> Iterator[None]:
            while True:
                yield

    def wait_write(self, _sock: socket.socket, timeout_at: float | None = None) -> Waiting._Forever:
        return self._Forever()


class Pending(socket.socket):
    """A socket whose connection is under way, or refused."""

    code = 115

    def connect_ex(self, _address: object) -> int:
        return self.code


@pytest.fixture
def sock() -> Iterator[Pending]:
    with Pending() as made:
        yield made


def test_a_socket_is_closed_when_its_client_closes_while_it_connects(sock: Pending) -> None:
    connecting = KafkaNetSocket().sock_connect(Waiting(), sock, ("127.0.0.1", 1))
    connecting.send(None)
    assert sock.fileno() >= 0
    connecting.close()
    assert sock.fileno() == -1


def test_a_socket_is_closed_when_its_connection_is_refused(sock: Pending) -> None:
    sock.code = 111
    with pytest.raises(Exception, match="ECONNREFUSED"):
        KafkaNetSocket().sock_connect(Waiting(), sock, ("127.0.0.1", 1)).send(None)
    assert sock.fileno() == -1
