"""Interface of a SASL mechanism to the exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Reply(NamedTuple):
    """The answer to a client's token. With the last one, ``user`` has the authenticated user."""

    token: bytes
    user: str | None = None
    expires_ms: int | None = None
    """Expiry time of the client's credential in ms since 1970; None if it does not expire."""
    is_by_token: bool = False
    """True if a delegation token was used in place of a password."""
    refusal: str | None = None
    """The reason why the exchange cannot succeed, if the client has to send one more message before it fails."""


Evaluation = Callable[[], Reply]
"""Evaluation of a token that takes a while. Any thread may call it, once. Raises InvalidTokenError,
AuthenticationFailedError.
"""


class Mechanism(Protocol):
    """The server's side of one exchange. Sans-io; one for each exchange."""

    claimed: str
    """The name that the client gave, which is not authenticated."""

    def evaluate(self, token: bytes, /) -> Reply | Evaluation:
        """Return the answer to the client's next token, or the evaluation that a thread has to do for it.

        Raises InvalidTokenError, AuthenticationFailedError.
        """
        ...
