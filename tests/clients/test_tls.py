"""Unmodified clients on TLS listeners: with and without client certificates, valid and invalid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.broker import TidelogProcess, free_port
from tests.support.certificates import Certificates
from tests.support.secured_clients import CLIENTS, QUICK, RefusedError, Security

VALUES = [b"one", b"two" * 5000, b"three"]
SAYS_SO = {
    "librdkafka": r"(?i)ssl|certificate",
    "kcat": r"(?i)ssl|certificate",
    "aiokafka": r"(?i)ssl|certificate",
    "kafka-python": r"(?i)ssl|certificate|handshake",
    "java": r"SslAuthenticationException",
}
"""How each client says that TLS is what failed."""
CLOSED = SAYS_SO | {"librdkafka": "_SSL|_ALL_BROKERS_DOWN", "aiokafka": "closed"}
"""With TLS 1.3 the broker judges a client's certificate after the client's handshake is over: some see an end alone."""


class Secured:
    """A broker with a listener for TLS and one that asks for certificates, too."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates(directory)
        self.ssl, self.mtls = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.broker = TidelogProcess(directory / "broker", {
            "listeners": f"PLAINTEXT://127.0.0.1:0,SSL://{self.ssl},MTLS://{self.mtls}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MTLS:SSL",
            "listener.name.mtls.ssl.client.auth": "required",
            **self.certificates.server_texts(),
        })  # fmt: skip
        self.security = Security("SSL", self.certificates.authority.certificate)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("tls"))
    with secured.broker:
        yield secured


@pytest.mark.parametrize("client", QUICK)
def test_a_client_produces_and_consumes(secured: Secured, client: str) -> None:
    assert CLIENTS[client](secured.ssl, secured.security, f"tls-{client}", VALUES) == VALUES


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_certificate_is_accepted(secured: Secured, client: str) -> None:
    security = replace(secured.security, pair=secured.certificates.client)
    assert CLIENTS[client](secured.mtls, security, f"mtls-{client}", VALUES) == VALUES


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_does_not_trust_the_broker_says_so(secured: Secured, client: str) -> None:
    stranger = secured.certificates.directory / "stranger.crt"
    with pytest.raises(RefusedError) as refused:
        CLIENTS[client](secured.ssl, replace(secured.security, ca=stranger), "never", VALUES)
    assert re.search(SAYS_SO[client], str(refused.value)), refused.value


@pytest.mark.parametrize(
    ("client", "shown"),
    [*((client, "no certificate") for client in QUICK), *((client, "of a stranger") for client in CLIENTS)],
)
def test_a_client_whom_the_broker_does_not_trust_is_refused(secured: Secured, client: str, shown: str) -> None:
    pair = None if shown == "no certificate" else secured.certificates.stranger
    with pytest.raises(RefusedError) as refused:
        CLIENTS[client](secured.mtls, replace(secured.security, pair=pair), "never", VALUES)
    assert re.search(CLOSED[client], str(refused.value)), refused.value
