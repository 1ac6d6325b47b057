"""Credentials of a client, and the exchange that proves them: tokens out, the server's tokens in.

``tidelog.client`` uses them to log in to brokers, a member of a cluster to log in to controllers and other brokers.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from tidelog.broker.security.sasl.client.plain import exchange_plain
from tidelog.broker.security.sasl.client.scram import exchange_scram

PLAIN = "PLAIN"
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash of each mechanism of SCRAM."""
MECHANISMS = (PLAIN, *HASHES)
NONCE_BYTES = 24


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a password for one mechanism."""

    mechanism: str
    user: str
    password: str = field(repr=False)


def begin_exchange(credentials: Credentials, nonce: str) -> Generator[bytes, bytes, None]:
    """Begin an exchange: a generator that yields the client's tokens and is sent the broker's. ``nonce`` is for
    SCRAM.
    """
    user, password = credentials.user, credentials.password
    if credentials.mechanism == PLAIN:
        return exchange_plain(user, password)
    return exchange_scram(HASHES[credentials.mechanism], user, password, nonce)
