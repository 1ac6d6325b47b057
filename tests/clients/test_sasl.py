"""Unmodified clients on listeners that authenticate, by every mechanism, with and without TLS, with right and wrong
passwords."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.broker import TidelogProcess, free_port
from tests.support.certificates import Certificates
from tests.support.kraft_node import wait_until
from tests.support.secured_clients import CLIENTS, QUICK, RefusedError, Security
from tidelog.client import Client
from tidelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)

VALUES = [b"one", b"two", b"three"]
MECHANISMS = {"PLAIN": 0, "SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
OLD = "kcat"
"""Version 1.7.1 with librdkafka 2.0.2 fails at SCRAM against Apache Kafka 4.3.1, too."""
SHY = "kafka-python"
"""Version 3.0 often tells no more than that the connection ended, and then that it could not bootstrap."""
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="secret, \\"really\\"";'
PASSWORD = 'secret, "really"'
SAYS_SO = {
    "librdkafka": r"_AUTHENTICATION .*[Aa]uthentication failed",
    "kcat": r"[Aa]uthentication failed",
    "aiokafka": r"(?i)authentication ?failed",
    "java": r"SaslAuthenticationException",
}
"""How each client says that it was not the right user or password."""


class Secured:
    """A broker with a listener in clear for the test, and one of each protocol that authenticates."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates(directory)
        self.addresses = {protocol: f"127.0.0.1:{free_port()}" for protocol in PROTOCOLS}
        listeners = ",".join(f"{protocol}://{address}" for protocol, address in self.addresses.items())
        jaas = {f"listener.name.{protocol.lower()}.plain.sasl.jaas.config": JAAS for protocol in PROTOCOLS}
        self.broker = TidelogProcess(directory / "broker", {
            "listeners": f"PLAINTEXT://127.0.0.1:0,{listeners}",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            **jaas,
            **self.certificates.server_texts(),
        })  # fmt: skip

    def security(self, protocol: str, mechanism: str) -> Security:
        ca = self.certificates.authority.certificate
        return Security(protocol, ca, mechanism=mechanism, user="ann", password=PASSWORD)

    def add_scram_users(self) -> None:
        upsertions = []
        for mechanism, hash_name in ((1, "sha256"), (2, "sha512")):
            salt = os.urandom(16)
            salted = hashlib.pbkdf2_hmac(hash_name, PASSWORD.encode(), salt, 4096)
            upsertions.append(
                ScramCredentialUpsertion(
                    name="ann", mechanism=mechanism, iterations=4096, salt=salt, salted_password=salted
                )
            )
        with Client(self.broker.bootstrap) as client:
            request = AlterUserScramCredentialsRequest(upsertions=upsertions)
            response = client.call(request, AlterUserScramCredentialsResponse)
        assert [result.error_code for result in response.results] == [0]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("sasl"))
    with secured.broker:
        secured.add_scram_users()
        yield secured


@pytest.mark.parametrize(
    ("protocol", "mechanism", "client"),
    [
        *(("SASL_PLAINTEXT", "PLAIN", client) for client in CLIENTS),
        *(("SASL_SSL", "SCRAM-SHA-256", client) for client in QUICK if client != OLD),
        *(("SASL_SSL", "SCRAM-SHA-512", client) for client in CLIENTS if client != OLD),
    ],
)
def test_a_client_with_the_right_password_is_served(
    secured: Secured, client: str, protocol: str, mechanism: str
) -> None:
    security = secured.security(protocol, mechanism)
    topic = f"{client}-{protocol}-{mechanism}"
    assert CLIENTS[client](secured.addresses[protocol], security, topic, VALUES) == VALUES


@pytest.mark.parametrize(
    ("protocol", "mechanism", "user", "client"),
    [
        *(("SASL_PLAINTEXT", "PLAIN", "ann", client) for client in QUICK if client != SHY),
        *(("SASL_PLAINTEXT", "SCRAM-SHA-512", "ann", client) for client in QUICK if client != SHY),
        *(("SASL_SSL", "SCRAM-SHA-256", "unknown", client) for client in CLIENTS if client != SHY),
    ],
)
def test_a_client_with_a_wrong_password_or_name_says_so(
    secured: Secured, client: str, protocol: str, mechanism: str, user: str
) -> None:
    security = replace(secured.security(protocol, mechanism), user=user, password="wrong")
    with pytest.raises(RefusedError) as refused:
        CLIENTS[client](secured.addresses[protocol], security, "never", VALUES)
    assert re.search(SAYS_SO[client], str(refused.value)), refused.value


def test_failures_and_logins_are_in_the_audit_log_and_passwords_are_not(secured: Secured) -> None:
    right = secured.security("SASL_PLAINTEXT", "PLAIN")
    assert CLIENTS["aiokafka"](secured.addresses["SASL_PLAINTEXT"], right, "audited", VALUES) == VALUES
    with pytest.raises(RefusedError):
        CLIENTS["aiokafka"](secured.addresses["SASL_PLAINTEXT"], replace(right, password="wrong"), "never", VALUES)
    log = secured.broker.log_path
    wait_until(lambda: '"event": "login failed"' in log.read_text(), "the failed login is told")
    text = log.read_text()
    assert '"user": "ann"' in text
    assert PASSWORD not in text
    assert "wrong" not in text
