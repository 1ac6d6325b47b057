"""The sockets that a broker listens on, with the sizes of their queues and buffers."""

from __future__ import annotations

import errno
import socket

from tidelog.broker.config.broker_config import BrokerConfig, Endpoint

_MAPPED_IPV4 = "::ffff:"


def to_plain_address(address: str) -> str:
    """Return the address of one end of a connection as text: of IPv4 in its own form, also on a socket for IPv4 and
    IPv6, where it has a prefix. Limits, quotas and ACLs name it so."""
    rest = address.removeprefix(_MAPPED_IPV4)
    return rest if "." in rest and ":" not in rest else address


def open_listener(endpoint: Endpoint, config: BrokerConfig) -> socket.socket:
    """Open a listening, non-blocking socket for an endpoint. Raises OSError."""
    any_host = not endpoint.host
    host = endpoint.host or ("::" if has_ipv6() else "0.0.0.0")
    name = host.encode() if host.isascii() else host  # a str would load the tables of the IDNA codec
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            name, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise OSError(f"cannot listen on {endpoint}: {error.strerror}") from error
    except UnicodeError as error:
        raise OSError(f"cannot listen on {endpoint.listener_name}: {host!a} is not the name of a host") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if any_host else 1)
        set_buffers(listener, config)
        listener.bind(address)
        listener.listen(backlog_size(config))
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        advice = "; choose another with --port (listeners)" if error.errno == errno.EADDRINUSE else ""
        raise OSError(f"cannot listen on {endpoint}: {error.strerror}{advice}") from error
    return listener


def has_ipv6() -> bool:
    """Return whether this machine has IPv6: Linux may be started without it (``ipv6.disable=1``)."""
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError as error:
        return error.errno != errno.EAFNOSUPPORT
    return True


def check_ports(config: BrokerConfig) -> None:
    """Check that the configured ports are free, before anything is written to disk. Raises OSError."""
    for endpoint in config.listeners:
        if endpoint.port:
            open_listener(endpoint, config).close()


def backlog_size(config: BrokerConfig) -> int:
    """Return the configured backlog, else the system's maximum. A burst of clients overflows Kafka's default of 50, and
    each client without room waits a second."""
    key = "socket.listen.backlog.size"
    return config.get_int(key) if key in config.static_texts else socket.SOMAXCONN


def set_buffers(sock: socket.socket, config: BrokerConfig) -> None:
    """Set the sizes of socket buffers that are configured. Others grow with the connection, which Kafka's default of
    100 KiB would prevent."""
    for key, option in (
        ("socket.send.buffer.bytes", socket.SO_SNDBUF),
        ("socket.receive.buffer.bytes", socket.SO_RCVBUF),
    ):
        if key in config.static_texts and config.get_int(key) > 0:
            sock.setsockopt(socket.SOL_SOCKET, option, config.get_int(key))
