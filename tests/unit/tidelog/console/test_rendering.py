"""HTML of models: values are escaped, links stay on the console, pages keep their size limit, labels exist."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.broker.metrics.clients import ConnectedClient
from tidelog.cleaner.cleaner_manager import CleaningState, PartitionStatus
from tidelog.client.admin.acls import Acl
from tidelog.client.admin.configs import ConfigEntry, Resource
from tidelog.client.admin.groups import Group, ListedGroup, Member, PartitionLag
from tidelog.client.admin.nodes import Broker, ClusterDescription, LogDir
from tidelog.client.admin.quotas import Quota
from tidelog.client.admin.topics import Partition, Topic
from tidelog.client.admin.transactions import ListedTransaction, Transaction
from tidelog.client.admin.users import Credential
from tidelog.console.history import Latency, Rates, Totals
from tidelog.console.pages.groups import TYPES as GROUP_TYPES
from tidelog.console.pages.records import (
    HEADER_LIMIT,
    MAX_HEADERS,
    MAX_RECORDS,
    PARAMETERS,
    WHOLE_KEY_LIMIT,
    WHOLE_VALUE_LIMIT,
    FoundRecords,
    row_of,
)
from tidelog.console.pages.topics import PartitionRow, TopicRow
from tidelog.console.rendering import (
    TEMPLATES,
    chart_points,
    format_duration,
    format_moment,
    format_name,
    format_number,
    format_size,
    link,
    render,
)
from tidelog.console.values import FORMATS, show
from tidelog.console.view import Listing, Page, Part, list_after
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.record.record_batch import Record

PAGE_BUDGET = 100 * 1024
HOSTILE = ["<script>alert(1)</script>", "</td></table>", '"', "' onmouseover='x", "&lt;", "<!--", "]]>", "{{ 7 * 7 }}",
           "{% if %}", "</title>", "javascript:alert(1)", "\0", "\u202e", "\ud7ff", "é", "a b", "/../",
           "?x=1&y#z", "\n"]  # fmt: skip
hostile_texts = st.lists(st.sampled_from(HOSTILE) | st.text(min_size=1, max_size=5), min_size=1, max_size=6).map(
    "".join
)
FIELDS = tuple(name for name in PARAMETERS if name != "next")
PARTITION = Partition(0, 1, 0, [1], [1], [])


class Reader(HTMLParser):
    """The elements of a page with the names of their attributes, its links, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, ...]] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.named: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, *(name for name, _ in attrs)))
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]

    def handle_endtag(self, tag: str) -> None:
        self.elements.append((f"/{tag}",))

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment",))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def models(text: str) -> Iterator[Page]:
    """Yield each page with this text wherever a client, a user or a file can put one."""
    shown, content = show(text.encode(), "text", 500), text.encode()
    record = Record(5, 1_700_000_000_000, content, content, [(text, content)])
    topic = Topic(text, "id", False, [PARTITION])
    status = PartitionStatus(TopicPartition(text, 0), CleaningState.IDLE, 0.5, 1, 1, 1, 1, 1, None, text, 1, None)
    indexer = SimpleNamespace(
        log=SimpleNamespace(topic_partition=TopicPartition(text, 0)), keys=1, tags=None, lag=1, rebuilds=0
    )
    entry = ConfigEntry(text, text, "topic", True, False, text)
    client = ConnectedClient(text, f"User:{text}", text, "PLAINTEXT", 0, 9, 1.0)
    quota = Quota({"user": text, "client-id": None}, {text: 1.0})
    fields = dict.fromkeys(FIELDS, text)
    api = {"api_name": lambda _key: "Fetch"}
    yield Page("error.html", text, {"section": "", "reason": text})
    yield Page("overview.html", text, {
        "section": "overview", "node": 1, "failures": [text], "failure_count": 1, "version": "1", "process": 1,
        "rates": [Rates(1, 2, 3, 4), Rates(2, 3, 4, 5)], "topics": 1, "connections": 1, "totals": Totals(1, 2, 3, 4, 5),
        "latencies": [Latency("Fetch", 1, 1, 2)],
        "cluster": Part(ClusterDescription("id", 1, [Broker(1, text, 9092, text)], {}), None),
        "directories": Part([LogDir(1, text, 1, 1, [])], None)})  # fmt: skip
    yield Page("topics.html", text, {"section": "topics", "listing": Listing([TopicRow(topic, 5)], text), "find": text,
                                     "internal": True})  # fmt: skip
    yield Page("topic.html", text, {
        "section": "topics", "topic": topic, "rows": [PartitionRow(PARTITION, 1, 0, 5, 2)], "next": 100, "own": [entry],
        "configs": Part([entry], None),
        "texts": {"cleanup.policy": text, "index.keys": "true", "index.tag.header": text}})  # fmt: skip
    for by_index in (False, True):
        yield Page("records.html", text, {
            "section": "topics", "topic": topic, "formats": FORMATS, "fields": fields, "by_index": by_index,
            "found": FoundRecords([row_of(0, record, "text")], text, text, text)})  # fmt: skip
    yield Page("record.html", text, {
        "section": "topics", "topic": text, "partition": 0, "offset": 5, "format": "text", "formats": FORMATS,
        "record": record, "key": shown, "value": shown, "headers": [(text, shown)]})  # fmt: skip
    yield from coordinator_models(text)
    yield Page("compaction.html", text, {
        "section": "compaction", "is_running": True, "threads": 1, "rows": [status], "next": 100, "find": text,
        "indexers": [indexer], "indexer_count": 1})  # fmt: skip
    yield Page("configuration.html", text, {
        "section": "configuration", "rows": [entry], "next": 100, "find": text, "only_set": True, "count": 1,
        "resource": Resource("broker", "1")})  # fmt: skip
    yield Page("access.html", text, {
        "section": "access", "acls": Part([], text), "next": 100, "quotas": Part([quota], None),
        "users": Part([Credential(text, "SCRAM", 1)], None),
        "rows": [Acl("topic", text, "prefixed", text, text, "read", "allow")]})  # fmt: skip
    yield Page("clients.html", text, {"section": "clients", "rows": [client], "next": 100, "find": text, "count": 1,
                                      "listed": 1, "open": 2, **api})  # fmt: skip
    yield Page("client.html", text, {"section": "clients", "client_id": text, "rows": [client], "next": 100,
                                     "count": 1, "listed": 1, "open": 2, "quotas": Part([quota], None),
                                     **api})  # fmt: skip


