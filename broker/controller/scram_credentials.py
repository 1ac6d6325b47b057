"""SCRAM credentials of users, as the admin API sets them (KIP-554). Kept in the store, ``/scram/<mechanism>/<user>``.

Listeners that authenticate read them from here. A password is never stored, only what SCRAM derives from it (RFC 5802):
the salt, the iterations, the stored key and the server key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from enum import IntEnum
from typing import NamedTuple

from tidelog.broker.metadata.store import MetadataStore, Put
from tidelog.protocol.errors import ResourceNotFoundError, UnacceptableCredentialError, UnsupportedSaslMechanismError

SCRAM_PREFIX = "/scram/"
MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16384


class ScramMechanism(IntEnum):
    """Mechanisms by their number on the wire."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def hash_name(self) -> str:
        """The hash function, as hashlib names it."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"


class ScramCredential(NamedTuple):
    """A SCRAM credential: what a broker stores in place of a password."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class ScramCredentials:
    """The credentials in the store. Loop thread only."""

    __slots__ = ("_store",)

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def get(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """A user's credential, or None."""
        entry = self._store.get(key_of(user, mechanism))
        return None if entry is None else decode(entry.value)

    def users(self) -> dict[str, dict[ScramMechanism, int]]:
        """User -> mechanism -> iterations, for all users that have a credential."""
        found: dict[str, dict[ScramMechanism, int]] = {}
        for entry in self._store.list(SCRAM_PREFIX):
            mechanism, _, user = entry.key.removeprefix(SCRAM_PREFIX).partition("/")
            found.setdefault(user, {})[ScramMechanism[mechanism]] = decode(entry.value).iterations
        return found

    def put(self, user: str, mechanism: ScramMechanism, iterations: int, salt: bytes, salted_password: bytes) -> None:
        """Set a credential. Raises UnacceptableCredentialError."""
        if not user:
            raise UnacceptableCredentialError("Username must not be empty")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise UnacceptableCredentialError(
                "Too few iterations" if iterations < MIN_ITERATIONS else "Too many iterations"
            )
        credential = derive(mechanism, iterations, salt, salted_password)
        self._store.txn([], [Put(key_of(user, mechanism), encode(credential))], [])

    def delete(self, user: str, mechanism: ScramMechanism) -> None:
        """Remove a credential. Raises ResourceNotFoundError."""
        key = key_of(user, mechanism)
        if self._store.get(key) is None:
            raise ResourceNotFoundError("Attempt to delete a user credential that does not exist")
        self._store.txn([], [], [key])


def mechanism_of(number: int) -> ScramMechanism:
    """The mechanism with this number. Raises UnsupportedSaslMechanismError."""
    try:
        return ScramMechanism(number)
    except ValueError:
        raise UnsupportedSaslMechanismError("Unknown SCRAM mechanism") from None


def derive(mechanism: ScramMechanism, iterations: int, salt: bytes, salted_password: bytes) -> ScramCredential:
    """The keys of RFC 5802 from a salted password."""
    name = mechanism.hash_name
    client_key = hmac.digest(salted_password, b"Client Key", name)
    server_key = hmac.digest(salted_password, b"Server Key", name)
    return ScramCredential(iterations, salt, hashlib.new(name, client_key).digest(), server_key)


def key_of(user: str, mechanism: ScramMechanism) -> str:
    """Key of a credential in the store."""
    return f"{SCRAM_PREFIX}{mechanism.name}/{user}"


def encode(credential: ScramCredential) -> bytes:
    """A credential as the store's value."""
    return json.dumps(
        {
            "iterations": credential.iterations,
            "salt": credential.salt.hex(),
            "stored_key": credential.stored_key.hex(),
            "server_key": credential.server_key.hex(),
        }
    ).encode()


def decode(value: bytes) -> ScramCredential:
    """The credential in a value of the store."""
    fields = json.loads(value)
    return ScramCredential(
        fields["iterations"],
        bytes.fromhex(fields["salt"]),
        bytes.fromhex(fields["stored_key"]),
        bytes.fromhex(fields["server_key"]),
    )
