"""Checks of a token's claims, for signed and unsecured tokens: names, times, scopes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidelog.broker.security.sasl.oauth.server import TokenRefusedError

MAX_SECONDS = (2**63 - 1) // 1000
"""Largest time of a claim in s: in ms it fits 64 bits, as in Kafka."""
_CONTROL = frozenset(map(chr, (*range(0x20), 0x7F)))


def name_of(claims: Mapping[str, Any], claim: str) -> str:
    """Return the principal's name. Raises TokenRefusedError."""
    name = claims.get(claim)
    if not isinstance(name, str) or not name.strip() or not _CONTROL.isdisjoint(name):
        raise TokenRefusedError(f"the claim {claim} is not a name")
    return name


def time_of(claims: Mapping[str, Any], claim: str) -> float | None:
    """Return a time in seconds since 1970; None if the claim is missing. Raises TokenRefusedError."""
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        raise TokenRefusedError(f"the claim {claim} is not a time")
    return float(value)


def scopes_of(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    """Return the scopes: a list, or one text with spaces between them. Raises TokenRefusedError."""
    value = claims.get(claim)
    if value is None:
        return frozenset()
    found = value.split() if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(one, str) and one.strip() for one in found):
        raise TokenRefusedError(f"the claim {claim} has no list of scopes")
    return frozenset(found)


def check_times(claims: Mapping[str, Any], now_s: float, skew_s: float) -> float:
    """Return the expiry time of a token, in seconds since 1970. Raises TokenRefusedError if the token is not valid yet
    or has expired, or if ``exp`` is missing, a time is malformed, or ``exp`` is not after ``iat``.
    """
    expires, issued, begins = (time_of(claims, claim) for claim in ("exp", "iat", "nbf"))
    if expires is None:
        raise TokenRefusedError("the claim exp is missing")
    if now_s - skew_s >= expires:
        raise TokenRefusedError("the token has expired")
    if max(issued or 0, begins or 0) > now_s + skew_s:
        raise TokenRefusedError("the token is not valid yet")
    if issued is not None and expires <= issued:
        raise TokenRefusedError("the token ends before it is issued")
    return expires
