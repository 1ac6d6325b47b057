"""The listener of an HTTP interface: a bound socket, and nothing else until the first connection.

The same class serves the admin interface and the schema registry, each by its own key. ``admin.listener`` gives the
admin interface's address (empty: no interface). Its default is a port of the loopback address, or any free port if that
one is taken, so two brokers on one machine need no settings. DescribeConfigs returns the address that was chosen, so a
client of the broker can find it.
The HTTP library is imported in a thread when the first connection waits in the socket's queue: until then the broker
starts as fast, and takes as little memory, as without it. Loop thread only.
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import logging
import os
import socket
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.config.keys.admin import ADMIN_LISTENER, SCHEMA_REGISTRY_LISTENER
from tidelog.log.records.quiet_import import quiet_import
from tidelog.protocol.config_def import ConfigError

if TYPE_CHECKING:
    from aiohttp.web import AppRunner

    from tidelog.broker.broker import Broker
    from tidelog.broker.config.broker_config import BrokerConfig

logger = logging.getLogger(__name__)

BACKLOG = 64


class Interface(NamedTuple):
    """An HTTP interface: its configuration key, its name in log lines, and the module whose ``serve`` takes over the
    socket."""

    key: str
    name: str
    app: str


ADMIN = Interface(ADMIN_LISTENER, "admin interface", "tidelog.broker.admin.app")


class AdminListener:
    """HTTP server of one interface, on a port of its own."""

    def __init__(self, broker: Broker, interface: Interface = ADMIN) -> None:
        self._broker = broker
        self._interface = interface
        self._socket: socket.socket | None = None
        self._start: asyncio.Task[None] | None = None
        self._runner: AppRunner | None = None

    def open(self) -> str | None:
        """Bind and listen. Returns HOST:PORT, or None if the key has no address. Raises OSError if the address cannot
        be bound."""
        text = self._broker.config.get_str(self._interface.key)
        if not text:
            return None
        host, _, port = text.rpartition(":")
        listener = self._listen(host, int(port))
        listener.setblocking(False)
        self._socket = listener
        address = f"{host}:{listener.getsockname()[1]}"
        self._broker.config.settle(self._interface.key, address)
        self._broker.loop.add_reader(listener.fileno(), self._start_serving)
        return address

    def _listen(self, host: str, port: int) -> socket.socket:
        """Listen on the port, or on any free one if the port is the default and is taken. Raises OSError."""
        is_default = self._interface.key not in self._broker.config.static_texts
        if is_default and port in given_ports(self._broker.config):
            port = 0
        try:
            return _listen(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not is_default:
                raise _listen_error(self._interface.key, f"{host}:{port}", error) from error
            return _listen(host, 0)

    def _start_serving(self) -> None:
        assert self._socket is not None
        self._broker.loop.remove_reader(self._socket.fileno())
        self._start = self._broker.loop.create_task(self._serve())

    async def _serve(self) -> None:
        try:
            module = await self._broker.loop.run_in_executor(None, _import_app, self._interface.app)
            self._runner = await module.serve(self._broker, self._socket)
        except ImportError as error:
            self._give_up(f"a module cannot be imported (is aiohttp installed?): {error}")
            return
        except ConfigError as error:  # a store or a file of keys was changed since the start
            self._give_up(str(error))
            return
        except Exception as error:  # noqa: BLE001 - logged; an open socket would accept connections, and answer none
            text = str(error)
            self._give_up(type(error).__name__ + (f": {text}" if text else ""))
            return
        logger.info("the %s serves on %s", self._interface.name, self._broker.config.get_str(self._interface.key))

    def _give_up(self, reason: str) -> None:
        """Close the socket: all connections are refused until the broker is restarted."""
        logger.error("the %s is not available until the broker is restarted: %s", self._interface.name, reason)
        assert self._socket is not None
        self._socket.close()
        self._socket = None

    async def close(self) -> None:
        """Stop serving. Requests in progress are cut off after a second."""
        if self._start is not None:
            await self._start
        if self._runner is not None:
            await self._runner.cleanup()
        elif self._socket is not None:
            self._broker.loop.remove_reader(self._socket.fileno())
            self._socket.close()


def given_ports(config: BrokerConfig) -> set[int]:
    """Return the ports that the configuration gives to Kafka listeners and to the schema registry."""
    registry = config.get_str(SCHEMA_REGISTRY_LISTENER).rpartition(":")[2]
    return {endpoint.port for endpoint in config.listeners} | ({int(registry)} if registry else set())


def check_addresses(config: BrokerConfig) -> None:
    """Check that the configured ports of HTTP interfaces are free, before anything is written to disk. Raises
    OSError.
    """
    for key in (ADMIN_LISTENER, SCHEMA_REGISTRY_LISTENER):
        host, _, port = config.get_str(key).rpartition(":")
        if key in config.static_texts and port not in ("", "0"):
            try:
                _listen(host, int(port)).close()
            except OSError as error:
                raise _listen_error(key, f"{host}:{port}", error) from error


def _listen_error(key: str, address: str, error: OSError) -> OSError:
    """Build the error for an address that cannot be bound; it names the key."""
    is_unknown_name = isinstance(error, socket.gaierror) or error.errno is None
    reason = error.strerror if is_unknown_name else os.strerror(error.errno or 0)
    return OSError(f"cannot listen on {address} ({key}): {reason}")


def _listen(host: str, port: int) -> socket.socket:
    return socket.create_server((host.strip("[]"), port), family=_family(host), backlog=BACKLOG)


def _import_app(name: str) -> ModuleType:
    with quiet_import():
        return importlib.import_module(name)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
