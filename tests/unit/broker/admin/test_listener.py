"""The address of the admin interface: another port replaces the default one if that is taken, but never a configured
one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.admin import listener as admin_listener
from tidelog.broker.admin.listener import AdminListener
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.keys.admin import ADMIN_LISTENER, SCHEMA_REGISTRY_LISTENER
from tidelog.protocol.config_def import ConfigError


async def bound_address(texts: Mapping[str, str]) -> str | None:
    """Return the address that an admin listener with this configuration binds; it is closed again."""
    config = BrokerConfig(texts)
    broker = SimpleNamespace(config=config, loop=asyncio.get_running_loop())
    listener = AdminListener(cast(Any, broker))
    address = listener.open()
    assert address is None or config.get_str(ADMIN_LISTENER) == address
    await listener.close()
    return address


async def test_a_second_broker_on_a_machine_takes_another_port(monkeypatch: pytest.MonkeyPatch) -> None:
    listen = socket.create_server

    def taken(address: tuple[str, int], **options: Any) -> socket.socket:
        if address[1]:
            raise OSError(errno.EADDRINUSE, "in use")
        return listen(address, **options)

    monkeypatch.setattr(socket, "create_server", taken)
    address = await bound_address({})
    assert address is not None
    assert address.startswith("127.0.0.1:")
    assert not address.endswith(":9644")
    with pytest.raises(OSError, match="in use"):
        await bound_address({ADMIN_LISTENER: "127.0.0.1:9644"})


@pytest.mark.parametrize(
    "texts",
    [
        {"listeners": "PLAINTEXT://127.0.0.1:9644"},
        {
            "listeners": "PLAINTEXT://:9092,OTHER://:9644",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        },
        {SCHEMA_REGISTRY_LISTENER: "127.0.0.1:9644"},
    ],
)
async def test_the_default_leaves_a_port_that_the_broker_was_given_for_something_else(
    monkeypatch: pytest.MonkeyPatch, texts: Mapping[str, str]
) -> None:
    """The interface opens first, and the broker's own listener then found its port taken."""
    asked = []
    listen = socket.create_server

    def create_server(address: tuple[str, int], **options: Any) -> socket.socket:
        asked.append(address[1])
        return listen((address[0], 0), **options)

    monkeypatch.setattr(socket, "create_server", create_server)
    await bound_address(texts)
    await bound_address({})
    assert asked == [0, 9644]


async def test_an_empty_address_opens_no_listener() -> None:
    assert await bound_address({ADMIN_LISTENER: ""}) is None


@pytest.mark.parametrize("is_imported", [True, False])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConfigError("admin.ssl.keystore.location: no such file"), "admin.ssl.keystore.location: no such file"),
        (ImportError("aiohttp"), "a module cannot be imported (is aiohttp installed?): aiohttp"),
        (OSError(errno.EMFILE, "Too many open files"), "OSError: [Errno 24] Too many open files"),
        (MemoryError(), "MemoryError"),
    ],
)
async def test_an_interface_that_cannot_start_refuses_connections_and_ends_cleanly(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    reason: str,
    *,
    is_imported: bool,
) -> None:
    """After an import that found no free descriptor, connections were accepted and never answered."""

    async def serve(*_: object) -> None:
        raise error

    def import_app(_name: str) -> SimpleNamespace:
        if not is_imported:
            raise error
        return SimpleNamespace(serve=serve)

    monkeypatch.setattr(admin_listener, "_import_app", import_app)
    loop = asyncio.get_running_loop()
    broker = SimpleNamespace(config=BrokerConfig({ADMIN_LISTENER: "127.0.0.1:0"}), loop=loop)
    listener = AdminListener(cast(Any, broker))
    address = listener.open()
    assert address is not None
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))
    await listener.close()
    assert f"the admin interface is not available until the broker is restarted: {reason}" in caplog.text
