from __future__ import annotations

import pytest

from tidelog.broker.network.listening import to_plain_address


@pytest.mark.parametrize(
    ("address", "plain"),
    [
        ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::1"),
        ("::ffff:0:1", "::ffff:0:1"), ("::ffff:5", "::ffff:5"),
    ],
)  # fmt: skip
def test_ipv4_on_a_socket_for_ipv4_and_ipv6_is_written_as_ipv4(address: str, plain: str) -> None:
    assert to_plain_address(address) == plain
