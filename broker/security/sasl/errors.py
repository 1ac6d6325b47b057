"""Exceptions of SASL exchanges, by what their clients may be told."""

from __future__ import annotations


class InvalidTokenError(Exception):
    """A token that proves nothing, or cannot be read: its client is told that the credentials are invalid, no more."""


class AuthenticationFailedError(Exception):
    """A refusal whose text its client is told. ``reason``, for the log alone, may say more."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason or text
