"""Spellings of clients' addresses. Any thread.

``to_canonical_address``: the spelling that sockets, ``max.connections.per.ip`` and quotas of addresses have.
``source_of``: the address under which handshakes, unauthenticated connections and failed logins are counted, and large
requests of anonymous clients are queued.
"""

from __future__ import annotations

import ipaddress


def is_address(text: str) -> bool:
    """Return whether a text is an IP address, with or without brackets."""
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


def to_canonical_address(text: str) -> str:
    """Return an address in the spelling that sockets have; another text as it is."""
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def source_of(host: str) -> str:
    """Return the address under which a client is counted: for IPv6 its /64 network, as one client may have all
    addresses in it.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
