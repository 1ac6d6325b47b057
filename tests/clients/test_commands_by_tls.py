"""Commands over TLS, by a profile with the keys of Kafka's clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import TidelogProcess, free_port
from tests.support.certificates import Certificates
from tidelog.cli import main


class Secured:
    """A broker with one listener for TLS and one that asks for a certificate as well."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates(directory)
        self.addresses = {"ssl": f"127.0.0.1:{free_port()}", "mtls": f"127.0.0.1:{free_port()}"}
        self.broker = TidelogProcess(directory / "broker", {
            "listeners": f"PLAINTEXT://127.0.0.1:0,SSL://{self.addresses['ssl']},MTLS://{self.addresses['mtls']}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MTLS:SSL",
            "listener.name.mtls.ssl.client.auth": "required",
            "admin.authentication": "none",  # `find` asks there; who has a certificate alone has no login for it
            **self.certificates.server_texts(),
        })  # fmt: skip

    def profile(self, path: Path, listener: str, **changes: str) -> Path:
        """Write the profile of a client."""
        texts = {
            "bootstrap.servers": self.addresses[listener],
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.authority.certificate),
        } | {key.replace("_", "."): text for key, text in changes.items()}
        path.write_text("".join(f"{key}={text}\n" for key, text in texts.items()))
        return path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("secured"))
    with secured.broker:
        yield secured


@pytest.mark.parametrize("listener", ["ssl", "mtls"])
def test_records_are_produced_and_consumed(
    secured: Secured, listener: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"ssl_keystore_location": str(secured.certificates.client.pem)} if listener == "mtls" else {}
    profile = ["--profile", str(secured.profile(tmp_path / "profile", listener, **own))]
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    assert main(["topic", "create", listener, *profile]) == 0
    assert main(["produce", listener, str(lines), *profile]) == 0
    capsys.readouterr()
    assert main(["consume", listener, "--format", "value", "--group", f"group-{listener}", *profile]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    assert main(["find", listener, "--from", "1h", *profile]) == 0
    assert main(["ping", *profile]) == 0


def test_a_broker_that_is_not_trusted_is_reported_in_one_line(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = secured.certificates.directory / "stranger.crt"
    profile = secured.profile(tmp_path / "profile", "ssl", ssl_truststore_location=str(stranger))
    assert main(["topic", "list", "--profile", str(profile)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tidelog topic list: the certificate of 127.0.0.1 is not trusted: ")


@pytest.mark.parametrize("own", [False, True])
def test_a_client_that_the_broker_does_not_trust_is_reported_in_one_line(
    secured: Secured, own: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"ssl_keystore_location": str(secured.certificates.stranger.pem)} if own else {}
    profile = secured.profile(tmp_path / "profile", "mtls", **changes)
    assert main(["topic", "list", "--profile", str(profile)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert secured.addresses["mtls"] in line
