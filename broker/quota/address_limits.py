"""Limits of connections by address: ``max.connections.per.ip`` and its overrides, which may name hosts.

A host name stands for all addresses that it has when the key is set; in Kafka, for the first of them. A thread resolves
it; until then, and if it cannot be resolved, its addresses have the usual limit. Kafka does not start with a name that
it cannot resolve. Loop thread only.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.loop.deferred import Deferred

if TYPE_CHECKING:
    from tidelog.broker.config.broker_config import BrokerConfig

logger = logging.getLogger(__name__)

OVERRIDES = "max.connections.per.ip.overrides"

Limits = dict[str, int]
"""Address in the spelling that sockets have -> the most connections from it."""
Resolve = Callable[[Callable[[], Limits]], Deferred[Limits]]
"""Function that runs work in a thread and returns a Deferred of its result."""


class AddressLimits:
    """The limits that the configuration has now."""

    __slots__ = ("_config", "_in_thread", "_limits", "_text")

    def __init__(self, config: BrokerConfig, in_thread: Resolve) -> None:
        self._config = config
        self._in_thread = in_thread
        self._limits: Limits = {}
        self._text = ""
        """Value of the overrides for which ``_limits`` holds."""
        self._refresh()

    def limit_for(self, host: str) -> int:
        """Return the most connections that an address may have."""
        self._refresh()
        limit = self._limits.get(host)
        return self._config.get_int("max.connections.per.ip") if limit is None else limit

    def _refresh(self) -> None:
        """Take over the overrides if they have changed, and begin to resolve the host names among them."""
        text = self._config.get_str(OVERRIDES)
        if text == self._text:
            return
        self._text = text
        self._limits, names = parse_limits(text)
        if names:
            self._in_thread(partial(resolve_names, names)).on_done(partial(self._add, text))

    def _add(self, text: str, resolved: Deferred[Limits]) -> None:
        """Add the addresses of host names, unless the overrides have changed meanwhile."""
        if resolved.has_value and text == self._text:
            self._limits = {**resolved.result(), **self._limits}


def parse_limits(text: str) -> tuple[Limits, Limits]:
    """Parse the overrides: return the limits of addresses, and those of host names."""
    from tidelog.broker.security.client_address import is_address, to_canonical_address  # few brokers have overrides

    addresses: Limits = {}
    names: Limits = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        host, _, count = entry.rpartition(":")
        (addresses if is_address(host) else names)[to_canonical_address(host)] = int(count)
    return addresses, names


def resolve_names(names: Mapping[str, int]) -> Limits:
    """Resolve host names, and return the limits of their addresses. Any thread: this may wait for a name server."""
    from tidelog.broker.security.client_address import to_canonical_address

    limits: Limits = {}
    for name, count in names.items():
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            logger.warning("%s: %s has no limit of its own, since it cannot be resolved: %s", OVERRIDES, name, error)
            continue
        limits.update((to_canonical_address(str(address[0])), count) for *_, address in found)
    return limits
