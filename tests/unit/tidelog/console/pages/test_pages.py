"""Models of pages, built from the broker's responses: filters, limits, refusals."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.tidelog.test_client_retries import Scripted
from tidelog.broker.metrics.clients import ConnectedClient
from tidelog.client.admin.acls import Acl
from tidelog.client.admin.configs import ConfigEntry
from tidelog.client.admin.groups import Group, ListedGroup, Member, PartitionLag, describe_group
from tidelog.client.admin.quotas import Quota
from tidelog.client.admin.transactions import ListedTransaction, Transaction
from tidelog.client.admin.users import Credential
from tidelog.commands.manage.group import print_group
from tidelog.console.history import History
from tidelog.console.pages import access, clients, compaction, configuration, groups, overview, transactions
from tidelog.console.rendering import render
from tidelog.console.view import CHECKED_PER_TURN, MAX_ROWS, Page, View
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.errors import ClusterAuthorizationFailedError
from tidelog.protocol.messages import list_groups
from tidelog.protocol.messages import streams_group_describe as streams
from tidelog.protocol.messages.offset_fetch import OffsetFetchResponse

CLIENTS = [
    ConnectedClient("app", "User:ann", "10.0.0.1", "PLAINTEXT", 1, 17, 5.0),
    ConnectedClient(None, "User:ANONYMOUS", "10.0.0.2", "PLAINTEXT", -1, -1, 9.0),
    ConnectedClient("app", "User:ann", "10.0.0.3", "PLAINTEXT", 0, 9, 1.0),
]


CONNECTED = SimpleNamespace(list=lambda limit: CLIENTS[:limit], count=lambda: len(CLIENTS))


def view(parameters: dict[str, str] | None = None, **parts: object) -> View:
    """Build the view of a request to a broker with these parts; jobs for the event loop run at once."""
    broker = SimpleNamespace(node_id=1, clients=CONNECTED, **parts)
    sender = SimpleNamespace(broker=broker, run_in_loop=lambda work: work())
    return View(sender=cast(Any, sender), cluster=cast(Any, None), history=History(), parameters=parameters or {})


def answer(patched: pytest.MonkeyPatch, module: object, **functions: object) -> None:
    """Replace functions of a module by ones that return these values."""
    for name, value in functions.items():
        patched.setattr(module, name, lambda *_, value=value, **__: value)


def test_groups_are_chosen_by_name_and_type(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        ListedGroup("a", "classic", "", ""),
        ListedGroup("ab", "share", "", ""),
        ListedGroup("b", "classic", "", ""),
    ]
    answer(monkeypatch, groups, list_groups=found)
    chosen = {
        query: [one.group for one in groups.list_page(view(dict(query))).values["listing"].rows]
        for query in [(), (("find", "a"),), (("type", "classic"),), (("after", "a"),)]
    }
    assert list(chosen.values()) == [["a", "ab", "b"], ["a", "ab"], ["a", "b"], ["ab", "b"]]


def test_a_group_shows_its_partitions_in_pages_and_how_its_lag_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    lags = [PartitionLag("orders", number, 0, 2, 2, None) for number in range(MAX_ROWS + 1)]
    answer(monkeypatch, groups, describe_group=Group("g", "consumer", "Stable", "", [], lags))
    asked = view({"id": "g", "start": str(MAX_ROWS)})
    asked.history.add_lags({"g": 5})
    values = groups.group_page(asked).values
    assert (values["rows"], values["next"], values["lags"]) == (lags[-1:], None, [5])
    assert groups.group_page(view({"id": "g"})).values["next"] == MAX_ROWS


def test_transactions_are_listed_by_name_and_shown_with_their_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [ListedTransaction("pay-1", 1, "Ongoing"), ListedTransaction("ship-1", 2, "Empty")]
    one = Transaction("pay-1", "Ongoing", 1, 0, 1000, 5, [("orders", 0)])
    answer(monkeypatch, transactions, list_transactions=listed, describe_transaction=one)
    assert transactions.list_page(view({"find": "pay"})).values["listing"].rows == listed[:1]
    clock = SimpleNamespace(milliseconds=lambda: 50)
    assert transactions.transaction_page(view({"id": "pay-1"}, time=clock)).values["partitions"] == [("orders", 0)]


def test_configuration_is_chosen_by_name_and_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        ConfigEntry("log.a", "1", "default", False, False, "A."),
        ConfigEntry("log.b", "2", "file", True, False, "B."),
    ]
    answer(monkeypatch, configuration, describe_configs=entries)
    assert configuration.configuration_page(view({"find": "log."})).values["rows"] == entries
    assert configuration.configuration_page(view({"set": "1"})).values["rows"] == entries[1:]
    assert configuration.configuration_page(view({"find": "x"})).values["count"] == 0


def test_a_part_of_the_access_page_that_is_refused_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[Acl]:
        raise ClusterAuthorizationFailedError("acls: not allowed")

    credentials = [Credential(f"user-{number}", "SCRAM-SHA-256", 4096) for number in range(2 * MAX_ROWS)]
    answer(monkeypatch, access, list_credentials=credentials, list_quotas=[])
    monkeypatch.setattr(access, "list_acls", refuse)
    values = access.access_page(view()).values
    assert values["acls"].error == "acls: not allowed"
    text = render(access.access_page(view()))
    assert text.count("user-") == MAX_ROWS
    assert "200 users, of which the first 100 are shown." in text


def test_a_client_has_its_connections_and_the_quotas_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    quotas = [
        Quota({"client-id": "app"}, {"producer_byte_rate": 1.0}), Quota({"client-id": "other"}, {}),
        Quota({"user": "ann"}, {}), Quota({"user": "ben", "client-id": "app"}, {}), Quota({"user": None}, {}),
        Quota({"ip": "10.0.0.3"}, {}), Quota({"ip": "10.0.0.2"}, {}),
    ]  # fmt: skip
    answer(monkeypatch, clients, list_quotas=quotas)
    values = clients.client_page(view({"id": "app"})).values
    assert [one.host for one in values["rows"]] == ["10.0.0.1", "10.0.0.3"]
    assert values["quotas"].value == [quotas[0], quotas[2], quotas[4], quotas[5]]
    assert clients.list_page(view({"find": "0.2"})).values["rows"] == [CLIENTS[1]]
    assert [clients.api_name(key) for key in (1, 999)] == ["Fetch", "–"]


def test_the_page_of_compaction_starts_no_cleaner() -> None:
    services = SimpleNamespace(cleaner=SimpleNamespace(made=None), indexing=SimpleNamespace(made=None))
    values = compaction.compaction_page(view(services=services)).values
    assert (values["is_running"], values["rows"], values["indexers"]) == (False, [], [])


def test_compacted_partitions_are_those_of_topics_that_the_caller_may_know() -> None:
    found = [SimpleNamespace(topic_partition=TopicPartition(topic, 0)) for topic in ("orders", "secrets")]
    asked = view()
    asked.may_describe = lambda topic: topic != "secrets"
    assert compaction.shown_statuses(asked, cast(Any, found)) == found[:1]


def test_one_turn_of_the_loop_checks_few_topics() -> None:
    """The authorizer takes tens of microseconds for a topic."""
    turns: list[int] = []

    def run_in_loop(work: Callable[[], list[str]]) -> list[str]:
        checked.clear()
        found = work()
        turns.append(len(checked))
        return found

    checked: list[str] = []
    asked = view()
    asked.sender.run_in_loop = run_in_loop  # type: ignore[method-assign, assignment]
    asked.may_describe = lambda topic: not checked.append(topic)  # type: ignore[func-returns-value]
    names = {f"topic-{number}" for number in range(1000)}
    assert compaction.describable_topics(asked, names) == names
    assert max(turns) <= CHECKED_PER_TURN


def test_more_connections_than_are_listed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    many = 12_000
    connected = SimpleNamespace(list=lambda limit: (CLIENTS * many)[: min(limit, many)], count=lambda: many)
    monkeypatch.setattr(f"{__name__}.CONNECTED", connected)
    answer(monkeypatch, overview, describe_cluster=None, describe_log_dirs=[], take_totals=None, take_latencies=[],
           failures_of=[])  # fmt: skip
    page = overview.overview(view(log_manager=None, metadata=SimpleNamespace(topics={})))
    assert page.values["connections"] == many
    assert "2,000 connections; of 12,000 open connections 2,000 are listed." in render(clients.list_page(view()))
    answer(monkeypatch, clients, list_quotas=[])
    one_client = render(clients.client_page(view({"id": "app"})))
    assert "Of 12,000 open connections 2,000 were looked at: this client may have more." in one_client
    monkeypatch.undo()
    answer(monkeypatch, clients, list_quotas=[])
    assert "<p>3 connections.</p>" in render(clients.list_page(view()))
    assert "looked at" not in render(clients.client_page(view({"id": "app"})))


def test_connections_of_one_client_are_shown_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [f"10.0.1.{number:03}" for number in range(MAX_ROWS + 1)]
    found = [ConnectedClient("app", "User:ann", address, "PLAINTEXT", 1, 17, 5.0) for address in addresses]
    monkeypatch.setattr(f"{__name__}.CLIENTS", found)
    answer(monkeypatch, clients, list_quotas=[])
    first, second = (clients.client_page(view({"id": "app", **start})) for start in ({}, {"start": str(MAX_ROWS)}))
    assert (first.values["rows"], second.values["rows"]) == (found[:MAX_ROWS], found[MAX_ROWS:])
    assert f"/console/client?id=app&amp;start={MAX_ROWS}" in render(first)
    assert "Next page" not in render(second)


def test_lists_that_are_cut_say_how_long_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    many = MAX_ROWS + 1
    quotas = [Quota({"user": f"user-{number}"}, {"producer_byte_rate": 1.0}) for number in range(many)]
    users = [ConnectedClient("app", f"User:user-{number}", "h", "P", 1, 17, 5.0) for number in range(many)]
    members = [Member(f"m-{number}", "c", "h", [], []) for number in range(many)]
    monkeypatch.setattr(f"{__name__}.CLIENTS", users)
    answer(monkeypatch, clients, list_quotas=quotas)
    answer(monkeypatch, access, list_credentials=[], list_acls=[], list_quotas=quotas)
    answer(monkeypatch, groups, describe_group=Group("g", "consumer", "Stable", "", members, []))
    assert "101 quotas, of which the first 100 are shown." in render(clients.client_page(view({"id": "app"})))
    assert "101 quotas, of which the first 100 are shown." in render(access.access_page(view()))
    assert "101 members, of which the first 100 are shown." in render(groups.group_page(view({"id": "g"})))
    answer(monkeypatch, groups, describe_group=Group("g", "consumer", "Stable", "", members[1:], []))
    assert "of which the first" not in render(groups.group_page(view({"id": "g"})))


def test_the_first_page_shows_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, overview, describe_cluster=None, describe_log_dirs=[], take_totals=None, take_latencies=[],
           failures_of=[f"orders-{number} is refused" for number in range(MAX_ROWS + 1)])  # fmt: skip
    page: Page = overview.overview(view(log_manager=None, metadata=SimpleNamespace(topics={"orders": 1})))
    assert (len(page.values["failures"]), page.values["failure_count"]) == (MAX_ROWS, MAX_ROWS + 1)
    assert (page.values["topics"], page.values["connections"]) == (1, 3)


def test_a_streams_groups_members_have_their_tasks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tasks(*partitions: int) -> list[streams.TaskIds]:
        return [streams.TaskIds(subtopology_id="1", partitions=list(partitions))]

    assignment = streams.Assignment(active_tasks=tasks(0, 2), standby_tasks=tasks(1), warmup_tasks=tasks(3))
    member = streams.Member(member_id="m", client_id="c", client_host="h", assignment=assignment)
    described = streams.DescribedGroup(group_id="words", group_state="Stable", members=[member])
    listed = list_groups.ListedGroup(group_id="words", group_state="Stable", group_type="Streams")
    answers = [list_groups.ListGroupsResponse(groups=[listed]),
               streams.StreamsGroupDescribeResponse(groups=[described]), OffsetFetchResponse(topics=[])]  # fmt: skip
    monkeypatch.setattr("tidelog.client.admin.groups._known_ends", lambda cluster, places, silent: {})
    found = describe_group(Scripted(answers), "words")
    assert found.members[0].tasks == ["1_0", "1_2", "1_1 standby", "1_3 warm-up"]
    print_group(found)
    assert "1_0, 1_2, 1_1 standby, 1_3 warm-up" in capsys.readouterr().out
    answer(monkeypatch, groups, describe_group=found)
    page = render(groups.group_page(view({"id": "words"})))
    assert "<td>1_0, 1_2, 1_1 standby, 1_3 warm-up</td>" in page
