"""Exceptions of SASL exchanges: one whose text the client must not see, and one whose text is for the client."""

from __future__ import annotations


class InvalidTokenError(Exception):
    """A token that proves nothing, or cannot be read: the client learns only that the credentials are invalid."""


class AuthenticationFailedError(Exception):
    """A refusal whose text is sent to the client. ``reason`` may say more; it is only logged."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason or text
