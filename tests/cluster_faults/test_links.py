"""The proxies between the nodes of a cluster under faults."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.faulty_cluster import links
from tests.support.faulty_cluster.links import Links
from tests.support.kraft_node import wait_until

LIMIT_S = 60.0


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that sends back what it gets from each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.sendall(client.recv(100))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def ask(port: int) -> bytes:
    """Send a few bytes; return the bytes that come back."""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
        client.sendall(b"question")
        return client.recv(100)


def test_a_proxy_continues_after_an_accept_that_failed(echo_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Links(dict) as proxies:
        left, accept = [errno.EMFILE, errno.ECONNABORTED], proxies._loop.sock_accept

        async def fail_first(server: socket.socket) -> tuple[socket.socket, object]:
            if left:
                code = left.pop()
                raise OSError(code, os.strerror(code))
            return await accept(server)

        monkeypatch.setattr(proxies._loop, "sock_accept", fail_first)
        assert ask(proxies.add("1", echo_port)) == b"question"
        assert left == []
        assert len(proxies.failures) == 2


def test_connections_with_the_same_port_have_different_owners(echo_port: int) -> None:
    """The kernel gives one local port to connections to several targets: cuts had reached other brokers' instead."""
    here = {os.getpid(): "client"}
    with socket.create_server(("127.0.0.1", 0)) as elsewhere, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(("127.0.0.1", 0))  # of a port that connect() chose the kernel may refuse a second use
            client.connect(("127.0.0.1", echo_port))
            local = client.getsockname()[1]
            assert links.owner(local, elsewhere.getsockname()[1], here) == ""
            other.bind(("127.0.0.1", local))
            other.connect(elsewhere.getsockname())
            found = [links.inode_of(local, port) for port in (echo_port, elsewhere.getsockname()[1])]
            assert found == [os.fstat(client.fileno()).st_ino, os.fstat(other.fileno()).st_ino]
            assert links.owner(local, echo_port, here) == "client"
            client.sendall(b"question")


def test_the_owner_of_a_javas_connection_is_found(echo_port: int) -> None:
    """A socket of both families that is connected to an IPv4 address, as the JVM opens them."""
    with socket.socket(socket.AF_INET6) as client:
        client.connect(("::ffff:127.0.0.1", echo_port))
        assert links.owner(client.getsockname()[1], echo_port, {os.getpid(): "client"}) == "client"
        client.sendall(b"question")


def test_proxies_that_stood_still_say_so(echo_port: int) -> None:
    with Links(dict) as proxies:
        port = proxies.add("1", echo_port)
        proxies._call(lambda: time.sleep(3 * links.TICK_S))
        assert ask(port) == b"question"
        wait_until(lambda: bool(proxies.failures), "the delay is noted", LIMIT_S)
    assert "the proxies stood still for" in proxies.failures[0]


def test_bytes_of_a_cut_direction_wait(echo_port: int) -> None:
    with Links(lambda: {os.getpid(): "client"}) as proxies:
        port = proxies.add("1", echo_port)
        proxies.cut(("1", "client"))
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
            client.sendall(b"question")
            sent = asyncio.run_coroutine_threadsafe(wait_for_piece(proxies), proxies._loop)
            sent.result(LIMIT_S)
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(100)
            client.settimeout(LIMIT_S)
            proxies.heal()
            assert client.recv(100) == b"question"


async def wait_for_piece(proxies: Links) -> None:
    """Wait until the question has gone over."""
    while not proxies.pieces["client", "1"]:  # noqa: ASYNC110 - a count of another task
        await asyncio.sleep(0.001)
