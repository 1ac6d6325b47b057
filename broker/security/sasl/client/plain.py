"""PLAIN (RFC 4616): the client's side, one token with user and password in clear."""

from __future__ import annotations

from collections.abc import Generator


def exchange_plain(user: str, password: str) -> Generator[bytes, bytes, None]:
    """Yield the only token; the broker's answer to it is empty."""
    yield f"\0{user}\0{password}".encode()
