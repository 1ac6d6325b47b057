"""Addresses of clients as limits count them. Any thread."""

from __future__ import annotations

import ipaddress


def source_of(host: str) -> str:
    """Return the address that a client's connections are counted for: of IPv6 the network of 64 bits, all of which it
    has.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
