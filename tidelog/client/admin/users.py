"""Requests that describe, set and delete SCRAM credentials of users. Passwords are salted here and never sent."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.client.cluster import Cluster, raise_for_code
from tidelog.protocol.errors import ResourceNotFoundError
from tidelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)

MECHANISMS = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
"""Mechanism -> its number in the protocol, and its hash."""
DEFAULT_ITERATIONS = 4096
_SALT_BYTES = 24
_UNKNOWN = "unknown ("
"""Begin of the name of a mechanism that only a newer cluster knows; its number follows."""


class Credential(NamedTuple):
    """A user's credential for one mechanism."""

    user: str
    mechanism: str
    iterations: int


def list_credentials(cluster: Cluster, users: Sequence[str] | None = None) -> list[Credential]:
    """List the credentials of these users, or of all. Raises ClientError, KafkaError, also if a named user has none."""
    asked = None if users is None else [UserName(name=name) for name in users]
    request = DescribeUserScramCredentialsRequest(users=asked)
    answer = cluster.ask(request, DescribeUserScramCredentialsResponse)
    raise_for_code(answer.error_code, "users", answer.error_message)
    names = {number: name for name, (number, _) in MECHANISMS.items()}
    found = []
    for result in answer.results:
        if users is None and result.error_code == ResourceNotFoundError.code:
            continue
        raise_for_code(result.error_code, f"user {result.user}", result.error_message)
        found += [
            Credential(result.user, names.get(one.mechanism, f"{_UNKNOWN}{one.mechanism})"), one.iterations)
            for one in result.credential_infos
        ]
    return sorted(found)


def set_password(cluster: Cluster, user: str, mechanism: str, password: str, iterations: int) -> None:
    """Set a user's password for a mechanism. Raises ClientError, KafkaError."""
    number, hash_name = MECHANISMS[mechanism]
    salt = os.urandom(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    upsertion = ScramCredentialUpsertion(
        name=user, mechanism=number, iterations=iterations, salt=salt, salted_password=salted
    )
    _alter(cluster, user, AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]))


def delete_credentials(cluster: Cluster, user: str, mechanisms: Sequence[str]) -> None:
    """Delete a user's credentials for these mechanisms, as ``list_credentials`` names them. Raises ClientError,
    KafkaError."""
    deletions = [ScramCredentialDeletion(name=user, mechanism=_number_of(one)) for one in mechanisms]
    _alter(cluster, user, AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[]))


def _number_of(mechanism: str) -> int:
    if mechanism.startswith(_UNKNOWN):
        return int(mechanism.removeprefix(_UNKNOWN).removesuffix(")"))
    return MECHANISMS[mechanism][0]


def _alter(cluster: Cluster, user: str, request: AlterUserScramCredentialsRequest) -> None:
    for result in cluster.ask(request, AlterUserScramCredentialsResponse).results:
        raise_for_code(result.error_code, f"user {user}", result.error_message)
