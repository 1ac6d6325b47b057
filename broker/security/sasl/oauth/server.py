"""OAUTHBEARER (RFC 7628): the server's side. The client sends one message, and one more if the token is refused.

    client  n,,^Aauth=Bearer TOKEN^A...^A      server  an empty token, if the client's is valid; else
                                               server  {"status":"invalid_token"}
    client  ^A                                 the exchange fails with the text of that JSON

Source of the grammar and of the texts: Kafka's OAuthBearerSaslServer and OAuthBearerClientInitialResponse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tidelog.broker.security.sasl.errors import AuthenticationFailedError, InvalidTokenError
from tidelog.broker.security.sasl.mechanism import Evaluation, Reply

OAUTHBEARER = "OAUTHBEARER"
LONGEST_TOKEN = 64 * 1024
"""Largest number of characters of a token; tokens of real issuers have a few thousand."""
LONGEST_MESSAGE = 2 * LONGEST_TOKEN
"""Largest number of bytes of a client's first message. A listener accepts 512 KiB by default, which took the loop 60 ms
to parse.
"""
_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PAIR = r"[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01"
_FIRST = re.compile(rf"n,(?:a=(?P<authorization>{_NAME}))?,\x01(?P<pairs>(?:{_PAIR})*)\x01")
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +(?P<token>[-_.a-zA-Z0-9]+)")
_ACKNOWLEDGEMENT = b"\x01"


class BearerToken(NamedTuple):
    """User and expiry time of a valid token."""

    user: str
    expires_ms: int
    """Expiry time of the token in ms since 1970."""


class TokenRefusedError(Exception):
    """A refused token. The client gets status and scope, the log the reason."""

    def __init__(self, reason: str, status: str = "invalid_token", scope: str | None = None) -> None:
        super().__init__(reason)
        fields = {"status": status} | ({} if scope is None else {"scope": scope})
        self.answer = json.dumps(fields, separators=(", ", ":"))


Validate = Callable[[str], BearerToken]
"""Function that checks a token. Any thread but the loop's, as it may wait for keys. Raises TokenRefusedError."""


class OAuthBearerServer:
    """One exchange by OAUTHBEARER."""

    def __init__(self, validate: Validate) -> None:
        self._validate = validate
        self._refusal: TokenRefusedError | None = None
        self.claimed = ""

    def evaluate(self, token: bytes, /) -> Evaluation:
        """Read the client's message; return the check of its token, to be run in a thread.

        Raises InvalidTokenError; AuthenticationFailedError after the client has acknowledged the refusal of its token.
        """
        if self._refusal is not None:
            if token != _ACKNOWLEDGEMENT:
                raise InvalidTokenError("something else than an acknowledgement followed a refusal")
            raise AuthenticationFailedError(self._refusal.answer, str(self._refusal))
        bearer, authorization = read_first_message(token)
        return partial(self._check, bearer, authorization)

    def _check(self, bearer: str, authorization: str | None) -> Reply:
        """Check a token. Any thread but the loop's. Raises AuthenticationFailedError."""
        try:
            found = self._validate(bearer)
        except TokenRefusedError as error:
            self._refusal = error
            return Reply(error.answer.encode(), refusal=str(error))
        self.claimed = found.user
        if authorization not in (None, found.user):
            raise AuthenticationFailedError(
                f"Authentication failed: Client requested an authorization id ({authorization}) that is different from "
                f"the token's principal name ({found.user})"
            )
        return Reply(b"", found.user, found.expires_ms)


def read_first_message(message: bytes) -> tuple[str, str | None]:
    """Read the token of a client's first message, and the name that it wants to act as. Raises InvalidTokenError."""
    try:
        match = _FIRST.fullmatch(message.decode("ascii")) if len(message) <= LONGEST_MESSAGE else None
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise InvalidTokenError("the first message cannot be read")
    pairs = [pair.partition("=") for pair in match["pairs"].split("\x01")[:-1]]
    found = {name: value for name, _, value in pairs}
    bearer = _BEARER.fullmatch(found.get("auth", ""))
    if bearer is None or len(found) < len(pairs) or len(bearer["token"]) > LONGEST_TOKEN:
        raise InvalidTokenError("not one bearer token of a sensible length")
    return bearer["token"], match["authorization"]
