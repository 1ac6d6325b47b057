"""Stores that change while a broker runs: a good one is taken, any other changes nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.certificates import Certificates, Pair
from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.loop.turn_clock import TurnClock
from tidelog.broker.security.tls.listener import TlsListener
from tidelog.broker.security.tls.listeners import TlsListeners
from tidelog.log.system.time import ManualTime

SUBJECT = "/CN=localhost/O=Tidelog"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


class World:
    """One listener whose keystore is a file that the test replaces."""

    def __init__(self, certificates: Certificates, directory: Path, **texts: str) -> None:
        self.store = directory / "store.pem"
        shutil.copy(certificates.server.pem, self.store)
        self.time = ManualTime()
        loop = asyncio.get_running_loop()
        self.timers = TimerQueue(self.time.monotonic_ms, loop.call_later, TurnClock(self.time.monotonic_ms))
        self.executor = ThreadPoolExecutor(1)
        given = certificates.server_texts(ssl_keystore_location=str(self.store), **texts)
        self.listeners = TlsListeners(["SSL"], given, loop, self.timers, self.executor)
        (self.listener,) = self.listeners._listeners.values()

    def replace(self, pem: bytes) -> None:
        new = self.store.with_suffix(".new")
        new.write_bytes(pem)
        os.replace(new, self.store)

    async def settle(self) -> None:
        """Wait until the reading that was asked for is over."""
        async with asyncio.timeout(20):
            while self.listeners._reading:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.001)

    async def look(self) -> None:
        self.time.advance(10_000)
        self.timers.run_due()
        await self.settle()


@pytest.fixture
async def world(certificates: Certificates, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    world = World(certificates, tmp_path, **getattr(request, "param", {}))
    yield world
    world.listeners.close()
    world.executor.shutdown()


async def test_a_changed_store_is_taken_over(world: World, certificates: Certificates) -> None:
    before = world.listener.context
    await world.look()
    assert world.listener.context is before
    world.replace(certificates.authority.issue("renewed", SUBJECT).pem.read_bytes())
    await world.look()
    assert world.listener.context is not before


async def test_a_signal_reads_it_in_any_case(world: World) -> None:
    before = world.listener.context
    world.listeners.reload()
    await world.settle()
    assert world.listener.context is not before


BAD = ("another subject", "no host name", "half written", "empty", "garbage")


def bad_store(certificates: Certificates, change: str) -> bytes:
    if change == "another subject":
        return certificates.client.pem.read_bytes()
    if change == "no host name":
        return reissued(certificates, "DNS:localhost").pem.read_bytes()
    return {
        "half written": certificates.server.pem.read_bytes()[:300], "empty": b"", "garbage": os.urandom(1000)
    }[change]  # fmt: skip


def reissued(certificates: Certificates, hosts: str) -> Pair:
    return certificates.authority.issue("reissued", SUBJECT, hosts=hosts)


@pytest.mark.parametrize("change", BAD)
async def test_a_store_that_does_not_fit_changes_nothing(
    world: World, certificates: Certificates, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = world.listener.context
    world.replace(bad_store(certificates, change))
    await world.look()
    assert world.listener.context is before
    assert "listener SSL keeps its certificate" in caplog.text
    world.replace(reissued(certificates, "DNS:localhost,IP:127.0.0.1,DNS:more").pem.read_bytes())
    await world.look()
    assert world.listener.context is not before


async def test_a_store_that_is_gone_changes_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    before = world.listener.context
    world.store.unlink()
    await world.look()
    assert world.listener.context is before
    assert "No such file" in caplog.text


@pytest.mark.parametrize("change", ["another subject", "no host name"])
@pytest.mark.parametrize(
    "world", [{"ssl_allow_dn_changes": "true", "ssl_allow_san_changes": "true"}], indirect=True, ids=["allowed"]
)
async def test_what_is_allowed_is_taken(world: World, certificates: Certificates, change: str) -> None:
    before = world.listener.context
    world.replace(bad_store(certificates, change))
    await world.look()
    assert world.listener.context is not before


@pytest.mark.parametrize("world", [{"ssl_store_refresh_ms": "0"}], indirect=True, ids=["0"])
async def test_without_an_interval_files_are_not_looked_at(world: World, certificates: Certificates) -> None:
    before = world.listener.context
    world.replace(certificates.authority.issue("renewed", SUBJECT).pem.read_bytes())
    await world.look()
    assert world.listener.context is before


def test_a_listener_knows_its_own_names(certificates: Certificates) -> None:
    identity = TlsListener("SSL", certificates.server_texts()).prepared.identity
    assert identity.subject == "O=Tidelog,CN=localhost"
    assert identity.host_names == {(0x82, b"localhost"), (0x87, bytes([127, 0, 0, 1]))}
