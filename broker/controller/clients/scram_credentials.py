"""SCRAM credentials of users, as the admin API sets them (KIP-554). Each credential is a record of the metadata log.

Listeners that authenticate read the credentials from here. A password is never stored, only what SCRAM derives from it
(RFC 5802): the salt, the iterations, the stored key and the server key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.broker.metadata.image_records import VersionedRecord, scram_record
from tidelog.broker.metadata.metadata_image import ScramState
from tidelog.protocol.errors import ResourceNotFoundError, UnacceptableCredentialError, UnsupportedSaslMechanismError
from tidelog.protocol.metadata_records.records import RemoveUserScramCredentialRecord

if TYPE_CHECKING:
    from tidelog.broker.controller.metadata_controller import MetadataController

MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16384
COUNTED = 1_000
"""Largest number of credentials that ``count_iterations`` looks at: a broker may have a million."""


class ScramMechanism(IntEnum):
    """Mechanisms by their number on the wire."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def hash_name(self) -> str:
        """The hash function, as hashlib names it."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"


class ScramCredentials:
    """The credentials of the metadata image. Loop thread only."""

    __slots__ = ("_controller", "_counted", "_usual")

    def __init__(self, controller: MetadataController) -> None:
        self._controller = controller
        self._counted: Mapping[tuple[str, int], ScramState] = {}
        """The credentials from which ``_usual`` was computed."""
        self._usual: dict[int, int] = {}
        """Mechanism -> its most common number of iterations."""

    def get(self, user: str, mechanism: ScramMechanism) -> ScramState | None:
        """Return a user's credential, or None."""
        return self._controller.image.scram.get((user, mechanism))

    def usual_iterations(self, mechanism: ScramMechanism) -> int:
        """Return what ``count_iterations`` finds in the present credentials."""
        credentials = self._controller.image.scram
        if credentials is not self._counted:  # a change makes another mapping
            self._counted = credentials
            self._usual = {one: count_iterations(credentials, one) for one in ScramMechanism}
        return self._usual.get(mechanism, MIN_ITERATIONS)

    def users(self) -> dict[str, dict[ScramMechanism, int]]:
        """Map user to mechanism to iterations, for all users that have a credential."""
        found: dict[str, dict[ScramMechanism, int]] = {}
        for (user, mechanism), credential in self._controller.image.scram.items():
            found.setdefault(user, {})[ScramMechanism(mechanism)] = credential.iterations
        return found

    def put(self, user: str, mechanism: ScramMechanism, iterations: int, salt: bytes, salted_password: bytes) -> None:
        """Set a credential. Raises UnacceptableCredentialError, and what ``MetadataController.commit`` raises."""
        if not user:
            raise UnacceptableCredentialError("Username must not be empty")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise UnacceptableCredentialError(
                "Too few iterations" if iterations < MIN_ITERATIONS else "Too many iterations"
            )
        credential = derive(mechanism, iterations, salt, salted_password)
        self._controller.commit([credential_record(user, mechanism, credential)])

    def delete(self, user: str, mechanism: ScramMechanism) -> None:
        """Remove a credential. Raises ResourceNotFoundError, and what ``MetadataController.commit`` raises."""
        if self.get(user, mechanism) is None:
            raise ResourceNotFoundError("Attempt to delete a user credential that does not exist")
        record = RemoveUserScramCredentialRecord(name=user, mechanism=mechanism)
        self._controller.commit([VersionedRecord(record)])


def count_iterations(credentials: Mapping[tuple[str, int], ScramState], mechanism: ScramMechanism) -> int:
    """Return the most common number of iterations that a mechanism has among the first COUNTED credentials of all
    mechanisms; MIN_ITERATIONS if it has none there.
    """
    counted = Counter(
        credential.iterations for (_, one), credential in islice(credentials.items(), COUNTED) if one == mechanism
    )
    return counted.most_common(1)[0][0] if counted else MIN_ITERATIONS


def mechanism_of(number: int) -> ScramMechanism:
    """Return the mechanism with this number. Raises UnsupportedSaslMechanismError."""
    try:
        return ScramMechanism(number)
    except ValueError:
        raise UnsupportedSaslMechanismError("Unknown SCRAM mechanism") from None


def derive(mechanism: ScramMechanism, iterations: int, salt: bytes, salted_password: bytes) -> ScramState:
    """Derive the keys of RFC 5802 from a salted password."""
    import hashlib  # only brokers with users need these
    import hmac

    name = mechanism.hash_name
    client_key = hmac.digest(salted_password, b"Client Key", name)
    server_key = hmac.digest(salted_password, b"Server Key", name)
    return ScramState(salt, hashlib.new(name, client_key).digest(), server_key, iterations)


def credential_record(user: str, mechanism: ScramMechanism, credential: ScramState) -> VersionedRecord:
    """Return the record that sets a user's credential."""
    return VersionedRecord(scram_record(user, mechanism, credential))
