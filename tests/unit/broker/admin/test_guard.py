"""Every route and method of the admin interface with foreign hosts, foreign pages, bad values, large and slow requests:
none of these requests is executed."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.admin import guard as admin_guard
from tidelog.broker.admin.app import serve
from tidelog.broker.admin.guard import MAX_BODY_BYTES, Hosts
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.keys.admin import ADMIN_LISTENER
from tidelog.broker.find.indexing import Indexing
from tidelog.broker.loop.log_openings import opening_expected

TOPIC = "compacted"
READS = (
    "/",
    "/console",
    "/console/",
    "/healthz",
    "/readyz",
    "/metrics",
    "/compaction",
    "/topics/none/records?key=a",
    "/nothing",
)
WRITES = (f"/compaction/{TOPIC}", f"/compaction/{TOPIC}?wait=0", "/logs/retry", "/nothing")
ROUTES = [("GET", path) for path in READS] + [("HEAD", path) for path in READS] + [("POST", path) for path in WRITES]
ROUTES += [(method, "/compaction") for method in ("PUT", "DELETE", "PATCH", "OPTIONS")]
SAFE_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "referrer-policy": "no-referrer",
}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Site:
    """An admin interface on a port of its own, asked by bytes on a socket."""

    def __init__(self, parts: DataBroker, port: int) -> None:
        self.parts = parts
        self.port = port
        self.cleanings = 0

    async def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Answer:
        """Send one request; ``headers`` replace the usual Host."""
        given = {"Host": f"127.0.0.1:{self.port}", "Connection": "close", **(headers or {})}
        if body and "Transfer-Encoding" not in given:
            given.setdefault("Content-Length", str(len(body)))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", ""]
        return await self.send("\r\n".join(lines).encode() + body)

    async def send(self, data: bytes) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            named = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
            return Answer(int(head[0].split()[1]), named, await reader.read())
        finally:
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def served(parts: DataBroker) -> AsyncIterator[Site]:
    """Serve the admin interface of a broker, and end the broker afterwards."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    runner = await serve(parts.broker, listener)
    try:
        yield Site(parts, listener.getsockname()[1])
    finally:
        await runner.cleanup()
        await asyncio.to_thread(parts.stop_threads)
        parts.close()


@asynccontextmanager
async def site(directory: Path, **settings: str) -> AsyncIterator[Site]:
    texts = {name.replace("_", "."): value for name, value in settings.items()}
    parts = DataBroker(directory, texts)
    parts.broker = replace(parts.broker, loop=asyncio.get_running_loop())
    with opening_expected():
        create_topic(parts, TOPIC, 1, 1, {"cleanup.policy": "compact", "index.keys": "true"})
    async with served(parts) as asked:
        yield asked


def has_reached_cleaner(asked: Site) -> bool:
    """Return whether a request has reached the cleaner, which the first such request starts."""
    return asked.parts.broker.services.cleaner.made is not None


FOREIGN = ("evil.example", "evil.example:9092", "127.0.0.1.evil.example", "localhost.evil", "0.0.0.0", "10.1.2.3", "",
           "a@127.0.0.1", "127.0.0.1/x", "2130706433")  # fmt: skip


@pytest.mark.parametrize("host", FOREIGN)
async def test_a_foreign_host_is_refused_on_every_route(tmp_path: Path, host: str) -> None:
    async with site(tmp_path) as asked:
        for method, path in ROUTES:
            answer = await asked.ask(method, path, {"Host": host})
            assert answer.status in (400, 421), (method, path)
        assert not has_reached_cleaner(asked)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1", "[::1]:80", "broker.example",
                                  "admin.internal"])  # fmt: skip
async def test_own_hosts_are_served(tmp_path: Path, host: str) -> None:
    settings = {
        "advertised_listeners": "PLAINTEXT://Broker.example:9092",
        "admin_allowed_hosts": "admin.internal,other.internal",
    }
    async with site(tmp_path, **settings) as asked:
        assert (await asked.ask("GET", "/healthz", {"Host": host})).status == 200


async def test_two_hosts_are_refused_and_none_only_where_http_has_none(tmp_path: Path) -> None:
    async with site(tmp_path) as asked:
        assert (await asked.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n")).status in (
            400,
            421,
        )
        assert (await asked.send(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")).status in (400, 421)
        assert (await asked.send(b"GET /healthz HTTP/1.0\r\n\r\n")).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "file://", ""]
)
async def test_a_foreign_origin_is_refused_on_every_route(tmp_path: Path, origin: str) -> None:
    async with site(tmp_path) as asked:
        for method, path in ROUTES:
            assert (await asked.ask(method, path, {"Origin": origin})).status == 403, (method, path)
        assert not has_reached_cleaner(asked)


@pytest.mark.parametrize("fetch_site", ["cross-site", "same-site", "SAME-ORIGIN x"])
async def test_a_foreign_page_writes_nothing_without_an_origin_either(tmp_path: Path, fetch_site: str) -> None:
    async with site(tmp_path) as asked:
        for path in WRITES:
            assert (await asked.ask("POST", path, {"Sec-Fetch-Site": fetch_site})).status == 403, path
        assert not has_reached_cleaner(asked)


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin"}])
async def test_curl_and_own_pages_may_write(tmp_path: Path, headers: dict[str, str]) -> None:
    async with site(tmp_path) as asked:
        origin = {"Origin": f"http://127.0.0.1:{asked.port}"} if headers else {}
        answer = await asked.ask("POST", f"/compaction/{TOPIC}?dry_run=1", {**headers, **origin})
        assert answer.status == 200


