"""Mechanisms of SASL as the exchange sees them."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Reply(NamedTuple):
    """The answer to a client's token. ``user`` is set with the last one: the client is who he says he is."""

    token: bytes
    user: str | None = None
    token_expires_ms: int | None = None
    """End of the delegation token that the client showed, by the wall clock; None where it showed none."""


class Mechanism(Protocol):
    """The server's side of one exchange. Sans-io; one for each exchange."""

    claimed: str
    """The name that the client gave, before anything is proved."""

    def evaluate(self, token: bytes, /) -> Reply:
        """Answer the client's next token. Raises InvalidTokenError, AuthenticationFailedError."""
        ...
