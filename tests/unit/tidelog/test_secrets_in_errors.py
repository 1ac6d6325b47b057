"""No error text of a command shows a secret, not even one that is not UTF-8."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

from tidelog.cli import main
from tidelog.commands.frame.exit_codes import EXIT_USAGE

SECRET = "hidden\udcffword"
"""A password of the command line that is not UTF-8, as Python decodes it."""


class NoCluster:
    """A stand-in for the cluster: the password is salted before anything is sent."""

    def __enter__(self) -> NoCluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def without_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.client.cluster.Cluster.open", lambda _settings: NoCluster())


def failure(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code = main(words)
    error = capsys.readouterr().err
    assert (code, len(error.splitlines())) == (EXIT_USAGE, 1), error
    for part in ("hidden", "word", "udcff"):
        assert part not in error.removeprefix("tidelog").replace("password", "")
    return error


def test_a_password_that_is_not_utf8_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    error = failure(capsys, "user", "create", "ann", "--password", SECRET)
    assert error == "tidelog user create: --password is not UTF-8\n"


def test_a_password_at_the_prompt_that_is_not_utf8_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prompt(*_: object, **__: object) -> str:
        return b"hidden\xffword".decode()  # as the terminal's text stream decodes it

    monkeypatch.setattr("click.prompt", prompt)
    error = failure(capsys, "user", "create", "ann")
    assert error.startswith("tidelog user create: expected a password in UTF-8")


def test_a_prompt_that_keeps_other_bytes_is_refused_without_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.prompt", lambda *_, **__: SECRET)
    error = failure(capsys, "user", "create", "ann")
    assert error.startswith("tidelog user create: expected a password in UTF-8")


def test_a_terminal_may_send_a_password_that_is_not_utf8() -> None:
    """The real prompt reads /dev/tty: no traceback, and nothing of the password."""
    script = (
        "import os, sys; from tidelog.cli import main; sys.exit(main(['user', 'create', 'ann', '-b', '127.0.0.1:1']))"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", script])
    seen = b""
    os.set_blocking(terminal, True)
    sent = False
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
        if b"assword" in seen and not sent:
            os.write(terminal, b"hidden\xffword\n")
            sent = True
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == EXIT_USAGE, seen
    assert b"expected a password in UTF-8" in seen
    assert b"Traceback" not in seen
    assert b"hidden" not in seen


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["user", "create", "\udcff", "--password", "x"], "USER"),
        (["config", "set", "topic", "orders", f"sasl.jaas.config={SECRET}"], "KEY=VALUE"),
    ],
)
def test_the_parameter_that_is_not_utf8_is_named(
    words: list[str], name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*_: object) -> None:
        SECRET.encode()

    monkeypatch.setattr("tidelog.client.admin.users.set_password", encode)
    monkeypatch.setattr("tidelog.client.admin.configs.alter", encode, raising=False)
    monkeypatch.setattr(NoCluster, "__getattr__", lambda _self, _name: encode, raising=False)
    assert name in failure(capsys, *words)


@pytest.mark.parametrize(
    "words",
    [
        ["config", "set", "topic", "orders", "ssl.key.password=", "hiddenword"],
        ["topic", "create", "orders", "-c", "ssl.key.password hiddenword"],
    ],
)
def test_a_value_that_is_cut_off_from_its_key_is_not_shown(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "without key or equals sign" in failure(capsys, *words)


def test_half_a_character_of_a_profile_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A properties file may name half a character, ``\\udcff``, of a password."""

    def encode(*_: object) -> None:
        SECRET.encode()

    monkeypatch.setattr("tidelog.client.admin.users.list_credentials", encode)
    assert failure(capsys, "user", "list") == "tidelog user list: a text is not UTF-8\n"