async def test_every_answer_has_the_safe_headers_and_none_of_cors(tmp_path: Path) -> None:
    async with site(tmp_path, log_cleaner_enable="false") as asked:
        for headers in ({}, {"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            for method, path in ROUTES:
                answer = await asked.ask(method, path, headers)
                found = {name: answer.headers.get(name) for name in SAFE_HEADERS}
                assert found == SAFE_HEADERS, (method, path, headers)
                assert not [name for name in answer.headers if name.startswith("access-control-")]


BAD: dict[str, dict[str, tuple[str, ...]]] = {
    f"/compaction/{TOPIC}": {
        "dry_run": ("maybe", "", "yes", "TRUE", "2", "0&dry_run=1"),
        "wait": ("maybe", "", "no", "-1"),
        "dryrun": ("1",),
    },
    "/logs/retry": {"dry_run": ("1",)},
    f"/topics/{TOPIC}/records": {
        "max": ("0", "-1", "a", "", "1" * 5000, "\u0663"),
        "wait": ("maybe", ""),
        "format": ("xml", ""),
        "isolation": ("serializable", ""),
        "from": ("yesterday", "", "99999999999999999999999"),
        "to": ("tomorrow", "1e400"),
        "next": ("a", "1:2:3", "1:", "0:1,0:2"),
        "key64": ("===", "a"),
        "tag64": ("===",),
        "limit": ("1",),
    },
}


@pytest.mark.parametrize("path", BAD)
async def test_a_bad_value_of_any_parameter_is_named_and_nothing_runs(tmp_path: Path, path: str) -> None:
    async with site(tmp_path) as asked:
        method = "GET" if "records" in path else "POST"
        for name, values in BAD[path].items():
            for value in values:
                needed = "key=a&" if method == "GET" and not name.startswith("key") else ""
                text = "".join(character if character.isascii() else "%D9%A3" for character in value)
                answer = await asked.ask(method, f"{path}?{needed}{name}={text}")
                assert (answer.status, name in answer.body.decode()) == (400, True), (name, value, answer)
        assert not has_reached_cleaner(asked)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", path) for path in WRITES] + [("GET", "/healthz"), ("PUT", "/compaction")]
)
async def test_a_large_body_is_refused_unread(tmp_path: Path, method: str, path: str) -> None:
    async with site(tmp_path) as asked:
        claimed = await asked.ask(method, path, {"Content-Length": str(10**12)})
        assert (claimed.status, claimed.headers.get("connection")) == (413, "close")
        over = MAX_BODY_BYTES + 1
        chunked = b"%x\r\n" % over + bytes(over) + b"\r\n0\r\n\r\n"
        assert (await asked.ask(method, path, {"Transfer-Encoding": "chunked"}, chunked)).status == 413
        assert not has_reached_cleaner(asked)
        assert (await asked.ask("POST", "/logs/retry", body=bytes(MAX_BODY_BYTES))).status == 200


PARTS = (
    b"",
    b"GET /healthz HT",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ",
    b"POST /logs/retry HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nslow",
)


@pytest.mark.parametrize("sent", PARTS)
async def test_slow_requests_are_closed(tmp_path: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_guard, "REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(admin_guard, "KEEPALIVE_S", 0.3)
    async with site(tmp_path) as asked:
        reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
        first = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        writer.write(first + sent)
        assert b"200 OK" in await reader.readuntil(b"ok\n")
        if sent:
            await asyncio.wait_for(reader.read(), 20)  # until the end: it is closed
        writer.close()
        await writer.wait_closed()
        reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
        writer.write(sent)
        await asyncio.wait_for(reader.read(), 20)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("bound", "host", "is_own"),
    [
        ("10.0.0.5:80", "10.0.0.5", True), ("10.0.0.5:80", "10.0.0.6", False), ("10.0.0.5:80", "127.0.0.1", True),
        ("0.0.0.0:80", "10.0.0.6", True), ("[::]:80", "[2001:db8::1]:80", True), ("0.0.0.0:80", "0.0.0.0", False),
        ("0.0.0.0:80", "node.example", False), ("node.example:80", "node.example", True),
        ("[2001:db8::5]:80", "[2001:DB8:0::5]", True), ("[2001:db8::5]:80", "2001:db8::5", False),
    ],
)  # fmt: skip
def test_addresses_we_are_bound_to(bound: str, host: str, is_own: bool) -> None:
    assert Hosts(BrokerConfig({ADMIN_LISTENER: bound})).has(host) is is_own


async def test_searches_that_wait_for_the_index_hold_no_other_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_indexed = threading.Event()
    monkeypatch.setattr(Indexing, "wait_until_indexed", lambda *_: is_indexed.wait())
    async with site(tmp_path) as asked:
        path = f"/topics/{TOPIC}/records?key=a&wait=true"
        searches = [asyncio.create_task(asked.ask("GET", path)) for _ in range(40)]
        try:
            await asyncio.sleep(0.2)
            assert (await asyncio.wait_for(asked.ask("GET", "/readyz"), 5)).status == 200
        finally:
            is_indexed.set()
        await asyncio.gather(*searches)
