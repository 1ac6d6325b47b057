"""Bearer tokens of the admin interface: those of the token file, then signed tokens (JWT).

A signed token names its user in the claim that ``admin.sasl.oauthbearer.sub.claim.name`` gives. ACLs decide what the
user may do, so the token's scopes are not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.admin.login.access import LISTENER, bearer_texts
from tidelog.broker.admin.login.tokens import Token, TokenFile
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.keys.admin import ADMIN_TOKENS_FILE
from tidelog.broker.config.keys.security import listener_values
from tidelog.broker.security.sasl.oauth.server import TokenRefusedError

if TYPE_CHECKING:
    from tidelog.broker.security.sasl.oauth.settings import SignedTokenCheck

LONGEST_TOKEN = 16 * 1024


class UnknownBearerError(Exception):
    """A token is refused; the message says why, and may be logged."""


class Bearers:
    """All tokens that are accepted."""

    def __init__(self, config: BrokerConfig) -> None:
        """Begin to read the keys of signed tokens in a thread, if such tokens are accepted. Raises ConfigError."""
        path = config.get(ADMIN_TOKENS_FILE)
        self._file = TokenFile(path) if path else None
        self._signed: SignedTokenCheck | None = None
        texts = bearer_texts(config)
        if texts:
            from tidelog.broker.security.sasl.oauth.settings import build_signed

            self._signed = build_signed(listener_values(texts, LISTENER), None)
            self._signed.begin()

    def close(self) -> None:
        """End the thread that reads the keys of signed tokens."""
        if self._signed is not None:
            self._signed.close()

    def find(self, token: str, now_s: float) -> Token:
        """Find a token that is valid now. One thread at a time, not the loop's. Raises UnknownBearerError."""
        try:
            found = None if self._file is None else self._file.find(token, now_s)
        except OSError as error:
            raise UnknownBearerError(f"the token file cannot be read: {error.strerror}") from error
        if found is not None:
            return found
        if self._signed is None or token.count(".") != 2 or len(token) > LONGEST_TOKEN:
            raise UnknownBearerError("unknown or expired token")
        try:
            bearer = self._signed.validate(token)
        except TokenRefusedError as error:
            raise UnknownBearerError(str(error)) from None
        return Token(bearer.user, may_write=True, expires_s=bearer.expires_ms // 1000)
