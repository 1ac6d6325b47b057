"""Listening sockets: their addresses, also on a machine without IPv6."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.network.listening import open_listener, to_plain_address


@pytest.mark.parametrize(
    ("address", "plain"),
    [
        ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::1"),
        ("::ffff:0:1", "::ffff:0:1"), ("::ffff:5", "::ffff:5"),
    ],
)  # fmt: skip
def test_ipv4_on_a_socket_for_ipv4_and_ipv6_is_written_as_ipv4(address: str, plain: str) -> None:
    assert to_plain_address(address) == plain


def test_a_machine_without_ipv6_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java does so, too. ``socket.has_ipv6`` is true there: it says what Python was compiled with."""

    class SocketWithoutIpv6(socket.socket):
        def __init__(self, family: int = -1, *arguments: Any, **options: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *arguments, **options)

    monkeypatch.setattr(socket, "socket", SocketWithoutIpv6)
    config = BrokerConfig({"listeners": "PLAINTEXT://:0"})
    with open_listener(config.listeners[0], config) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_a_host_that_is_no_name_is_an_error_of_the_listener() -> None:
    """The encoder of international names refuses it, before the system is asked."""
    endpoint = BrokerConfig({"listeners": "PLAINTEXT://:0"}).listeners[0]._replace(host="a\udcff")
    with pytest.raises(OSError, match="cannot listen on"):
        open_listener(endpoint, BrokerConfig({}))
