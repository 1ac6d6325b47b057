"""Signed tokens: valid ones, and known ways to forge one."""

from __future__ import annotations

import base64
import hmac
import json
import random
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.issuer import AUDIENCE, ISSUER, Issuer, claims_of, encode, unsecured
from tidelog.broker.security.sasl.oauth.server import TokenRefusedError
from tidelog.broker.security.sasl.oauth.signed_tokens import SignedRules, SignedTokens, read_keys

RULES = SignedRules([AUDIENCE, "other"], ISSUER, 30, "sub", "scope")
KINDS = ("rsa", "es256", "es384", "ed")
FAR_AHEAD_S = 2**40
"""A time that no run of the tests reaches: parameters are made long before a test of them runs."""


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    found = Issuer()
    for kind in KINDS:
        found.key(kind)
    return found


class World:
    """The check of an issuer's tokens. ``unknown`` counts the tokens whose key is not known."""

    def __init__(self, issuer: Issuer, rules: SignedRules = RULES) -> None:
        self.unknown = 0
        keys = read_keys(json.loads(issuer.document()))
        self.tokens = SignedTokens(rules, lambda: keys, self._count)

    def _count(self) -> None:
        self.unknown += 1

    def refusal(self, token: str) -> str:
        with pytest.raises(TokenRefusedError) as refused:
            self.tokens.validate(token)
        assert refused.value.answer == '{"status":"invalid_token"}'
        return str(refused.value)


@pytest.fixture
def world(issuer: Issuer) -> World:
    return World(issuer)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_signed_by_a_key_of_the_issuer_is_good(issuer: Issuer, world: World, kind: str) -> None:
    expires = int(time.time()) + 60
    assert world.tokens.validate(issuer.token(kind, exp=expires, scope="a b")) == ("ann", expires * 1000)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": 1}, "expired"),
        ({"exp": None}, "missing"),
        ({"iat": None}, "missing"),
        ({"iat": FAR_AHEAD_S}, "not valid yet"),
        ({"nbf": FAR_AHEAD_S}, "not valid yet"),
        ({"aud": "elsewhere"}, "another audience"),
        ({"aud": None}, "missing"),
        ({"iss": "https://evil.test"}, "another issuer"),
        ({"iss": None}, "missing"),
        ({"sub": None}, "is not a name"),
        ({"sub": "a\nb"}, "is not a name"),
        ({"exp": 1e999}, "is not a time"),
        ({"exp": "x"}, "is not a time"),
        ({"scope": [1]}, "has no list of scopes"),
    ],
)
def test_a_token_that_says_something_else_is_refused(
    issuer: Issuer, world: World, claims: dict[str, Any], reason: str
) -> None:
    assert reason in world.refusal(issuer.token(**claims))


def test_without_expectations_any_audience_and_issuer_will_do(issuer: Issuer) -> None:
    world = World(issuer, SignedRules([], None, 30, "upn", "scope"))
    assert world.tokens.validate(issuer.token(aud=None, iss="x", upn="bob", sub=None)).user == "bob"
    assert world.tokens.validate(issuer.token(aud=["y"], upn="bob")).user == "bob"


def test_a_token_without_a_signature_is_refused(world: World) -> None:
    for algorithm in ("none", "None", "NONE"):
        for header in ({"alg": algorithm}, {"alg": algorithm, "kid": "rsa"}):
            world.refusal(unsecured(header))


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_token_signed_with_the_public_key_as_a_secret_is_refused(
    issuer: Issuer, world: World, algorithm: str
) -> None:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public = issuer.key("rsa").public_key()
    for encoding in (serialization.Encoding.PEM, serialization.Encoding.DER):
        signed = f"{encode({'alg': algorithm, 'kid': 'rsa'})}.{encode(claims_of({}))}"
        signature = hmac.digest(public.public_bytes(encoding, form), signed.encode(), f"sha{algorithm[2:]}")
        token = f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"
        assert "algorithm" in world.refusal(token)


def test_a_key_in_the_token_itself_proves_nothing(issuer: Issuer, world: World) -> None:
    evil = Issuer()
    own = json.loads(evil.document() if evil.key("es256") else b"")["keys"][0]
    for header in ({"jwk": own}, {"jku": "https://evil.test/keys"}, {"x5u": "https://evil.test"}):
        token = jwt.encode(claims_of({}), evil.key("es256"), algorithm="ES256", headers={**header, "kid": "es256"})
        assert "signature" in world.refusal(token)
    assert world.unknown == 0


def test_a_token_of_another_key_is_refused_and_noted(world: World) -> None:
    assert "signature" in world.refusal(Issuer().token("es256"))
    assert "key id" in world.refusal(Issuer().token("es256-new"))
    assert world.unknown == 1


def test_a_token_without_a_key_id_is_checked_by_the_only_key(issuer: Issuer, world: World) -> None:
    token = jwt.encode(claims_of({}), issuer.key("es256"), algorithm="ES256")
    world.refusal(token)
    assert world.unknown == 0
    alone = Issuer()
    alone.keys["es256"] = issuer.key("es256")
    assert World(alone).tokens.validate(token).user == "ann"


def test_a_token_with_a_critical_extension_is_refused(issuer: Issuer, world: World) -> None:
    token = jwt.encode(
        claims_of({}), issuer.key("es256"), algorithm="ES256", headers={"kid": "es256", "crit": ["b64"], "b64": False}
    )
    world.refusal(token)


def test_keys_of_other_kinds_and_uses_are_left_out(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    document = json.loads(issuer.document())
    good = document["keys"][0]
    small = jwt.get_algorithm_by_name("RS256").to_jwk(
        rsa.generate_private_key(65537, 1024).public_key(), as_dict=True
    )  # fmt: skip
    odd = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "a"}, {**good, "kid": "b", "use": "enc"},
        {**good, "kid": "c", "alg": "HS256"}, {**small, "kid": "d"}, {"kty": "RSA", "kid": "e", "n": "!", "e": "AQAB"},
        {"kty": ["RSA"], "kid": "f"}, 7, {**good, "kid": ["g"]}, {**good, "crv": 1},
    ]  # fmt: skip
    assert list(read_keys({"keys": [*odd, good]})) == [good["kid"]]
    assert "2048 bits" in caplog.text
    assert "cannot be read" in caplog.text


def test_a_key_is_for_the_algorithm_that_it_names(issuer: Issuer) -> None:
    document = json.loads(issuer.document())
    document["keys"][0]["alg"] = "PS256"
    keys = read_keys(document)
    tokens = SignedTokens(RULES, lambda: keys, lambda: None)
    with pytest.raises(TokenRefusedError, match="algorithm"):
        tokens.validate(issuer.token("rsa"))
    signed = jwt.encode(claims_of({}), issuer.key("rsa"), algorithm="PS256", headers={"kid": "rsa"})
    assert tokens.validate(signed).user == "ann"


def test_randomly_changed_tokens_are_refused_without_another_error(issuer: Issuer, world: World) -> None:
    rng, given = random.Random(11), issuer.token()
    signed = given.rindex(".")
    for _ in range(300):
        token = list(given)
        position = rng.randrange(signed)
        token[position] = rng.choice([sign for sign in "Aa0-_.=" if sign != token[position]])
        world.refusal("".join(token))
    for text in ("", ".", "..", "...", "a.b.c", given + ".x", "[" * 60_000, encode({"alg": [1]}) + ".a.b"):
        world.refusal(text)
