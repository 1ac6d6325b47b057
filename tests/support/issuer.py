"""An issuer of bearer tokens: its keys, tokens signed by them, and an endpoint with the public keys (JWKS)."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

AUDIENCE, ISSUER = "tidelog", "https://issuer.test"


class Issuer:
    """The issuer's private keys by id; a key is created when it is first used."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}

    def key(self, key_id: str) -> Any:
        """Return the private key of this id, which begins with a kind of ALGORITHM: ``rsa``, ``es256-2``, ``ed``."""
        if key_id not in self.keys:
            self.keys[key_id] = make_key(key_id)
        return self.keys[key_id]

    def token(self, key_id: str = "es256", /, **claims: object) -> str:
        """Create a token for ann that expires in five minutes; ``claims`` replace its claims, None removes one."""
        algorithm = ALGORITHM[key_id.partition("-")[0]]
        token: str = jwt.encode(claims_of(claims), self.key(key_id), algorithm=algorithm, headers={"kid": key_id})
        return token

    def document(self) -> bytes:
        """Build the JWKS document of the public keys."""
        return json.dumps({"keys": [public(key_id, key) for key_id, key in self.keys.items()]}).encode()


ALGORITHM = {"rsa": "RS256", "es256": "ES256", "es384": "ES384", "ed": "EdDSA"}


def make_key(key_id: str) -> Any:
    """Create a private key of the kind with which its id begins."""
    kind = key_id.partition("-")[0]
    if kind == "rsa":
        return rsa.generate_private_key(65537, 2048)
    if kind == "ed":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key(ec.SECP256R1() if kind == "es256" else ec.SECP384R1())


def public(key_id: str, key: Any) -> dict[str, Any]:
    """Convert a public key to its entry in a JWKS."""
    algorithm = jwt.get_algorithm_by_name(ALGORITHM[key_id.partition("-")[0]])
    return {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": key_id, "use": "sig"}


def claims_of(given: dict[str, object]) -> dict[str, object]:
    """Build valid claims; given ones replace them, None removes one."""
    now = int(time.time())
    claims = {"sub": "ann", "aud": AUDIENCE, "iss": ISSUER, "iat": now, "exp": now + 300, **given}
    return {name: value for name, value in claims.items() if value is not None}


def unsecured(header: object = None, **claims: object) -> str:
    """Build an unsecured token (``alg`` none)."""
    return f"{encode(header or {'alg': 'none'})}.{encode(claims_of(claims))}."


def encode(part: object) -> str:
    """Encode a part of a token."""
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def first_message(token: str, gs2: str = "n,,", extensions: str = "") -> bytes:
    """Build a client's first message of OAUTHBEARER (RFC 7628)."""
    return f"{gs2}\x01auth=Bearer {token}{extensions}\x01\x01".encode()


class Endpoint:
    """An HTTP server of an issuer's keys. ``requests`` is the number of its requests."""

    def __init__(self, issuer: Issuer) -> None:
        self.requests = 0
        self.status = 200
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.requests += 1
                body = issuer.document() if endpoint.status == 200 else b"no"
                self.send_response(endpoint.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Endpoint:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def write_keys(issuer: Issuer, path: Path) -> str:
    """Write a file of an issuer's keys; return its URL."""
    path.write_bytes(issuer.document())
    return path.as_uri()
