"""PLAIN (RFC 4616): user and password in clear, checked against the users of the listener's JAAS text.

Source of the checks, and of the texts about wrong passwords and authorization ids: Kafka's PlainSaslServer.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping

from tidelog.broker.security.sasl.errors import AuthenticationFailedError, InvalidTokenError
from tidelog.broker.security.sasl.mechanism import Reply

PLAIN = "PLAIN"


class PlainUsers:
    """Users with the digests of their passwords: digests have equal lengths, so the time of a comparison reveals
    nothing.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._digests = {user: digest_of(password) for user, password in users.items()}
        self._no_password = secrets.token_bytes(32)

    def is_password(self, user: str, password: str) -> bool:
        """Return whether this is the user's password; the check of an unknown user takes as long."""
        expected = self._digests.get(user, self._no_password)
        return hmac.compare_digest(expected, digest_of(password))


class PlainServer:
    """One exchange by PLAIN: a single token."""

    def __init__(self, users: PlainUsers) -> None:
        self._users = users
        self.claimed = ""

    def evaluate(self, token: bytes, /) -> Reply:
        """Check the token. Raises InvalidTokenError, AuthenticationFailedError."""
        try:
            parts = token.decode("utf-8").split("\0")
        except UnicodeDecodeError:
            raise InvalidTokenError("the token is not UTF-8") from None
        if len(parts) != 3:
            raise InvalidTokenError(f"expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        self.claimed = user
        if not user or not password:
            raise InvalidTokenError("username or password not specified")
        if not self._users.is_password(user, password):
            raise AuthenticationFailedError("Authentication failed: Invalid username or password")
        if authorization_id not in ("", user):
            raise AuthenticationFailedError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        return Reply(b"", user)


def digest_of(password: str) -> bytes:
    """Compute the SHA-256 of a password."""
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()
