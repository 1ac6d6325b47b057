"""Commands for topics whose connection is lost after some of the work: what was done is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from tidelog.cli import main
from tidelog.client import ClientError, SettingsError
from tidelog.commands.frame.exit_codes import EXIT_FAILED, EXIT_USAGE
from tidelog.protocol.errors import TopicAuthorizationFailedError

NAMES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def without_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.client.cluster.Cluster.open", lambda _settings: nullcontext(object()))


def failing_at(failing: str, error: Exception) -> Callable[[object, str], None]:
    def act(_: object, name: str) -> None:
        if name == failing:
            raise error

    return act


@pytest.mark.parametrize(("kind", "function"), [("topic", "topics.delete_topic"), ("group", "groups.delete_group")])
@pytest.mark.parametrize(
    ("error", "done"), [(ClientError("connection lost"), "a"), (TopicAuthorizationFailedError("no"), "ac")]
)
def test_what_was_done_before_a_failure_is_printed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    function: str,
    error: Exception,
    done: str,
) -> None:
    monkeypatch.setattr(f"tidelog.client.admin.{function}", failing_at("b", error))
    assert main([kind, "delete", *NAMES]) == EXIT_FAILED
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"deleted {kind} {name}" for name in done]
    assert printed.err == f"tidelog {kind} delete: {error}\n"
    assert main([kind, "delete", *NAMES, "--json"]) == EXIT_FAILED
    assert [one["deleted"] for one in json.loads(capsys.readouterr().out)] == [True] * len(done)


def test_a_wrong_setting_is_wrong_use(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tidelog.client.admin.topics.delete_topic", failing_at("a", SettingsError("no such key")))
    assert main(["topic", "delete", *NAMES]) == EXIT_USAGE
    assert capsys.readouterr().err == "tidelog topic delete: no such key\n"


@pytest.mark.parametrize("error", [ClientError("connection lost"), TopicAuthorizationFailedError("no")])
def test_a_changed_configuration_is_printed_although_partitions_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr("tidelog.client.admin.configs.alter_configs", lambda *_: None)
    monkeypatch.setattr("tidelog.client.admin.topics.add_partitions", refuse)
    words = ["topic", "alter", "t", "-c", "retention.ms=7", "-p", "9"]
    assert main(words) == EXIT_FAILED
    printed = capsys.readouterr()
    assert printed.out == "changed the configuration of topic t\n"
    assert printed.err == f"tidelog topic alter: {error}\n"
    assert main([*words, "--json"]) == EXIT_FAILED
    assert json.loads(capsys.readouterr().out) == {"name": "t", "configs": {"retention.ms": "7"}, "partitions": None}
    assert main(["topic", "alter", "t", "-p", "9"]) == EXIT_FAILED
    assert capsys.readouterr().out == ""
