"""The entrance of a broker: accepted sockets are counted, refused or held, and become connections.

    plaintext listener   socket -> Connection
    TLS listener         socket -> handshake in a thread -> Connection with an encrypting transport and a principal
    SASL listener        as a plaintext or TLS listener; a gate (``network.authentication``) answers the Connection's
                         frames until the client has authenticated

Nothing of TLS or SASL is imported while no listener asks for it. Loop thread only.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.admin.login.access import LISTENER, check_access
from tidelog.broker.broker import Broker
from tidelog.broker.config.broker_config import PLAIN_PROTOCOLS, SASL_PROTOCOLS, BrokerConfig, Endpoint
from tidelog.broker.config.keys.admin import ADMIN_LISTENER, SCHEMA_REGISTRY_LISTENER
from tidelog.broker.loop.threads import run_in_thread
from tidelog.broker.loop.timers import Timer
from tidelog.broker.network.connection import Connection
from tidelog.broker.network.listening import set_buffers, to_plain_address
from tidelog.broker.network.shell import Shell
from tidelog.broker.network.transport import PlainSocket, Transport
from tidelog.broker.quota.address_limits import AddressLimits
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.policy import find_weaknesses
from tidelog.broker.security.principal import ANONYMOUS, Principal
from tidelog.protocol.config_def import ConfigError

if TYPE_CHECKING:
    from tidelog.broker.network.authentication import Authentication
    from tidelog.broker.security.tls.listeners import TlsListeners

logger = logging.getLogger(__name__)


class Entrance:
    """Entrance of all listeners; ``on_left`` is called when a connection has ended, or a TLS handshake has failed."""

    def __init__(self, broker: Broker, shell: Shell, on_left: Callable[[], None]) -> None:
        """Raises ConfigError for security settings or store files that cannot be used."""
        self._broker = broker
        self._config: BrokerConfig = broker.config
        self._shell = shell
        self._on_left = on_left
        self._per_ip: Counter[str] = Counter()
        self._limits = AddressLimits(
            broker.config, partial(run_in_thread, broker.loop, broker.executor, turns=broker.timers.turns)
        )
        self._held: dict[socket.socket, Timer] = {}
        """Connections over the quota of their address, which are closed after a wait, with the timers that do it."""
        self._tls = build_tls(broker)
        if self._tls is not None:
            broker.configs.stores.watch(self._tls)
            broker.metrics.add_source(self._tls.samples)
        warn_of_weaknesses(self._config)
        self._sasl = build_sasl(broker)
        if self._sasl is not None:
            self._sasl.begin()

    def has_room(self) -> bool:
        """Return whether one more connection may be accepted."""
        waiting = 0 if self._tls is None else len(self._tls.handshakes)
        is_full = self._tls is not None and self._tls.handshakes.is_full
        return not is_full and len(self._shell.connections) + waiting < self._config.get_int("max.connections")

    def count(self) -> int:
        """Return the number of connections, handshakes and held connections, which have a descriptor each."""
        return len(self._shell.connections) + len(self._held) + (0 if self._tls is None else len(self._tls.handshakes))

    def make_room(self) -> bool:
        """Close a connection that is held, else a handshake that waits for its client, else a connection that
        ``Shell.make_room`` chooses; return whether there was one."""
        if self._held:
            self._end_held(next(iter(self._held)))
            return True
        return (self._tls is not None and self._tls.handshakes.make_room()) or self._shell.make_room()

    def admit(self, endpoint: Endpoint, client: socket.socket, host: str) -> None:
        """Take over a new connection, unless its address has too many already, or opens them too fast."""
        if self._per_ip[host] >= self._limits.limit_for(host):
            logger.info("refusing a connection from %s, which has %d: max.connections.per.ip", host, self._per_ip[host])
            client.close()
            return
        quotas = self._broker.services.quotas.made
        if quotas is not None and (hold_ms := quotas.record_connection(host)):
            logger.info(
                "holding a connection from %s for %d ms, over its quota connection_creation_rate", host, hold_ms
            )
            # If it were closed now, its client would connect again at once.
            self._held[client] = self._broker.timers.schedule(hold_ms, partial(self._end_held, client))
            return
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            local, port = client.getsockname(), client.getpeername()[1]
        except OSError:
            client.close()
            return
        set_buffers(client, self._config)
        self._per_ip[host] += 1
        context = RequestContext(
            client_host=host, client_port=port, local_host=to_plain_address(local[0]), local_port=local[1],
            listener_name=endpoint.listener_name,
        )  # fmt: skip
        if endpoint.security_protocol in PLAIN_PROTOCOLS:
            self._connect(context, PlainSocket(client), ANONYMOUS)
            return
        assert self._tls is not None
        self._tls.begin(
            client,
            endpoint.listener_name,
            host,
            on_ready=partial(self._connect, context),
            on_failed=partial(self._release, host),
        )

    def _end_held(self, client: socket.socket) -> None:
        self._held.pop(client).cancel()
        client.close()

    def _connect(self, context: RequestContext, transport: Transport, principal: Principal) -> None:
        context.principal = principal
        connection = Connection(self._shell, transport, context)
        if self._sasl is not None:
            self._sasl.watch(connection)

    def connection_closed(self, connection: Connection) -> None:
        """Stop counting a connection that has ended."""
        self._release(connection.context.client_host)

    def _release(self, host: str) -> None:
        self._per_ip[host] -= 1
        if not self._per_ip[host]:
            del self._per_ip[host]
        self._on_left()

    def close(self) -> None:
        """Close held connections, and end handshakes and the threads of TLS and SASL."""
        for client in list(self._held):
            self._end_held(client)
        if self._tls is not None:
            self._tls.close()
        if self._sasl is not None:
            self._sasl.close()

    def reload_stores(self) -> None:
        """Read keystores and truststores again, as the operator has asked for it."""
        if self._tls is not None:
            self._tls.reload()


def build_tls(broker: Broker) -> TlsListeners | None:
    """Build the listeners that encrypt; return None if there is none. Raises ConfigError."""
    names = tls_listener_names(broker.config.listeners)
    if not names:
        return None
    from tidelog.broker.security.tls.listeners import TlsListeners

    config, parts = broker.config, (broker.loop, broker.timers, broker.executor)
    try:
        return TlsListeners(names, config.listener_texts(), *parts)
    except ConfigError as error:  # of a store that kafka-configs has set
        logger.error("stores set by kafka-configs cannot be used; those of the configuration file are used: %s", error)
        return TlsListeners(names, config.listener_texts_with({}), *parts)


def tls_listener_names(endpoints: Iterable[Endpoint]) -> list[str]:
    """Return the names of the listeners that encrypt."""
    return [endpoint.listener_name for endpoint in endpoints if endpoint.security_protocol not in PLAIN_PROTOCOLS]


def warn_of_weaknesses(config: BrokerConfig) -> None:
    """Log weak settings of the listeners and of the HTTP interfaces. Raises ConfigError."""
    for finding in find_weaknesses(config):
        logger.warning("%s", finding)


def build_sasl(broker: Broker) -> Authentication | None:
    """Build the listeners that authenticate; return None if there is none. Raises ConfigError."""
    names = [one.listener_name for one in broker.config.listeners if one.security_protocol in SASL_PROTOCOLS]
    if not names:
        return None
    from tidelog.broker.network.authentication import Authentication

    return Authentication(broker, names)


def check_security(config: BrokerConfig) -> None:
    """Check the security settings of listeners and HTTP interfaces, before a start locks or writes any file.

    Reads the store files, like the parts that use them later. Raises ConfigError.
    """
    texts = config.listener_texts()
    encrypted = {
        one.listener_name: texts for one in config.listeners if one.security_protocol not in PLAIN_PROTOCOLS
    }  # fmt: skip
    for interface in (ADMIN_LISTENER, SCHEMA_REGISTRY_LISTENER):
        if interface_texts := check_access(config, interface):
            encrypted[LISTENER] = dict(interface_texts)  # both interfaces have the same stores
    if encrypted:
        from tidelog.broker.security.tls.listener import TlsListener

        for name, given in encrypted.items():
            TlsListener(name, given)
    authenticating = [one for one in config.listeners if one.security_protocol in SASL_PROTOCOLS]
    if authenticating:
        from tidelog.broker.security.sasl.listener import check_listener

        for endpoint in authenticating:
            check_listener(endpoint, texts)
