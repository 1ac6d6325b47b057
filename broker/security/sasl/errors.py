"""Exceptions of SASL exchanges: one whose text the client must not see, and one whose text is for the client."""

from __future__ import annotations

MAX_CHARACTERS = 1_024
"""Longest text for a client. It may quote names that clients give, and an error message of a response may have at most
32,767 bytes.
"""


class InvalidTokenError(Exception):
    """A token that proves nothing, or cannot be read: the client learns only that the credentials are invalid."""


class AuthenticationFailedError(Exception):
    """A refusal whose text is sent to the client, cut to MAX_CHARACTERS. ``reason`` may say more; it is only logged."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text[:MAX_CHARACTERS])
        self.reason = reason or text
