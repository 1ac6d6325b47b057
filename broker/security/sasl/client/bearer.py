"""OAUTHBEARER (RFC 7628): the client's side, one message with the token, and an acknowledgement of a refusal."""

from __future__ import annotations

from collections.abc import Generator


def exchange_bearer(token: str) -> Generator[bytes, bytes, None]:
    """Yield the message with the token; the broker's answer is empty, or says in JSON why the token is refused."""
    refusal = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if refusal:
        yield b"\x01"
