"""Commands on listeners that authenticate, with and without TLS, by a profile with the keys of Kafka's clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import TidelogProcess, free_port
from tests.support.certificates import Certificates
from tidelog.cli import main

PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD = 'secret, "really"=\\'
MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    **dict.fromkeys(SCRAM, "org.apache.kafka.common.security.scram.ScramLoginModule"),
}


def quoted(text: str) -> str:
    """Quote a value for a JAAS text."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def in_properties(text: str) -> str:
    """Escape a value for a properties file."""
    return text.replace("\\", "\\\\")


class Secured:
    """A broker with a listener in clear for the test, and one of each protocol that authenticates; ann is a user."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates(directory)
        self.addresses = {protocol: f"127.0.0.1:{free_port()}" for protocol in PROTOCOLS}
        listeners = ",".join(f"{protocol}://{address}" for protocol, address in self.addresses.items())
        jaas = f"{MODULES['PLAIN']} required user_ann={quoted(PASSWORD)};"
        self.broker = TidelogProcess(directory / "broker", {
            "listeners": f"PLAINTEXT://127.0.0.1:0,{listeners}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": ",".join(MODULES),
            **{f"listener.name.{protocol.lower()}.plain.sasl.jaas.config": jaas for protocol in PROTOCOLS},
            **self.certificates.server_texts(),
        })  # fmt: skip

    def add_scram_users(self) -> None:
        """Add the users by the command itself, over the listener in clear."""
        for mechanism in SCRAM:
            options = ["--mechanism", mechanism, "--password", PASSWORD, "--bootstrap", self.broker.bootstrap]
            assert main(["user", "create", "ann", *options]) == 0

    def profile(self, path: Path, protocol: str, mechanism: str, *, password: str = PASSWORD, jaas: bool = True) -> str:
        """Write the profile of ann, with a JAAS text or with librdkafka's keys; return its path."""
        texts = {
            "bootstrap.servers": self.addresses[protocol],
            "security.protocol": protocol,
            "sasl.mechanism": mechanism,
        }
        if jaas:
            module = MODULES.get(mechanism, "none")
            texts["sasl.jaas.config"] = f"{module} required username=ann password={quoted(password)};"
        else:
            texts |= {"sasl.username": "ann", "sasl.password": password}
        if protocol == "SASL_SSL":
            ca = str(self.certificates.authority.certificate)
            texts |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": ca}
        path.write_text("".join(f"{key}={in_properties(text)}\n" for key, text in texts.items()))
        return str(path)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("secured"))
    with secured.broker:
        secured.add_scram_users()
        yield secured