def coordinator_models(text: str) -> Iterator[Page]:
    """Yield the pages of groups and transactions with this text."""
    group = Group(text, "consumer", "Stable", text, [Member(text, text, text, [(text, 0)], [text])],
                  [PartitionLag(text, 0, 1, 2, 1, text)])  # fmt: skip
    yield Page("groups.html", text, {
        "section": "groups", "listing": Listing([ListedGroup(text, "classic", text, "")], text), "lags": {text: [1]},
        "partial": {text}, "find": text, "type": text, "types": GROUP_TYPES})  # fmt: skip
    yield Page("group.html", text, {"section": "groups", "group": group, "rows": group.partitions, "next": 100,
                                    "lags": [1, 2], "lags_are_partial": True,
                                    "max_assigned": 20})  # fmt: skip
    yield Page("transactions.html", text, {
        "section": "transactions", "find": text,
        "listing": Listing([ListedTransaction(text, 1, "Ongoing")], text)})  # fmt: skip
    yield Page("transaction.html", text, {
        "section": "transactions", "transaction": Transaction(text, "Ongoing", 1, 0, 60_000, 5, [(text, 0)]),
        "partitions": [(text, 0)], "is_cut": True, "now_ms": 10})  # fmt: skip


@cache
def plain_elements() -> dict[int, list[tuple[str, ...]]]:
    """Return the elements of each page whose texts are plain."""
    return {place: Reader(render(page)).elements for place, page in enumerate(models("plain"))}


def test_each_template_is_among_the_models() -> None:
    named = {page.template for page in models("a")} | {"base.html", "parts.html"}
    assert named == {path.name for path in TEMPLATES.iterdir()}


@settings(max_examples=20)
@given(hostile_texts)
def test_no_text_becomes_markup_on_any_page(text: str) -> None:
    for place, page in enumerate(models(text)):
        found = Reader(render(page))
        assert found.elements == plain_elements()[place], page.template
        assert all(one.startswith(("/console", "#main")) for one in found.links), found.links


