"""TLS handshakes: completed, refused, abandoned, too slow, too many; on a real loop, with the test's clock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.certificates import Certificates
from tests.support.tls import client_context
from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.loop.turn_clock import TurnClock
from tidelog.broker.security.principal import ANONYMOUS, Principal
from tidelog.broker.security.tls import handshakes as module
from tidelog.broker.security.tls.handshakes import DEADLINE_MS, Handshakes
from tidelog.broker.security.tls.listener import TlsListener
from tidelog.broker.security.tls.tls_socket import TlsSocket
from tidelog.log.system.time import ManualTime


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


class World:
    """Handshakes, and what became of them."""

    def __init__(self) -> None:
        self.time = ManualTime()
        self.loop = asyncio.get_running_loop()
        self.timers = TimerQueue(self.time.monotonic_ms, self.loop.call_later, TurnClock(self.time.monotonic_ms))
        self.handshakes = Handshakes(self.loop, self.timers)
        self.ready: list[tuple[TlsSocket, Principal]] = []
        self.failed = 0
        self.clients: list[socket.socket] = []

    def connect(self, listener: TlsListener, host: str = "10.0.0.9") -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.settimeout(20)
        self.clients.append(theirs)
        self.handshakes.begin(ours, listener, host, on_ready=self._on_ready, on_failed=self._on_failed)
        return theirs

    def _on_ready(self, transport: TlsSocket, principal: Principal) -> None:
        self.ready.append((transport, principal))

    def _on_failed(self) -> None:
        self.failed += 1

    async def until_settled(self, count: int) -> None:
        """Wait until so many ended; refusals close later, so the clock moves on."""
        async with asyncio.timeout(20):
            while len(self.ready) + self.failed < count:
                self.time.advance(module.CLOSE_DELAY_MS)
                self.timers.run_due()
                await asyncio.sleep(0.001)

    def close(self) -> None:
        self.handshakes.close()
        for transport, _ in self.ready:
            transport.close()
        for client in self.clients:
            client.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    world.close()
    assert not len(world.handshakes)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - a state of another thread
            await asyncio.sleep(0.001)


def listener_of(certificates: Certificates, **texts: str) -> TlsListener:
    return TlsListener("SSL", certificates.server_texts(**texts))


def shake(sock: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Shake hands as the client, in a thread; it reads once, since TLS 1.3 judges clients after the handshake."""
    wrapped = context.wrap_socket(sock, server_hostname="localhost", do_handshake_on_connect=False)
    with contextlib.suppress(OSError):
        wrapped.do_handshake()
    return wrapped


async def test_a_handshake_ends_in_a_transport_and_a_principal(world: World, certificates: Certificates) -> None:
    listener = listener_of(
        certificates, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=(.*?),.*$/$1/"
    )
    context = client_context(certificates.authority.certificate)
    context.load_cert_chain(certificates.client.pem)
    client = asyncio.to_thread(shake, world.connect(listener), context)
    wrapped, _ = await asyncio.gather(client, world.until_settled(1))
    assert [principal for _, principal in world.ready] == [Principal("User", "ann")]
    wrapped.close()


async def test_without_a_certificate_a_client_is_anonymous(world: World, certificates: Certificates) -> None:
    listener = listener_of(certificates, ssl_client_auth="requested")
    client = asyncio.to_thread(shake, world.connect(listener), client_context(certificates.authority.certificate))
    wrapped, _ = await asyncio.gather(client, world.until_settled(1))
    assert [principal for _, principal in world.ready] == [ANONYMOUS]
    wrapped.close()


