"""Addresses under which limits on connections and on failed logins count clients. Any thread."""

from __future__ import annotations

import ipaddress


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
