"""``tidelog status``: its counts, and the partitions and groups that it names."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.client import ClientError
from tidelog.client.admin import groups, nodes
from tidelog.client.admin.groups import Group, ListedGroup, Member, PartitionLag
from tidelog.client.admin.nodes import LogDir, LogDirPartition
from tidelog.client.admin.topics import Partition, Topic
from tidelog.commands.manage.group import as_object, print_group
from tidelog.commands.manage.status import (
    SHOWN_ROWS,
    ask_brokers,
    describe_groups,
    directories_in,
    groups_in,
    partitions_in,
    shorten,
    show,
)
from tidelog.console.rendering import render
from tidelog.console.view import Page

TOPICS = [
    Topic("fine", "", False, [Partition(0, 1, 0, [1, 2], [1, 2], [])]),
    Topic("ill", "", False, [Partition(0, -1, 0, [1], [], [1]), Partition(1, 1, 0, [1, 2], [1], [2])]),
]


def group(name: str, *lags: int | None) -> Group:
    places = [PartitionLag("t", number, 0, lag, lag, None) for number, lag in enumerate(lags)]
    return Group(name, "classic", "Stable", "", [Member("m", "c", "h", [])], places)


def test_leaderless_and_under_replicated_partitions_are_listed() -> None:
    assert partitions_in(TOPICS) == {
        "topics": 2, "partitions": 3, "leaderless": ["ill-0"], "under_replicated": ["ill-1"],
    }  # fmt: skip


def test_groups_that_lag_come_with_the_farthest_first() -> None:
    listed = [ListedGroup(name, "classic", "", "") for name in "abcd"]
    found = groups_in(listed, [group("a", 1, None), group("b", 5, 5), group("c", 0)])
    assert (found["groups"], found["states"]) == (4, {"Stable": 3})
    assert [(one["group"], one["lag"], one["lag_at_least"]) for one in found["lagging"]] == [
        ("b", 10, 10), ("a", None, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "lags", "text", "total"),
    [([5, 7], [5, 7], "12", 12), ([5, None], [5, None], "at least 5", None), ([None], [None], "unknown", None),
     ([5, 0], [5, None], "5", 5), ([7], [None], "unknown", None), ([], [], "0", 0)],
)  # fmt: skip
def test_a_lag_that_is_not_known_says_so(
    ends: list[int | None], lags: list[int | None], text: str, total: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [
        PartitionLag("t", number, 0, end, lag, None) for number, (end, lag) in enumerate(zip(ends, lags, strict=True))
    ]
    found = Group("g", "classic", "Stable", "", [], places)
    print_group(found)
    assert capsys.readouterr().out.splitlines()[2] == f"lag: {text}"
    assert (as_object(found)["lag"], as_object(found)["lag_at_least"]) == (total, sum(lag or 0 for lag in lags))
    values = {"section": "groups", "group": found, "rows": places, "next": None, "lags": [5],
              "lags_are_partial": total is None, "members": [], "max_assigned": 1}  # fmt: skip
    page = render(Page("group.html", "g", values))
    assert f'<dd id="lag">{text}</dd>' in page
    assert ("has an open log" in page) == (total is None)


def test_the_screen_says_which_lag_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    show({
        "cluster": "c", "controller": 1, "brokers": [], **partitions_in([]), "log_dirs": [], "problems": [],
        **groups_in([], [group("a", 1, None), group("b", 5, 5)]),
    })  # fmt: skip
    assert [line.split()[3:] for line in capsys.readouterr().out.splitlines() if line[:2] in ("a ", "b ")] == [
        ["10"], ["at", "least", "1"],
    ]  # fmt: skip


def test_the_screen_says_that_not_all_groups_were_described(capsys: pytest.CaptureFixture[str]) -> None:
    listed = [ListedGroup(f"g{number}", "classic", "", "") for number in range(60)]
    show({
        "cluster": "c", "controller": 1, "brokers": [], **partitions_in([]), "log_dirs": [], "problems": [],
        **groups_in(listed, [group("g0", 0)]),
    })  # fmt: skip
    assert "groups: 60, of which 1 were described (1 Stable)\n" in capsys.readouterr().out


def test_directories_have_the_bytes_of_their_partitions() -> None:
    parts = [LogDirPartition(1, "/d", "t", number, 10, 0, False) for number in range(2)]
    first, second = directories_in([LogDir(1, "/d", 100, 50, parts), LogDir(2, "/d", -1, -1, [])])
    assert (first["partitions"], first["size"], first["free"]) == (2, 20, 50)
    assert (second["size"], second["free"]) == (0, None)


def test_the_screen_shows_the_state_of_the_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    show({
        "cluster": "c", "controller": 1, "brokers": [{"id": 1, "host": "h", "port": 9}], **partitions_in(TOPICS),
        **groups_in([], []), "log_dirs": directories_in([LogDir(1, "/d", 1, 1, [])]), "problems": ["broker 2: none"],
    })  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [
        "cluster: c, controller 1", "brokers: 1 (h:9)", "topics: 2, 3 partitions", "leaderless: ill-0",
        "under-replicated: ill-1", "groups: 0", "BROKER  DIRECTORY  PARTITIONS  SIZE  FREE",
        "     1  /d                  0     0     1", "broker 2: none",
    ]  # fmt: skip


class OneOfTwo:
    """A cluster whose second broker is away, with all its groups."""

    def brokers(self) -> dict[int, str]:
        return {1: "one", 2: "two"}


def test_a_broker_that_is_away_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def groups_at(_cluster: Any, address: str) -> list[ListedGroup]:
        if address == "two":
            raise ClientError("no answer")
        return [ListedGroup(f"g{number}", "classic", "", "") for number in range(9)]

    def describe_group(_cluster: Any, name: str) -> Group:
        asked.append(name)
        if name == "g0":
            return group(name, 5)
        raise ClientError("no answer")

    monkeypatch.setattr(groups, "groups_at", groups_at)
    monkeypatch.setattr(groups, "describe_group", describe_group)
    monkeypatch.setattr(nodes, "log_dirs_at", lambda _cluster, node, _address: [LogDir(node, "/d", 1, 1, [])])
    cluster: Any = OneOfTwo()
    found = ask_brokers(cluster)
    assert [one.lag for one in describe_groups(cluster, found)] == [5]
    assert asked == ["g0", "g1", "g2", "g3"], "each may take the time-out"
    assert [one.broker for one in found.directories] == [1]
    assert [one.partition(":")[0] for one in found.problems] == ["broker 2", "group g1", "group g2", "group g3"]


def test_many_names_are_shortened() -> None:
    assert shorten(["a"]) == "a"
    assert shorten(["a"] * (SHOWN_ROWS + 2)).endswith("a and 2 more")