@pytest.mark.parametrize("refused", ["no certificate", "a stranger's", "no rule"])
async def test_a_refused_client_reads_why(
    world: World, certificates: Certificates, refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rules = "RULE:^CN=nobody-else$/x/" if refused == "no rule" else "DEFAULT"
    listener = listener_of(certificates, ssl_client_auth="required", ssl_principal_mapping_rules=rules)
    context = client_context(certificates.authority.certificate)
    if refused != "no certificate":
        context.load_cert_chain((certificates.stranger if refused == "a stranger's" else certificates.client).pem)
    client = asyncio.to_thread(shake, world.connect(listener), context)
    wrapped, _ = await asyncio.gather(client, world.until_settled(1))
    assert world.failed == 1
    assert "closing the connection of 10.0.0.9" in caplog.text
    if refused != "no rule":
        with pytest.raises(ssl.SSLError, match="ALERT"):
            await asyncio.to_thread(wrapped.recv, 1)
    wrapped.close()


@pytest.mark.parametrize("sent", [b"\0\0\0\x0a" + bytes(10), b"GET / HTTP/1.1\r\n\r\n", b""])
async def test_a_connection_that_is_not_tls_is_closed_at_once(
    world: World, certificates: Certificates, sent: bytes
) -> None:
    client = world.connect(listener_of(certificates))
    client.sendall(sent)
    client.shutdown(socket.SHUT_WR)
    await world.until_settled(1)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.to_thread(client.recv, 1) == b""


async def test_garbage_in_a_handshake_is_refused(world: World, certificates: Certificates) -> None:
    listener = listener_of(certificates)
    for size in range(1, 40):
        client = world.connect(listener)
        client.sendall(b"\x16\x03\x01\x00\x20" + bytes(range(size)))
        client.shutdown(socket.SHUT_WR)
    await world.until_settled(39)
    assert world.failed == 39


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
async def test_half_a_handshake_is_closed_at_the_deadline(
    world: World, certificates: Certificates, sent: bytes
) -> None:
    client = world.connect(listener_of(certificates))
    client.sendall(sent)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert len(world.handshakes) == 1
    world.time.advance(DEADLINE_MS)
    world.timers.run_due()
    await world.until_settled(1)
    assert world.failed == 1


async def test_the_oldest_handshake_is_closed_for_a_new_one(world: World, certificates: Certificates) -> None:
    listener = listener_of(certificates)
    first, second = world.connect(listener), world.connect(listener)
    assert world.handshakes.make_room()
    assert await asyncio.to_thread(first.recv, 1) == b""
    second.setblocking(False)
    with pytest.raises(BlockingIOError):
        second.recv(1)
    assert world.handshakes.make_room()
    assert not world.handshakes.make_room()


async def test_a_network_of_ipv6_is_one_address(
    world: World, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client has all the addresses of 64 bits: it must not close the handshakes of others by them."""
    monkeypatch.setattr(module, "MAX_PER_HOST", 2)
    listener = listener_of(certificates)
    for host in ("10.0.0.1", *(f"2001:db8::{number}" for number in range(1, 5))):
        world.connect(listener, host=host)
    assert len(world.handshakes) == 3


async def test_incomplete_handshakes_are_closed_for_complete_ones(
    world: World, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slowloris: no client waits for the deadline of strangers, and those of its own address go first."""
    monkeypatch.setattr(module, "MAX_HANDSHAKES", 8)
    monkeypatch.setattr(module, "MAX_PER_HOST", 4)
    listener = listener_of(certificates)
    others = [world.connect(listener, host="10.0.0.1") for _ in range(2)]
    for _ in range(20):
        world.connect(listener).sendall(b"\x16\x03\x01\x02\x00\x01")
    assert len(world.handshakes) == 6
    for number in range(20):
        world.connect(listener, host=f"10.0.1.{number}")
    assert len(world.handshakes) == 8
    assert [await asyncio.to_thread(other.recv, 1) for other in others] == [b"", b""]  # the oldest of all
    assert not world.handshakes.is_full
    client = asyncio.to_thread(
        shake, world.connect(listener, host="10.0.0.2"), client_context(certificates.authority.certificate)
    )
    shaken = asyncio.create_task(client)
    await wait_until(lambda: bool(world.ready))
    (await shaken).close()


async def test_handshakes_that_wait_for_the_thread_leave_the_next_clients_in_the_backlog(
    world: World, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_HANDSHAKES", 2)
    gate = threading.Event()
    world.handshakes.executor.submit(gate.wait)
    listener = listener_of(certificates)
    for number in range(2):
        assert not world.handshakes.is_full
        world.connect(listener, host=f"10.0.0.{number}").sendall(b"\x16\x03\x01\x00\x01x")
        await wait_until(lambda number=number: world.handshakes.in_thread > number)  # type: ignore[misc]
    assert world.handshakes.is_full
    gate.set()
    await world.until_settled(2)
    assert not world.handshakes.is_full


async def test_a_handshake_that_gets_no_thread_ends(
    world: World, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """It counted as one in the thread, and neither its deadline nor the broker's end closed it."""
    caplog.set_level(logging.INFO)
    world.handshakes.executor.shutdown()
    world.connect(listener_of(certificates)).send(b"\x16\x03\x01")
    await world.until_settled(1)
    assert "no thread can be started for its TLS handshake" in caplog.text
    assert (world.failed, world.handshakes.in_thread) == (1, 0)
