"""The console over HTTP: logins, ACLs of each page, parameters, records by offset, time and key, limits of reads."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.admin.login.test_logins import AUTHORIZER, SASL, allow, basic, site
from tests.unit.broker.admin.test_guard import Answer, Site
from tidelog.broker.admin.login.logins import Caller
from tidelog.broker.admin.permissions import CALLER, CONSOLE_NEEDS
from tidelog.broker.loop.log_openings import opening_expected
from tidelog.broker.schema_registry.records import RegisteredSchema, encode_key, schema_record, to_bytes
from tidelog.broker.security.principal import ANONYMOUS
from tidelog.console import site as site_module
from tidelog.console.pages import TABLE
from tidelog.console.pages.records import MAX_RECORDS
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

ANN = basic("ann", "plain")
PATHS = [path.format(topic="orders", partition=0, offset=0, name="console.js") for path in CONSOLE_NEEDS]
WITHOUT_COORDINATOR = [path for path in PATHS if "group" not in path and "transaction" not in path]
BUDGET = 100 * 1024


def fill(asked: Site, count: int, value: bytes = b"<script>") -> None:
    """Append records with keys and times of their own, ten in a batch."""
    with opening_expected():
        partition = asked.parts.replica_manager.partition("orders", 0)
    for first in range(0, count, 10):
        records = [Record(place, 1_700_000_000_000 + first + place, b"k%d" % (first + place), value)
                   for place in range(min(10, count - first))]  # fmt: skip
        partition.append_records(memoryview(build_batch(records)))


def leave_open(asked: Site, count: int) -> None:
    """Append records of a transaction that does not end."""
    options = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    records = [Record(place, 1_700_000_001_000, b"k", b"open") for place in range(count)]
    partition = asked.parts.replica_manager.partition("orders", 0)
    partition.append_records(memoryview(build_batch(records, options)))


@asynccontextmanager
async def console(directory: Path, texts: dict[str, str] | None = None) -> AsyncIterator[Site]:
    async with site(directory, {"index.keys": "true", **(texts or {})}) as asked:
        yield asked


async def index(asked: Site) -> None:
    """Wait until the records of the topic are indexed."""
    indexing = asked.parts.broker.services.indexing.get()
    asked.parts.run_turn()
    partition = TopicPartition("orders", 0)
    end = asked.parts.replica_manager.partition("orders", 0).local_log.log_end_offset
    assert await asyncio.to_thread(indexing.wait_until_indexed, partition, end, 60.0)


async def get(asked: Site, path: str, headers: dict[str, str] | None = None) -> Answer:
    return await asked.ask("GET", f"/console{path}", headers)


def test_each_path_has_its_page() -> None:
    assert TABLE.keys() | {"/console/static/{name}"} == CONSOLE_NEEDS.keys()


async def test_the_pages_are_whole_small_and_never_kept(tmp_path: Path) -> None:
    async with console(tmp_path) as asked:
        fill(asked, 25)
        for path in WITHOUT_COORDINATOR:
            answer = await asked.ask("GET", path)
            assert answer.status == 200, (path, answer.body[-500:])
            assert len(answer.body) <= BUDGET, path
            assert answer.headers["cache-control"] == "no-store"
            assert b"<script>" not in answer.body


async def test_every_page_requires_a_login_and_changes_nothing(tmp_path: Path) -> None:
    async with console(tmp_path, SASL) as asked:
        for path in ("/", *PATHS):
            assert (await asked.ask("GET", path)).status == 401, path
            assert (await asked.ask("POST", path, ANN)).status == 405, path
        assert (await asked.ask("GET", "/", ANN)).headers["location"] == "/console"
        assert (await get(asked, "/topics", ANN)).status == 200


async def test_each_page_shows_only_what_its_user_may_describe(tmp_path: Path) -> None:
    async with console(tmp_path, {**SASL, **AUTHORIZER}) as asked:
        fill(asked, 3)
        allow(asked, "ann", AclOperation.DESCRIBE, ResourceType.TOPIC, "orders")
        topics = (await get(asked, "/topics", ANN)).body
        assert b">orders<" in topics
        assert b"secrets" not in topics
        statuses = {path: (await get(asked, path, ANN)).status for path in (
            "", "/clients", "/compaction", "/topics/orders", "/topics/secrets", "/topics/orders/records",
            "/topics/secrets/records", "/topics/secrets/records/0/0", "/configuration", "/access")}  # fmt: skip
        assert list(statuses.values()) == [403, 403, 403, 200, 404, 403, 404, 404, 403, 200]
        access = (await get(asked, "/access", ANN)).body
        assert access.count(b'class="problem"') == 3
        allow(asked, "ann", AclOperation.READ, ResourceType.TOPIC, "orders")
        allow(asked, "ann", AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        assert (await get(asked, "/topics/orders/records", ANN)).status == 200
        assert b"secrets" not in (await get(asked, "/compaction", ANN)).body
        assert b"secrets" in (await get(asked, "/topics", basic("root", "root"))).body


ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "note", "type": "string"}]}'
LIST = '{"type": "record", "name": "List", "fields": [{"name": "rest", "type": ["null", "List"]}]}'
REGISTRY = {"schema.registry.listener": "127.0.0.1:1"}


def fill_with_schemas(asked: Site) -> None:
    """Append the registry's records, and values: of a schema, of none, of one that contains itself, of an unknown."""
    with opening_expected():
        create_topic(asked.parts, "_schemas", 1, 1, {"cleanup.policy": "compact"})
    schemas = [
        schema_record(RegisteredSchema(f"s{number}", 1, number, text)) for number, text in ((7, ORDER), (8, LIST))
    ]
    stored = [Record(place, 0, encode_key(one.key), to_bytes(one.value)) for place, one in enumerate(schemas)]
    values = [b"\0\0\0\0\x07\x08<b>x", b"\0\0\0\0\x07\xff", b"\0\0\0\0\x08\x00", b"\0\0\0\0\x09\x00", b"\0"]
    with opening_expected():
        for topic, records in (
            ("_schemas", stored),
            ("orders", [Record(place, 0, b"k", value) for place, value in enumerate(values)]),
        ):
            asked.parts.replica_manager.partition(topic, 0).append_records(memoryview(build_batch(records)))


