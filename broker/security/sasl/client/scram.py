"""SCRAM (RFC 5802, RFC 7677): the client's side.

    client  n,,n=user,r=nonce                    server  r=nonce+theirs,s=salt,i=iterations
    client  c=biws,r=nonce+theirs,p=proof        server  v=signature

``theirs`` is the broker's part of the nonce. Checks: the broker continues our nonce, asks for iterations within bounds,
and proves by its signature that it knows the keys of the password. Names and passwords are sent as they are, without
SASLprep, as by Kafka's own clients and brokers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Generator
from typing import NamedTuple

from tidelog.protocol.errors import SaslAuthenticationFailedError

MIN_ITERATIONS = 4096
"""Smallest number of iterations, in Kafka and RFC 7677."""
MAX_ITERATIONS = 1_000_000
"""Largest number of iterations: without it a malicious broker could keep the client busy without end."""
_HEADER = "n,,"
_BINDING = base64.b64encode(_HEADER.encode()).decode()
_CHALLENGE = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[0-9]{1,9})"
    r"(?:,[A-Za-z]+=[^,\x00]+)*"
)
_FINAL = re.compile(r"(?:v=(?P<signature>[A-Za-z0-9+/=]+)|e=(?P<error>[^,\x00]+))(?:,[A-Za-z]+=[^,\x00]+)*")


class _Challenge(NamedTuple):
    """The broker's first message."""

    text: str
    nonce: str
    salt: bytes
    iterations: int


def exchange_scram(hash_name: str, user: str, password: str, nonce: str) -> Generator[bytes, bytes, None]:
    """Yield the client's two tokens, take the broker's, and check its signature. Raises
    SaslAuthenticationFailedError.
    """
    bare = f"n={escape_name(user)},r={nonce}"
    challenge = _read_challenge((yield f"{_HEADER}{bare}".encode()), nonce)
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), challenge.salt, challenge.iterations)
    unproved = f"c={_BINDING},r={challenge.nonce}"
    transcript = f"{bare},{challenge.text},{unproved}".encode()
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    mask = hmac.digest(hashlib.new(hash_name, client_key).digest(), transcript, hash_name)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, mask, strict=True))).decode()
    final = yield f"{unproved},p={proof}".encode()
    server_key = hmac.digest(salted, b"Server Key", hash_name)
    _check_final(final, hmac.digest(server_key, transcript, hash_name))


def escape_name(user: str) -> str:
    """Write a user's name with the escapes of RFC 5802."""
    return user.replace("=", "=3D").replace(",", "=2C")


def _read_challenge(token: bytes, nonce: str) -> _Challenge:
    text = _decode_text(token)
    match = _CHALLENGE.fullmatch(text)
    if match is None:
        raise SaslAuthenticationFailedError("the broker's first SCRAM message cannot be read")
    if not match["nonce"].startswith(nonce) or len(match["nonce"]) == len(nonce):
        raise SaslAuthenticationFailedError("the broker's nonce does not continue the client's")
    iterations = int(match["iterations"])
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise SaslAuthenticationFailedError(
            f"the broker asks for {iterations} iterations: expected {MIN_ITERATIONS} to {MAX_ITERATIONS}"
        )
    return _Challenge(text, match["nonce"], _decode_base64(match["salt"]), iterations)


def _check_final(token: bytes, expected: bytes) -> None:
    match = _FINAL.fullmatch(_decode_text(token))
    if match is None:
        raise SaslAuthenticationFailedError("the broker's last SCRAM message cannot be read")
    if match["error"] is not None:
        raise SaslAuthenticationFailedError(match["error"])
    if not hmac.compare_digest(_decode_base64(match["signature"]), expected):
        raise SaslAuthenticationFailedError("the broker's signature is wrong: it does not know this user's password")


def _decode_text(token: bytes) -> str:
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        raise SaslAuthenticationFailedError("the broker's SCRAM message is not UTF-8") from None


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SaslAuthenticationFailedError("the broker's SCRAM message is not base64") from None
