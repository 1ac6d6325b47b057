"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the server's side.

    client  n,,n=user,r=nonce                    server  r=nonce+ours,s=salt,i=iterations
    client  c=biws,r=nonce+ours,p=proof          server  v=signature

``ours`` is the server's part of the nonce. Besides the proof it is checked that the second message repeats the GS2
header and both parts of the nonce, and that channel binding is not requested. An unknown user is answered like a known
one, and fails at the proof: the salt stays the same until the broker stops, the iterations are those of most users. A
credential is looked up once in an exchange. Source of the rules: Kafka's ScramSaslServer.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import NamedTuple

from tidelog.broker.controller.clients.scram_credentials import MIN_ITERATIONS, ScramMechanism
from tidelog.broker.metadata.metadata_image import ScramState
from tidelog.broker.security.sasl.errors import AuthenticationFailedError, InvalidTokenError
from tidelog.broker.security.sasl.mechanism import Reply

SCRAM_MECHANISMS = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
NONCE_BYTES = 24
LONGEST_MESSAGE = 16 * 1024
"""Largest number of bytes of a message. A listener accepts 512 KiB by default; a name of that length took the loop
70 ms to parse.
"""
_NAME = r"(?:[^,=\x00-\x1f\x7f]|=2C|=3D)+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = r"(?P<extensions>(?:,[A-Za-z]+=[^,\x00]+)*)"
_FIRST = re.compile(
    rf"(?P<gs2>[ny],(?:a=(?P<authorization>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS})"
)
_FINAL = re.compile(
    rf"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_TOKEN_AUTH = re.compile(r",tokenauth=true(?:,|$)")

Credentials = Callable[[str, ScramMechanism], ScramState | None]


class TokenCredential(NamedTuple):
    """Credential of a delegation token's bearer, who acts as the token's owner until ``expires_ms`` (ms since
    1970).
    """

    state: ScramState
    owner: str
    expires_ms: int


TokenCredentials = Callable[[str, ScramMechanism], TokenCredential | None]
UsualIterations = Callable[[ScramMechanism], int]


class ScramUsers:
    """Credentials of one mechanism. ``look_up`` finds those of users, ``tokens`` those of delegation tokens;
    ``usual_iterations`` returns the iterations that unknown users get.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        look_up: Credentials,
        tokens: TokenCredentials = lambda _id, _mechanism: None,
        usual_iterations: UsualIterations = lambda _mechanism: MIN_ITERATIONS,
    ) -> None:
        self.mechanism = mechanism
        self.hash_name = mechanism.hash_name
        self._look_up = look_up
        self._tokens = tokens
        self._usual_iterations = usual_iterations
        self._secret = secrets.token_bytes(32)
        """Secret from which the salts of unknown users are derived."""

    def find_token(self, token_id: str) -> TokenCredential:
        """Return the credential of a token's bearer. Raises InvalidTokenError for an unknown or expired token, as Kafka
        does.
        """
        found = self._tokens(token_id, self.mechanism)
        if found is None:
            raise InvalidTokenError("unknown or expired delegation token")
        return found

    def find(self, user: str) -> tuple[ScramState, bool]:
        """Return a user's credential and True; for an unknown user one that no proof matches, and False."""
        known = self._look_up(user, self.mechanism)
        salt = hmac.digest(self._secret, user.encode(), "sha256")[:16]  # for known users too, so that the time is equal
        size = hashlib.new(self.hash_name).digest_size
        decoy = ScramState(salt, bytes(size), bytes(size), self._usual_iterations(self.mechanism))
        return (decoy, False) if known is None else (known, True)


class ScramServer:
    """One exchange by SCRAM: the client sends two messages."""

    def __init__(self, users: ScramUsers, make_nonce: Callable[[], str] | None = None) -> None:
        """``make_nonce`` returns random nonces; tests replace it."""
        self._users = users
        self._make_nonce = make_nonce or (lambda: secrets.token_urlsafe(NONCE_BYTES))
        self.claimed = ""
        self._gs2 = self._nonce = ""
        self._transcript = ""
        self._credential: ScramState | None = None
        self._is_known = False
        self._token: TokenCredential | None = None

    def evaluate(self, token: bytes, /) -> Reply:
        """Answer the first message, or check the second. Raises InvalidTokenError, AuthenticationFailedError."""
        if len(token) > LONGEST_MESSAGE:
            raise InvalidTokenError(f"a message of more than {LONGEST_MESSAGE} bytes")
        try:
            text = token.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidTokenError("the message is not UTF-8") from None
        return self._answer_first(text) if self._credential is None else self._check_final(text, self._credential)

    def _answer_first(self, text: str) -> Reply:
        match = _FIRST.fullmatch(text)
        if match is None:
            raise InvalidTokenError("the first message cannot be read")
        self.claimed = unescape_name(match["user"])
        authorization = match["authorization"]
        if authorization is not None and unescape_name(authorization) != self.claimed:
            raise AuthenticationFailedError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        if _TOKEN_AUTH.search(match["extensions"]):
            self._token = self._users.find_token(self.claimed)
            self._credential, self._is_known = self._token.state, True
        else:
            self._credential, self._is_known = self._users.find(self.claimed)
        self._gs2, self._nonce = match["gs2"], match["nonce"] + self._make_nonce()
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._transcript = f"{match['bare']},{answer}"
        return Reply(answer.encode())

    def _check_final(self, text: str, credential: ScramState) -> Reply:
        match = _FINAL.fullmatch(text)
        if match is None:
            raise InvalidTokenError("the final message cannot be read")
        if not hmac.compare_digest(match["nonce"], self._nonce):
            raise InvalidTokenError("the nonce is not that of this exchange")
        if decode_base64(match["binding"]) != self._gs2.encode():
            raise InvalidTokenError("the final message does not repeat the first one's header")
        transcript = f"{self._transcript},{match['unproved']}".encode()
        if not self._is_proof(decode_base64(match["proof"]), transcript, credential):
            raise InvalidTokenError("the proof is wrong")
        signature = hmac.digest(credential.server_key, transcript, self._users.hash_name)
        answer = b"v=" + base64.b64encode(signature)
        if self._token is not None:
            return Reply(answer, self._token.owner, self._token.expires_ms, is_by_token=True)
        return Reply(answer, self.claimed)

    def _is_proof(self, proof: bytes, transcript: bytes, credential: ScramState) -> bool:
        """Return whether the proof was made with the user's password; the check of an unknown user takes as long."""
        name = self._users.hash_name
        signature = hmac.digest(credential.stored_key, transcript, name)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        is_equal = hmac.compare_digest(hashlib.new(name, client_key).digest(), credential.stored_key)
        return is_equal and len(proof) == len(signature) and self._is_known


def unescape_name(name: str) -> str:
    """Return a user's name without the escapes of RFC 5802."""
    return name.replace("=2C", ",").replace("=3D", "=")


def decode_base64(text: str) -> bytes:
    """Decode the bytes of strict base64. Raises InvalidTokenError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise InvalidTokenError("not base64") from None
