"""A broker with a listener for each way to connect, one user with every login mechanism, and ACLs.

    listener PLAINTEXT  for the test, whose client is a super user
    SSL, MTLS           TLS; MTLS asks for a client certificate
    SASL_PLAINTEXT, SASL_SSL  logins

Every user may do everything, except with topics and groups whose names begin with ``denied``.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64encode
from pathlib import Path
from typing import NamedTuple

from tests.support.broker import TidelogProcess, free_port
from tests.support.certificates import Certificates, Pair
from tests.support.secured_clients import Security
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.client import Client
from tidelog.client.security import Security as ClientSecurity
from tidelog.protocol.acl import AclOperation, AclPermissionType, PatternType, ResourceType
from tidelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from tidelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from tidelog.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

PASSWORD = 'secret, "really"'
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="secret, \\"really\\"";'
SCRAM = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
"""For each mechanism its number in AlterUserScramCredentials, and its hash."""
LISTENERS = {"SSL": "SSL", "MTLS": "SSL", "SASL_PLAINTEXT": "SASL_PLAINTEXT", "SASL_SSL": "SASL_SSL"}
"""The security protocol of each listener."""


class Way(NamedTuple):
    """One way to connect: a listener, and the login mechanism, empty for a listener without logins."""

    listener: str
    mechanism: str = ""

    def __str__(self) -> str:
        return f"{self.listener}-{self.mechanism}" if self.mechanism else self.listener


WAYS = [
    Way("SSL"),
    Way("MTLS"),
    *(Way(listener, each) for listener in ("SASL_PLAINTEXT", "SASL_SSL") for each in ("PLAIN", *SCRAM)),
]


class SecuredWorld:
    """The broker and its certificates, and the settings with which clients connect to it."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates(directory)
        self.expired = self.certificates.authority.issue("expired", "/CN=late", days=-1)
        self.addresses = {listener: f"127.0.0.1:{free_port()}" for listener in LISTENERS}
        listeners = ",".join(f"{listener}://{address}" for listener, address in self.addresses.items())
        protocols = ",".join(f"{listener}:{protocol}" for listener, protocol in LISTENERS.items())
        jaas = {f"listener.name.{name}.plain.sasl.jaas.config": JAAS for name in ("sasl_plaintext", "sasl_ssl")}
        self.broker = TidelogProcess(directory / "broker", {
            "listeners": f"PLAINTEXT://127.0.0.1:0,{listeners}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{protocols}",
            "listener.name.mtls.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM)),
            "delegation.token.secret.key": "word",
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            **jaas,
            **self.certificates.server_texts(),
        })  # fmt: skip

    def security(self, way: Way, *, user: str = "ann", password: str = PASSWORD) -> Security:
        """Return a client's settings for ``way``, by default with the right user and password."""
        pair = self.certificates.client if way.listener == "MTLS" else None
        login = {"mechanism": way.mechanism, "user": user, "password": password} if way.mechanism else {}
        return Security(LISTENERS[way.listener], self.certificates.authority.certificate, pair=pair, **login)

    def wrong_pair(self, kind: str) -> Pair | None:
        """Return a client certificate that the broker refuses; ``none`` is no certificate."""
        return {"expired": self.expired, "a stranger's": self.certificates.stranger, "none": None}[kind]

    def prepare(self) -> None:
        """Add the user's SCRAM passwords, and the ACLs."""
        with Client(self.broker.bootstrap) as client:
            users = AlterUserScramCredentialsRequest(upsertions=[self._upsertion(each) for each in SCRAM])
            answer = client.call(users, AlterUserScramCredentialsResponse)
            assert [result.error_code for result in answer.results] == [0]
            denials = [denial(ResourceType.TOPIC), denial(ResourceType.GROUP)]
            made = client.call(CreateAclsRequest(creations=denials), CreateAclsResponse)
            assert [result.error_code for result in made.results] == [0, 0]

    def _upsertion(self, mechanism: str) -> ScramCredentialUpsertion:
        number, hash_name = SCRAM[mechanism]
        salt = os.urandom(16)
        salted = hashlib.pbkdf2_hmac(hash_name, PASSWORD.encode(), salt, 4096)
        return ScramCredentialUpsertion(
            name="ann", mechanism=number, iterations=4096, salt=salt, salted_password=salted
        )

    def token(self) -> tuple[str, str]:
        """Create a delegation token of the user; return its id, and the password to log in with."""
        login = ClientSecurity({
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "ann", "sasl.password": PASSWORD,
        })  # fmt: skip
        with Client(self.addresses["SASL_PLAINTEXT"], security=login) as client:
            made = client.call(CreateDelegationTokenRequest(max_lifetime_ms=-1), CreateDelegationTokenResponse)
        assert made.error_code == 0
        return made.token_id, b64encode(made.hmac).decode()


def denial(resource_type: ResourceType) -> AclCreation:
    """Build a rule that denies everything with resources whose names begin with ``denied``."""
    return AclCreation(
        resource_type=resource_type, resource_name="denied", resource_pattern_type=PatternType.PREFIXED,
        principal="User:*", host="*", operation=AclOperation.ALL, permission_type=AclPermissionType.DENY,
    )  # fmt: skip
