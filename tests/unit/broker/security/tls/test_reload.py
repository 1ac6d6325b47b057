"""Stores that change while a broker runs: a valid one is loaded, an invalid one changes nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import time
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
from tidelog.protocol.config_def import ConfigError

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
        self.given = given
        self.now_s = time.time()
        self.listeners = TlsListeners(["SSL"], given, loop, self.timers, self.executor, lambda: self.now_s)
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


async def test_only_a_changed_certificate_is_logged_as_new(
    world: World, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world.listeners.reload()
    await world.settle()
    assert not [line for line in caplog.messages if "new certificate" in line or "certificate changed" in line]
    assert "listener SSL has read its stores again" in caplog.messages
    world.replace(certificates.authority.issue("renewed", SUBJECT).pem.read_bytes())
    world.listeners.reload()
    world.listeners.take_over(world.given)  # as keys that were set: asked while the store is being read
    await world.settle()
    assert len([line for line in caplog.messages if "has a new certificate" in line]) == 1
    assert len([line for line in caplog.messages if "certificate changed" in line]) == 1


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


async def test_a_removed_key_store_leaves_the_context_and_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
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
async def test_an_allowed_change_of_the_store_is_loaded(world: World, certificates: Certificates, change: str) -> None:
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


def set_keys(world: World, **texts: str) -> dict[str, str]:
    """Return the keys of the listener as they are with these set for it alone."""
    return world.given | {f"listener.name.ssl.{key.replace('_', '.')}": text for key, text in texts.items()}


async def test_stores_that_are_set_are_checked_and_taken_over(world: World, certificates: Certificates) -> None:
    before = world.listener.context
    pair = certificates.authority.issue("dynamic", SUBJECT)
    texts = set_keys(world, ssl_keystore_location=str(pair.pem))
    world.listeners.check(texts, {"ssl"})()
    assert world.listener.context is before  # a check alone changes nothing
    world.listeners.take_over(texts)
    await world.settle()
    assert world.listener.context is not before
    assert world.listener.values["ssl.keystore.location"] == str(pair.pem)
    world.listeners.take_over(world.given)  # deleted again
    await world.settle()
    assert world.listener.values["ssl.keystore.location"] == str(world.store)


async def test_keys_that_are_set_while_a_store_is_read_are_not_forgotten(
    world: World, certificates: Certificates
) -> None:
    world.listeners.reload()
    pair = certificates.authority.issue("meanwhile", SUBJECT)
    world.listeners.take_over(set_keys(world, ssl_keystore_location=str(pair.pem)))
    await world.settle()
    assert world.listener.values["ssl.keystore.location"] == str(pair.pem)


@pytest.mark.parametrize("texts", [{"ssl_keystore_location": "/nonexistent.pem"}, {"ssl_keystore_type": "PKCS12"},
                                   {"ssl_keystore_key": "x", "ssl_keystore_certificate_chain": "y"}])  # fmt: skip
async def test_stores_that_cannot_be_used_are_refused_and_change_nothing(
    world: World, texts: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    before = world.listener.prepared
    wanted = set_keys(world, **texts)
    with pytest.raises(ConfigError):
        world.listeners.check(wanted, {"ssl"})()
    world.listeners.take_over(wanted)
    await world.settle()
    assert world.listener.prepared is before
    assert "keeps its certificate" in caplog.text


async def test_a_broken_store_of_one_listener_does_not_keep_another_from_its_new_one(
    world: World, certificates: Certificates
) -> None:
    texts = set_keys(world, ssl_keystore_location=str(certificates.server.pem))
    listeners = TlsListeners(
        ["SSL", "OTHER"], texts, asyncio.get_running_loop(), world.timers, world.executor, lambda: world.now_s
    )
    world.store.unlink()  # that of OTHER
    pair = certificates.authority.issue("renewed", SUBJECT)
    try:
        listeners.check(set_keys(world, ssl_keystore_location=str(pair.pem)), {"ssl"})()
        with pytest.raises(ConfigError):
            listeners.check(texts, {"other"})()
    finally:
        listeners.close()


async def test_a_certificate_of_another_subject_is_refused(world: World, certificates: Certificates) -> None:
    other = certificates.authority.issue("other", "/CN=other")
    with pytest.raises(ConfigError, match="CN=other"):
        world.listeners.check(set_keys(world, ssl_keystore_location=str(other.pem)), {"ssl"})()


@pytest.mark.parametrize(("days", "message"), [(40, None), (29, r"ends in 2[89] days"), (-1, "has expired")])
async def test_a_certificate_that_ends_soon_is_warned_of_each_day(
    world: World, certificates: Certificates, caplog: pytest.LogCaptureFixture, days: int, message: str | None
) -> None:
    pair = certificates.authority.issue("ending", SUBJECT, days=days)
    world.replace(pair.pem.read_bytes())
    for _ in range(2):
        caplog.clear()
        world.time.advance(86_400_000)
        world.timers.run_due()
        await world.settle()
    lines = [line for line in caplog.messages if "the certificate of listener SSL" in line]
    assert len(lines) == (message is not None)
    assert message is None or re.search(message, lines[0])
    (sample,) = world.listeners.samples()
    assert abs(sample.value - (world.now_s + days * 86_400)) < 3_600


async def test_a_look_without_a_thread_is_not_the_last(
    world: World, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """The listener counted as being read, and its stores were read no more."""
    before = world.listener.context
    without = ThreadPoolExecutor(1)
    without.shutdown()
    world.listeners._executor = without
    world.replace(certificates.authority.issue("renewed", SUBJECT, hosts="DNS:localhost,IP:127.0.0.1").pem.read_bytes())
    await world.look()
    assert "listener SSL keeps its certificate: cannot schedule new futures" in caplog.text
    world.listeners._executor = world.executor
    await world.look()
    assert world.listener.context is not before
