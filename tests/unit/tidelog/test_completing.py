"""Names that a shell completes: those of the broker in the options typed so far, none if it fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click
import pytest

from tidelog.client import ClientError
from tidelog.client.admin import groups, topics
from tidelog.client.cluster import Cluster
from tidelog.client.settings import ClientSettings
from tidelog.commands.frame.completing import SHORT_S, complete_groups, complete_topics
from tidelog.commands.frame.completion_variable import COMPLETION_VARIABLE
from tidelog.commands.manage.group import command as group_command
from tidelog.commands.manage.topic import command as topic_command
from tidelog.commands.records.consume import command as consume_command


class OpenCluster:
    """A cluster that has been opened."""

    def __enter__(self) -> OpenCluster:
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[ClientSettings]:
    """The settings by which clusters are opened; they have some topics and groups."""
    seen: list[ClientSettings] = []

    def open_cluster(settings: ClientSettings) -> OpenCluster:
        seen.append(settings)
        return OpenCluster()

    named = [("orders", False), ("ordinary", False), ("payments", False), ("__consumer_offsets", True)]
    listed = [SimpleNamespace(name=name, internal=internal) for name, internal in named]
    monkeypatch.setattr(Cluster, "open", open_cluster)
    monkeypatch.setattr(topics, "list_topics", lambda _: listed)
    monkeypatch.setattr(groups, "list_groups", lambda _: [SimpleNamespace(group="billing")])
    return seen


def completed(command: click.Command, words: list[str], incomplete: str) -> list[str]:
    """Return what the shell completes after these words."""
    from click.shell_completion import ShellComplete

    complete = ShellComplete(command, {}, "tidelog", COMPLETION_VARIABLE)
    return [item.value for item in complete.get_completions(words, incomplete)]


def test_topics_are_completed_by_their_beginning(opened: list[ClientSettings]) -> None:
    assert completed(topic_command, ["describe"], "ord") == ["orders", "ordinary"]
    assert completed(topic_command, ["delete", "-b", "other:9092", "orders"], "p") == ["payments"]
    assert completed(consume_command, [], "__") == ["__consumer_offsets"]
    assert completed(topic_command, ["describe"], "") == ["orders", "ordinary", "payments"]
    assert [settings.bootstrap for settings in opened][1] == "other:9092"
    assert {settings.timeout_s for settings in opened} == {SHORT_S}


def test_groups_are_completed(opened: list[ClientSettings]) -> None:
    assert completed(group_command, ["describe"], "b") == ["billing"]
    assert completed(group_command, ["describe"], "x") == []
    assert opened


@pytest.mark.parametrize(
    "name",
    [
        "b;reboot", "b$(reboot)", "b`reboot`", "b reboot", "b\nfile,x", "b\treboot", "b|sh", "b&", "b>x", "b<x", "b*",
        "b?", "b[a]", "b{a,b}", "b!!", "b#x", "b'", 'b"', "b\\", "b\x1b[2J", "b\r", "b\0", "b\u2028", "b\u202e", "b(",
        "b)", "b^", "-b", "--delete", "~root", "=b", "#b", "",
    ],
)  # fmt: skip
def test_a_name_that_a_shell_would_take_for_more_than_a_word_is_not_completed(
    opened: list[ClientSettings], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Shells put the completion in the line as it is, and every client may choose the name of its group."""
    listed = [SimpleNamespace(group=group) for group in (name, "b-1.of:team_2@host", "bürger")]
    monkeypatch.setattr(groups, "list_groups", lambda _: listed)
    found = complete_groups(click.Context(group_command), click.Option(["--group"]), "")
    assert found == ["b-1.of:team_2@host", "bürger"]
    assert opened


@pytest.mark.parametrize("complete", [complete_topics, complete_groups])
def test_a_broker_that_does_not_answer_completes_nothing(complete: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: ClientSettings) -> Any:
        raise ClientError("no broker")

    monkeypatch.setattr(Cluster, "open", refuse)
    context = click.Context(topic_command)
    assert complete(context, topic_command.params[0] if topic_command.params else None, "") == []
