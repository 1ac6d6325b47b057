"""Check of unsecured tokens: it takes Kafka's options, and refuses signed tokens."""

from __future__ import annotations

import base64
import random
import time

import pytest

from tests.support.issuer import encode, unsecured
from tidelog.broker.security.sasl.oauth.server import TokenRefusedError
from tidelog.broker.security.sasl.oauth.unsecured_tokens import UnsecuredTokens, rules_of

TOKENS = UnsecuredTokens(rules_of({}))


def test_a_valid_token_gives_its_user_and_its_expiry_time() -> None:
    expires = int(time.time()) + 60
    assert TOKENS.validate(unsecured(exp=expires)) == ("ann", expires * 1000)
    assert TOKENS.validate(unsecured(exp=expires, iat=None)).user == "ann"
    assert TOKENS.validate(unsecured().removesuffix(".")).user == "ann"


@pytest.mark.parametrize(
    "token",
    [
        unsecured({"alg": "HS256"}), unsecured({"typ": "JWT"}), unsecured([1]), unsecured() + "c2lnbmVk", "", ".", "..",
        "a.b.c", "a.b.c.d", "%.%.", f"{encode({'alg': 'none'})}.{encode([1])}.", unsecured(exp=None), unsecured(exp=1),
        unsecured(sub=None), unsecured(iat=time.time() + 1000),
        f"{encode({'alg': 'none'})}.{encode('[' * 10)}.",
    ],
)  # fmt: skip
def test_an_invalid_token_is_refused(token: str) -> None:
    with pytest.raises(TokenRefusedError):
        TOKENS.validate(token)


def test_deeply_nested_json_is_refused_without_a_recursion_error() -> None:
    deep = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 40_000).decode().rstrip("=")
    with pytest.raises(TokenRefusedError):
        TOKENS.validate(f"{deep}.{deep}.")


def test_a_missing_scope_is_named() -> None:
    prefix = "unsecuredValidator"
    tokens = UnsecuredTokens(
        rules_of({f"{prefix}RequiredScope": "LOGIN WRITE", f"{prefix}ScopeClaimName": "scp",
                  f"{prefix}PrincipalClaimName": "upn", f"{prefix}AllowableClockSkewMs": "3000"})
    )  # fmt: skip
    late = time.time() - 2
    assert tokens.validate(unsecured(upn="bob", scp="WRITE LOGIN more", exp=late, iat=None)).user == "bob"
    with pytest.raises(TokenRefusedError) as refused:
        tokens.validate(unsecured(upn="bob", scp="LOGIN"))
    assert refused.value.answer == '{"status":"insufficient_scope", "scope":"[LOGIN, WRITE]"}'


@pytest.mark.parametrize("skew", ["x", "-1", "1.5"])
def test_a_clock_skew_is_a_number(skew: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        rules_of({"unsecuredValidatorAllowableClockSkewMs": skew})


def test_randomly_changed_tokens_raise_no_other_error() -> None:
    rng, given = random.Random(3), unsecured()
    for _ in range(2000):
        token = list(given)
        token[rng.randrange(len(token))] = rng.choice("Aa0-_.=")
        try:
            TOKENS.validate("".join(token))
        except TokenRefusedError:
            continue
