"""Mechanisms of SASL as the exchange sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Reply(NamedTuple):
    """The answer to a client's token. ``user`` is set with the last one: it is proved."""

    token: bytes
    user: str | None = None
    expires_ms: int | None = None
    """End of the credential that the client showed, by the wall clock; None where it has none."""
    is_by_token: bool = False
    """Whether a delegation token was shown for a password."""
    refusal: str | None = None
    """The reason why the exchange cannot succeed, although one more message of the client follows."""


Evaluation = Callable[[], Reply]
"""Work on a token that takes a while. Any thread, once. Raises InvalidTokenError, AuthenticationFailedError."""


class Mechanism(Protocol):
    """The server's side of one exchange. Sans-io; one for each exchange."""

    claimed: str
    """The name that the client gave, before anything is proved."""

    def evaluate(self, token: bytes, /) -> Reply | Evaluation:
        """Answer the client's next token, or give back the work to be done for that in a thread.

        Raises InvalidTokenError, AuthenticationFailedError.
        """
        ...
