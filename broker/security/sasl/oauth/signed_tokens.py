"""Check of signed tokens (JWS) by the issuer's public keys, with PyJWT. A thread imports this module.

The key decides which algorithms are allowed: RS and PS for RSA, ES256 for P-256 and so on, EdDSA for Ed25519. A token's
header only chooses among those, so ``none`` and secrets (HS) are never accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import time
from typing import Any, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from tidelog.broker.security.sasl.oauth.claims import check_times, name_of, scopes_of, time_of
from tidelog.broker.security.sasl.oauth.key_set import MalformedKeysError
from tidelog.broker.security.sasl.oauth.server import BearerToken, TokenRefusedError

logger = logging.getLogger(__name__)

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey
RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ALGORITHMS: Mapping[tuple[str, str | None], tuple[str, ...]] = {
    ("RSA", None): RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""Signature algorithms by type and curve of a key."""
SMALLEST_RSA_BITS = 2048
MALFORMED = (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, OverflowError, RecursionError)
"""Errors that PyJWT and ``cryptography`` raise for malformed tokens and keys."""


class VerificationKey(NamedTuple):
    """A public key, and the algorithms whose signatures it may verify."""

    key: PublicKey
    algorithms: tuple[str, ...]


Keys = Mapping[str | None, VerificationKey]
"""An issuer's keys by key id."""


class SignedRules(NamedTuple):
    """Requirements on the claims of a token."""

    audiences: list[str]
    issuer: str | None
    skew_s: int
    name_claim: str
    scope_claim: str


class SignedTokens:
    """Check of signed tokens by an issuer's keys."""

    def __init__(
        self,
        rules: SignedRules,
        keys: Callable[[], Keys],
        note_unknown: Callable[[], object],
        now_s: Callable[[], float] = time,
    ) -> None:
        """``keys`` returns the issuer's current keys; ``note_unknown`` is called if a token names an unknown key id."""
        self._rules = rules
        self._keys = keys
        self._note_unknown = note_unknown
        self._now_s = now_s

    def validate(self, token: str) -> BearerToken:
        """Return the user and the expiry time of a token. Any thread. Raises TokenRefusedError."""
        rules, key = self._rules, self._find_key(token)
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=list(key.algorithms),
                options={"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_sub": False,
                         "verify_aud": bool(rules.audiences), "require": ["exp", "iat"]},
                audience=rules.audiences or None,
                issuer=rules.issuer,
            )  # fmt: skip
        except MALFORMED as error:
            raise TokenRefusedError(reason_of(error)) from None
        expires = check_times(claims, self._now_s(), rules.skew_s)
        if time_of(claims, "iat") is None:
            raise TokenRefusedError("the claim iat is missing")
        scopes_of(claims, rules.scope_claim)
        return BearerToken(name_of(claims, rules.name_claim), int(expires * 1000))

    def _find_key(self, token: str) -> VerificationKey:
        """Return the key with the key id of the token's header. Without one, return the key without a key id, or the
        only key. Raises TokenRefusedError.
        """
        try:
            header = jwt.get_unverified_header(token)
        except MALFORMED:
            raise TokenRefusedError("the token cannot be read") from None
        if "crit" in header:
            raise TokenRefusedError("the token asks for an extension (crit)")
        keys, key_id = self._keys(), header.get("kid")
        found = keys.get(key_id)
        if found is None and key_id is None and len(keys) == 1:
            found = next(iter(keys.values()))
        if found is None:
            if key_id is not None:  # only an unknown key id may mean a new key
                self._note_unknown()
            raise TokenRefusedError("no key of the issuer has the key id of the token")
        if header.get("alg") not in found.algorithms:
            raise TokenRefusedError("the algorithm of the token is not allowed with its key")
        return found


def reason_of(error: Exception) -> str:
    """Return the reason for the log: a fixed text, because an exception's text may hold parts of a token."""
    for kind, text in (
        (jwt.InvalidSignatureError, "the signature of the token is wrong"),
        (jwt.InvalidAudienceError, "the token is for another audience"),
        (jwt.InvalidIssuerError, "the token is of another issuer"),
        (jwt.MissingRequiredClaimError, "a claim is missing: exp, iat, aud or iss"),
    ):
        if isinstance(error, kind):
            return text
    return "the token cannot be read"


def read_keys(document: Mapping[str, Any]) -> Keys:
    """Read the public keys of a JWKS, without those of other kinds or for other uses, and without malformed ones."""
    keys: dict[str | None, VerificationKey] = {}
    for given in document["keys"]:
        algorithms = algorithms_of(given) if isinstance(given, dict) else ()
        key_id = given.get("kid") if algorithms else None
        if algorithms and isinstance(key_id, str | None):
            try:
                keys[key_id] = VerificationKey(read_key(given, algorithms[0]), algorithms)
            except MalformedKeysError as error:
                logger.warning("a key of the tokens' issuer is left out: %s", error)
    return keys


def algorithms_of(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the algorithms that a key of a JWKS may verify; none for a key of another kind, or for another use."""
    kind, curve = given.get("kty"), given.get("crv")
    if given.get("use", "sig") != "sig" or not isinstance(kind, str) or not isinstance(curve, str | None):
        return ()
    found = ALGORITHMS.get((kind, curve), ())
    return tuple(name for name in found if name == given["alg"]) if "alg" in given else found


def read_key(given: dict[str, Any], algorithm: str) -> PublicKey:
    """Read one public key. Raises MalformedKeysError."""
    try:
        key: PublicKey = jwt.PyJWK({name: value for name, value in given.items() if name not in PRIVATE}, algorithm).key
    except MALFORMED as error:
        raise MalformedKeysError("a key cannot be read") from error
    if isinstance(key, RSAPublicKey) and key.key_size < SMALLEST_RSA_BITS:
        raise MalformedKeysError(f"an RSA key has fewer than {SMALLEST_RSA_BITS} bits")
    return key


PRIVATE = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})
"""Members of a JWK that only private keys have."""