async def test_values_are_decoded_by_the_schemas_that_they_name(tmp_path: Path) -> None:
    async with console(tmp_path, REGISTRY) as asked:
        fill_with_schemas(asked)
        for form in ("", "&format=schema"):
            page = (await get(asked, f"/topics/orders/records?offset=0{form}")).body.decode()
            assert page.count("{&#34;note&#34;: &#34;&lt;b&gt;x&#34;}") == 1
            assert page.count("{&#34;rest&#34;: null}") == 1
            assert "00 00 00 00 09 00" in page
        whole = (await get(asked, "/topics/orders/records/0/0")).body.decode()
        assert "avro, schema 7" in whole
        assert "avro" not in (await get(asked, "/topics/orders/records/0/0?format=hex")).body.decode()


@pytest.mark.parametrize("reads_schemas", [False, True])
async def test_schemas_are_used_only_for_users_who_may_read_them(tmp_path: Path, reads_schemas: bool) -> None:
    async with console(tmp_path, {**SASL, **AUTHORIZER, **REGISTRY}) as asked:
        fill_with_schemas(asked)
        for topic in ("orders", "_schemas") if reads_schemas else ("orders",):
            allow(asked, "ann", AclOperation.READ, ResourceType.TOPIC, topic)
        page = (await get(asked, "/topics/orders/records/0/0", ANN)).body.decode()
        assert ("avro, schema 7" in page) == reads_schemas


async def test_without_a_registry_values_are_bytes(tmp_path: Path) -> None:
    async with console(tmp_path) as asked:
        fill_with_schemas(asked)
        page = (await get(asked, "/topics/orders/records/0/0")).body.decode()
        assert "00 00 00 00 07 08" in page
        assert "avro" not in page


async def test_records_are_read_by_offset_and_time_a_page_at_a_time(tmp_path: Path) -> None:
    async with console(tmp_path) as asked:
        fill(asked, 120)
        last = (await get(asked, "/topics/orders/records")).body.decode()
        assert offsets(last) == list(range(70, 120))
        older = re.findall(r'href="([^"]*)">Older', last)[0].replace("&amp;", "&")
        assert offsets((await asked.ask("GET", older)).body.decode()) == list(range(20, 70))
        by_offset = (await get(asked, "/topics/orders/records?offset=7")).body.decode()
        assert offsets(by_offset) == list(range(7, 7 + MAX_RECORDS))
        by_time = (await get(asked, "/topics/orders/records?time=1700000000100")).body.decode()
        assert offsets(by_time) == list(range(100, 120))
        assert offsets((await get(asked, "/topics/orders/records?offset=999")).body.decode()) == []


@pytest.mark.parametrize("time", ["1960-01-01", "1969-12-31T23:59:59.999Z", "-9223372036854775807"])
async def test_a_time_before_all_records_is_the_start_of_the_log(tmp_path: Path, time: str) -> None:
    async with console(tmp_path) as asked:
        fill(asked, 60)
        page = await get(asked, f"/topics/orders/records?time={time}")
        assert (page.status, offsets(page.body.decode())) == (200, list(range(MAX_RECORDS)))


