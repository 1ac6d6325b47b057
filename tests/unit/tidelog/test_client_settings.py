"""Settings of the client: the choice of the broker, profiles, security keys; the bytes of a connection; columns."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from tidelog import cli
from tidelog.client import ClientError, SettingsError
from tidelog.client.security import Security
from tidelog.client.settings import load_settings
from tidelog.client.wire import MAX_RESPONSE_BYTES, Wire
from tidelog.commands.frame import output
from tidelog.protocol.messages.fetch import FetchRequest
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory whose profile names a broker."""
    profile = tmp_path / ".config" / "tidelog" / "profile.properties"
    profile.parent.mkdir(parents=True)
    profile.write_text("bootstrap.servers=profile:1,other:2\n")
    return tmp_path


def test_options_override_the_profile_and_the_profile_overrides_defaults(home: Path, tmp_path: Path) -> None:
    environment = {"HOME": str(home)}
    assert load_settings("given:1", None, 1, environment).bootstrap == "given:1"
    assert load_settings(None, None, 1, environment).bootstrap == "profile:1,other:2"
    assert load_settings(None, None, 1, {"HOME": str(tmp_path / "none")}).bootstrap == "127.0.0.1:9092"
    assert (
        load_settings(None, None, 1, {"HOME": "/", "XDG_CONFIG_HOME": str(home / ".config")}).bootstrap[:7] == "profile"
    )


def test_a_profile_is_named_by_option_or_variable(home: Path, tmp_path: Path) -> None:
    named = tmp_path / "named.properties"
    named.write_text("bootstrap.servers: named:7\nsecurity.protocol=ssl\n")
    by_option = load_settings(None, str(named), 1, {"HOME": str(home)})
    assert (by_option.bootstrap, by_option.security.protocol) == ("named:7", "SSL")
    assert load_settings(None, None, 1, {"HOME": str(home), "TIDELOG_PROFILE": str(named)}).bootstrap == "named:7"


def test_the_variable_names_the_broker(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", "127.0.0.1:1")
    assert cli.main(["topic", "list"]) == 1
    assert "cannot connect to 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no such file"),
        ("bootstrap.server=h:1", "unknown key 'bootstrap.server'; expected bootstrap.servers"),
        ("security.protocol=TLS", "security.protocol=TLS: expected PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
        (
            "security.protocol=SASL_SSL",
            "sasl.mechanism is missing: expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTH",
        ),
        ("ssl.truststore.type=JKS", "ssl.truststore.type=JKS: expected PEM"),
        ("bootstrap.servers=\\u12", "malformed"),
    ],
)
def test_a_wrong_profile_is_one_line(
    tmp_path: Path, text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "profile.properties"
    if text is not None:
        profile.write_text(text)
    assert cli.main(["topic", "list", "--profile", str(profile)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tidelog topic list: ")
    assert message in line


@pytest.mark.parametrize("timeout", ["0", "-1", "soon", "inf", "nan", "86401"])
def test_a_wrong_time_out_is_refused(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["topic", "list", "--timeout", timeout]) == 2
    assert "expected seconds above 0" in capsys.readouterr().err


def test_the_error_of_a_missing_trust_store_has_its_path(tmp_path: Path) -> None:
    from socket import socketpair

    ours, theirs = socketpair()
    with ours, theirs, pytest.raises(SettingsError, match=r"ssl.truststore.location=.*/none: No such file"):
        Security({"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "none")}).secure(ours, "h")


def test_requests_are_answered_in_their_order() -> None:
    wire = Wire("h:1")
    first, second = (b"".join(wire.encode(MetadataRequest(), version)) for version in (9, 4))
    assert [struct.unpack_from(">ihhi", frame)[1:] for frame in (first, second)] == [(3, 9, 1), (3, 4, 2)]
    assert all(wire.frame_size(frame[:4]) == len(frame) - 4 for frame in (first, second))
    answers = [
        struct.pack(">i", 1) + b"\0" + MetadataResponse(cluster_id="a").encode(9),
        struct.pack(">i", 2) + MetadataResponse(cluster_id="b").encode(4),
    ]
    assert [wire.decode(frame, MetadataResponse).cluster_id for frame in answers] == ["a", "b"]
    assert wire.waiting == 0


def test_only_an_answer_with_records_may_be_longer_than_128_mib() -> None:
    """A batch of a broker with a larger ``message.max.bytes`` and ``socket.request.max.bytes`` could not be read."""
    long = struct.pack(">i", MAX_RESPONSE_BYTES + 1)
    wire = Wire("h:1")
    wire.encode(FetchRequest(), 12)
    assert wire.frame_size(long) == MAX_RESPONSE_BYTES + 1
    wire = Wire("h:1")
    wire.encode(MetadataRequest(), 9)
    with pytest.raises(ClientError, match="this is not a Kafka broker"):
        wire.frame_size(long)


def test_an_answer_to_another_question_is_refused() -> None:
    wire = Wire("h:1")
    wire.encode(MetadataRequest(), 9)
    with pytest.raises(ClientError, match="h:1 answered request 7 instead of 1"):
        wire.decode(struct.pack(">i", 7), MetadataResponse)


def test_columns_are_aligned_and_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "a", "size": 1, "open": True}, {"name": "longer", "size": 100, "open": None}]
    output.print_rows(["name", "size", "open"], rows)
    assert capsys.readouterr().out.splitlines() == ["NAME    SIZE  OPEN", "a          1  yes", "longer   100  -"]


@pytest.mark.parametrize(
    ("is_terminal", "variables", "is_bold"),
    [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False), (False, {}, False)],
)
def test_headings_are_bold_on_a_terminal_that_wants_it(
    is_terminal: bool,
    variables: dict[str, str],
    is_bold: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    output.print_rows(["name"], [])
    assert ("\x1b[1m" in capsys.readouterr().out) == is_bold
