"""Unsecured tokens: claims without a signature, which prove nothing. Only for a machine whose users are all trusted.

    base64url({"alg":"none"}) . base64url({"sub":"ann","exp":...}) .

The options are those of Kafka's OAuthBearerUnsecuredValidatorCallbackHandler, in the JAAS text of the listener.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from time import time
from typing import Any, NamedTuple

from tidelog.broker.security.sasl.oauth.claims import check_times, name_of, scopes_of
from tidelog.broker.security.sasl.oauth.server import BearerToken, TokenRefusedError
from tidelog.protocol.foreign_text import decode_json

_PREFIX = "unsecuredValidator"


class UnsecuredRules(NamedTuple):
    """Requirements on the claims of a token."""

    name_claim: str
    scope_claim: str
    required_scopes: list[str]
    skew_s: float


def rules_of(options: Mapping[str, str]) -> UnsecuredRules:
    """Read the rules from the options of a JAAS text. Raises ValueError."""

    def option(name: str) -> str:
        return options.get(_PREFIX + name, "").strip()

    skew_ms = int(option("AllowableClockSkewMs") or 0)
    if skew_ms < 0:
        raise ValueError("the clock skew is below 0")
    return UnsecuredRules(
        option("PrincipalClaimName") or "sub",
        option("ScopeClaimName") or "scope",
        option("RequiredScope").split(),
        skew_ms / 1000,
    )


class UnsecuredTokens:
    """Check of unsecured tokens."""

    def __init__(self, rules: UnsecuredRules, now_s: Callable[[], float] = time) -> None:
        self._rules = rules
        self._now_s = now_s

    def validate(self, token: str) -> BearerToken:
        """Return the user and the expiry time of a token. Any thread. Raises TokenRefusedError."""
        rules = self._rules
        header, claims, *signature = (*token.split("."), "", "")[:4] if token.count(".") in (1, 2) else ("", "")
        if any(signature) or decode(header).get("alg") != "none":
            raise TokenRefusedError("not an unsecured token")
        decoded = decode(claims)
        user, expires = name_of(decoded, rules.name_claim), check_times(decoded, self._now_s(), rules.skew_s)
        if not scopes_of(decoded, rules.scope_claim).issuperset(rules.required_scopes):
            required = f"[{', '.join(rules.required_scopes)}]"
            raise TokenRefusedError("a scope is missing", "insufficient_scope", required)
        return BearerToken(user, int(expires * 1000))


def decode(part: str) -> dict[str, Any]:
    """Decode one part of a token, a JSON object. Raises TokenRefusedError."""
    try:
        found = decode_json(base64.b64decode(part + "=" * (-len(part) % 4), b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise TokenRefusedError("the token cannot be read") from None
    if not isinstance(found, dict):
        raise TokenRefusedError("the token cannot be read")
    return found