async def test_the_last_committed_records_are_shown_whatever_is_open_after_them(tmp_path: Path) -> None:
    async with console(tmp_path) as asked:
        fill(asked, 60)
        leave_open(asked, 2 * MAX_RECORDS)
        committed = (await get(asked, "/topics/orders/records?isolation=read_committed")).body.decode()
        assert offsets(committed) == list(range(10, 60))
        assert ">Newer" not in committed
        assert offsets((await get(asked, "/topics/orders/records")).body.decode()) == list(range(110, 160))


async def test_a_page_reads_a_bounded_part_of_a_log(tmp_path: Path) -> None:
    async with console(tmp_path) as asked:
        fill(asked, 120, b"x" * 20_000)
        sent = asked.parts.broker.metrics.bytes_out.count
        page = (await get(asked, "/topics/orders/records?offset=0")).body
        read = asked.parts.broker.metrics.bytes_out.count - sent
        assert offsets(page.decode()) == list(range(40))
        assert b"offset=40" in page
        assert 40 * 20_000 <= read <= 4 * (256 + 200) * 1024
        assert len(page) <= BUDGET


async def test_a_record_is_found_by_its_key_and_has_a_link_of_its_own(tmp_path: Path) -> None:
    async with console(tmp_path) as asked:
        fill(asked, 30, b'{"paid": true}')
        await index(asked)
        page = (await get(asked, "/topics/orders/records?key=k17")).body.decode()
        assert offsets(page) == [17]
        place = re.findall(r'href="(/console/topics/orders/records/0/17)"', page)[0]
        record = (await asked.ask("GET", place)).body.decode()
        assert "{\n  &#34;paid&#34;: true\n}" in record
        assert "00000000  7b" in (await asked.ask("GET", f"{place}?format=hex")).body.decode()
        missing = await get(asked, "/topics/orders/records/0/99")
        assert (missing.status, b"No record has this offset" in missing.body) == (200, True)
        by_tag = await get(asked, "/topics/orders/records?tag=x")
        assert (by_tag.status, b"index.tag.header" in by_tag.body) == (200, True)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/topics/none", 404), ("/topics/none/records", 404), ("/topics/orders/records?offset=x", 400),
     ("/topics/orders/records?format=xml", 400), ("/topics/orders/records?time=soon", 400), ("/topics?nothing=1", 400),
     ("/topics?find=a&find=b", 400), ("/topics/orders/records/0/x", 400), ("/topics/orders/records?partition=9", 404),
     ("/static/site.py", 404), ("/static/..%2Fsite.py", 404), ("/nothing", 404),
     ("/topics/%3Cscript%3E", 404), ("/topics/orders/records?isolation=%3Cb%3E", 400)],
)  # fmt: skip
async def test_a_wrong_question_is_answered_by_its_reason(tmp_path: Path, path: str, status: int) -> None:
    async with console(tmp_path) as asked:
        answer = await get(asked, path)
        assert answer.status == status
        assert b"<script>" not in answer.body
        assert b"<b>" not in answer.body


async def test_10_000_topics_are_looked_at_a_page_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with console(tmp_path) as asked:
        names = [f"topic-{number:05}" for number in range(10_000)]
        looked_at: list[str] = []

        def describe(_cluster: object, some: list[str]) -> list[object]:
            looked_at.extend(some)
            return []

        monkeypatch.setattr("tidelog.console.pages.topics.all_names", lambda _view: names)
        monkeypatch.setattr("tidelog.console.pages.topics.describe_topics", describe)
        page = (await get(asked, "/topics")).body.decode()
        assert looked_at == names[:100]
        await asked.ask("GET", re.findall(r'rel="next" href="([^"]*)"', page)[0])
        assert looked_at == names[:200]


class PageRequest(dict[Any, Any]):
    """A request for a page; without a ``transport`` its client has closed the connection."""

    def __init__(self, transport: object) -> None:
        super().__init__({CALLER: Caller(ANONYMOUS)})
        self.match_info = MatchInfo()
        self.query: dict[str, str] = {}
        self.remote = "127.0.0.1"
        self.transport = transport


class MatchInfo(dict[str, str]):
    """A path without variables."""

    route = SimpleNamespace(resource=None)


async def test_a_page_whose_client_has_gone_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "build_page", lambda *_: (200, "built"))
    async with console(tmp_path) as asked:
        pages = site_module.Site(asked.parts.broker)
        answers = [cast(Any, await pages.answer(cast(Any, PageRequest(transport)))) for transport in (object(), None)]
        assert [one.body for one in answers] == [b"built", None]
        await pages.close()


def offsets(page: str) -> list[int]:
    """Return the offsets of the rows of a page of records."""
    return [int(found) for found in re.findall(r'records/0/\d+">(\d+)</a>', page)]