@given(hostile_texts)
def test_a_link_carries_its_names_whole(text: str) -> None:
    parts = urlsplit(link("group", id=text, start=1))
    assert (parts.path, parse_qs(parts.query, keep_blank_values=True)) == (
        "/console/group",
        {"id": [text], "start": ["1"]},
    )
    assert link("topics", text).count("/") == 3
    assert link("topics", after=None) == "/console/topics"


HUGE = [
    '"' * 100_000,
    "<" * 100_000,
    "\U0001f300" * 30_000,
    "a" * 100_000,
    '{"a":[' + '"<",' * 20_000 + "1]}",
    "\0" * 90_000,
]


@pytest.mark.parametrize("text", HUGE, ids=lambda text: repr(text[:6]))
@pytest.mark.parametrize("wanted", FORMATS)
def test_pages_of_records_keep_the_budget(text: str, wanted: str) -> None:
    content = text.encode()
    record = Record(5, 1_700_000_000_000, content, content, [(text, content)] * 100)
    values: dict[str, Any] = {
        "section": "topics", "formats": FORMATS, "format": wanted, "by_index": False, "partition": 0, "offset": 5,
        "fields": dict.fromkeys(FIELDS, "x"),
    }  # fmt: skip
    rows = [row_of(0, record, wanted)] * MAX_RECORDS
    topic = Topic("t" * 249, "id", False, [PARTITION])
    table = render(Page("records.html", "t", {**values, "topic": topic, "found": FoundRecords(rows, "1", "2")}))
    one = render(Page("record.html", "t", {
        **values, "topic": topic.name, "record": record, "key": show(content, wanted, WHOLE_KEY_LIMIT),
        "value": show(content, wanted, WHOLE_VALUE_LIMIT),
        "headers": [(name, show(value, "auto", HEADER_LIMIT)) for name, value in record.headers[:MAX_HEADERS]],
    }))  # fmt: skip
    assert len(table.encode()) <= PAGE_BUDGET
    assert len(one.encode()) <= PAGE_BUDGET


@pytest.mark.parametrize("name", ['"' * 200, "\U0001f300" * 100, "g" * 249])
def test_lists_of_hostile_names_keep_the_budget(name: str) -> None:
    rows = [ListedGroup(f"{name}{number}", "classic", "Stable", "") for number in range(500)]
    listing = list_after(rows, lambda one: one.group, "")
    values = {"section": "groups", "listing": listing, "lags": {one.group: [5] for one in rows}, "find": "", "type": "",
              "types": GROUP_TYPES, "partial": {one.group for one in rows}}  # fmt: skip
    assert len(render(Page("groups.html", "Groups", values)).encode()) <= PAGE_BUDGET


def test_pages_can_be_read_by_ear_and_used_by_keyboard() -> None:
    for page in models("plain"):
        text = render(page)
        found = Reader(text)
        names = [element[0] for element in found.elements]
        assert names.count("h1") == 1
        assert ("html", "lang") in found.elements
        assert text.count("<table") == text.count("<thead>")
        assert all("scope" in element for element in found.elements if element[0] == "th")
        assert text.count("<input") + text.count("<select") == text.count("<label>") + text.count('type="hidden"')
        assert all("aria-label" in element for element in found.elements if element[0] == "svg")
        assert not {"style", "onclick", "onload"} & {name for element in found.elements for name in element}
        assert text.index('href="#main"') < text.index("<nav")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_size(None), "–"), (format_size(512), "512 B"), (format_size(1536), "1.5 KiB"), (format_size(-1), "–"),
        (format_size(200 << 30), "200 GiB"), (format_number(12345), "12,345"), (format_number(1.25), "1.2"),
        (format_number(None), "–"), (format_moment(0), "1970-01-01 00:00:00.000 UTC"), (format_moment(-1), "–"),
        (format_moment(2**62), f"{2**62} ms"), (format_duration(0.128), "0.1 ms"), (format_duration(90_000), "90.0 s"),
        (format_duration(None), "–"), (format_name(None), "–"), (format_name("a" * 500), "a" * 160 + "…"),
        (chart_points([5]), ""), (chart_points([0, 10]), "0,118 600,2"),
    ],
)  # fmt: skip
def test_values_are_easy_to_read(text: str, expected: str) -> None:
    assert text == expected