@pytest.mark.parametrize(
    ("protocol", "mechanism", "jaas"),
    [
        ("SASL_PLAINTEXT", "PLAIN", True),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256", False),
        ("SASL_SSL", "PLAIN", False),
        ("SASL_SSL", "SCRAM-SHA-512", True),
    ],
)
def test_records_are_produced_and_consumed(
    secured: Secured, protocol: str, mechanism: str, jaas: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = ["--profile", secured.profile(tmp_path / "profile", protocol, mechanism, jaas=jaas)]
    topic = f"{protocol}-{mechanism}"
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    assert main(["topic", "create", topic, *profile]) == 0
    assert main(["produce", topic, str(lines), *profile]) == 0
    capsys.readouterr()
    assert main(["topic", "list", *profile]) == 0
    assert topic in capsys.readouterr().out
    assert main(["consume", topic, "--format", "value", "--group", f"group-{topic}", *profile]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    assert main(["find", topic, "--from", "1h", *profile]) == 0
    assert main(["ping", *profile]) == 0


def test_jobs_of_the_pipeline_log_in(secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = ["--profile", secured.profile(tmp_path / "profile", "SASL_SSL", "SCRAM-SHA-512")]
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    for topic in ("jobs", "jobs-again"):
        assert main(["topic", "create", topic, *profile]) == 0
    assert main(["produce", "jobs", str(lines), *profile]) == 0
    broker = ["--bootstrap", secured.addresses["SASL_SSL"]]
    logs = ["--path", str(secured.broker.data_directory), "--topic", "jobs", "--master", "none", "--quiet"]
    job = ["pipeline", "replay", *logs, "--to", "jobs-again", *broker]
    assert main([*job, *profile]) == 0
    assert main(["consume", "jobs-again", "--format", "value", *profile]) == 0
    assert capsys.readouterr().out.endswith("one\ntwo\n")
    wrong = secured.profile(tmp_path / "wrong", "SASL_SSL", "PLAIN", password="wrong")
    assert main([*job, "--profile", wrong]) == 1
    assert "Invalid username or password" in capsys.readouterr().err
    export = ["pipeline", "export", *logs, *broker, *profile, str(tmp_path / "table")]
    assert main(export) == 0


def error_of(capsys: pytest.CaptureFixture[str], *command: str, code: int = 1) -> str:
    """Run a command that fails, and return its only line."""
    capsys.readouterr()
    assert main(list(command)) == code
    (line,) = capsys.readouterr().err.splitlines()
    return line


INVALID = {
    "PLAIN": "Authentication failed: Invalid username or password",
    "SCRAM-SHA-256": "Authentication failed during authentication due to invalid credentials with SASL mechanism "
    "SCRAM-SHA-256",
}


@pytest.mark.parametrize(
    ("command", "protocol", "mechanism"),
    [
        (("topic", "list"), "SASL_PLAINTEXT", "PLAIN"),
        (("consume", "any"), "SASL_PLAINTEXT", "SCRAM-SHA-256"),
        (("produce", "any", "/dev/null"), "SASL_SSL", "PLAIN"),
        (("ping",), "SASL_SSL", "SCRAM-SHA-256"),
    ],
)
def test_a_wrong_password_is_reported_with_the_message_of_the_broker(
    secured: Secured,
    command: tuple[str, ...],
    protocol: str,
    mechanism: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile = secured.profile(tmp_path / "profile", protocol, mechanism, password="wrong")
    line = error_of(capsys, *command, "--profile", profile)
    assert line.endswith(f": {secured.addresses[protocol]}, login of ann: {INVALID[mechanism]}")
    assert "wrong" not in line


@pytest.mark.parametrize("command", [("topic", "list"), ("produce", "any", "/dev/null"), ("consume", "any")])
def test_an_unsupported_mechanism_is_reported_with_the_supported_ones(
    secured: Secured, command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = secured.profile(tmp_path / "profile", "SASL_PLAINTEXT", "SCRAM-SHA-512")
    line = error_of(capsys, *command, "--profile", profile)
    assert line.endswith("does not support sasl.mechanism=SCRAM-SHA-512; it supports PLAIN, SCRAM-SHA-256")


def test_an_unknown_mechanism_is_reported_before_any_connection(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = secured.profile(tmp_path / "profile", "SASL_SSL", "GSSAPI")
    line = error_of(capsys, "topic", "list", "--profile", profile, code=2)
    told = "sasl.mechanism=GSSAPI: expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"
    assert line == f"tidelog topic list: {told}"


def test_a_profile_without_a_login_is_reported_in_one_line(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile").write_text(f"bootstrap.servers={secured.addresses['SASL_PLAINTEXT']}\n")
    line = error_of(capsys, "topic", "list", "--profile", str(tmp_path / "profile"))
    assert secured.addresses["SASL_PLAINTEXT"] in line


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_passwords_are_in_no_log(secured: Secured, mechanism: str, tmp_path: Path) -> None:
    before = len(secured.broker.log_path.read_text())
    for password, code in ((PASSWORD, 0), ("wrong", 1)):
        profile = secured.profile(tmp_path / "profile", "SASL_SSL", mechanism, password=password)
        assert main(["topic", "list", "--profile", profile]) == code
    text = secured.broker.log_path.read_text()
    assert '"event": "login"' in text[before:]
    assert '"event": "login failed"' in text[before:]
    assert PASSWORD not in text
    assert "wrong" not in text
