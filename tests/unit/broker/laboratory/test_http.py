from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from tidelog.broker.admin.guard import Hosts
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.laboratory.control import Control
from tidelog.broker.laboratory.http import is_loopback, open_listener, serve_http
from tidelog.protocol.config_def import ConfigError


class StubControl:
    """A control that answers with the command, and refuses one."""

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []

    async def answer(self, command: dict[str, Any]) -> dict[str, object]:
        self.commands.append(command)
        return {"error": "refused"} if command["command"] == "explode" else {"result": command}


@asynccontextmanager
async def serve(path: Path, control: StubControl) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve at ``path``; yield a session whose requests go there, whatever host they name."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    task = asyncio.create_task(serve_http(cast(Control, control), Hosts(BrokerConfig({})), listener))
    try:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
            yield session
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def post(path: Path, control: StubControl, **request: Any) -> tuple[int, Any]:
    """Post one request; returns status and JSON."""
    async with serve(path / "socket", control) as session:
        url = request.pop("url", "http://127.0.0.1/advance")
        async with session.post(url, **request) as response:
            return response.status, await response.json()


async def test_a_command_is_the_path_and_its_words_are_the_body(tmp_path: Path) -> None:
    done = await post(tmp_path, StubControl(), json={"ms": 5})
    assert done == (200, {"result": {"ms": 5, "command": "advance"}})


async def test_a_command_without_words_needs_no_body(tmp_path: Path) -> None:
    done = await post(tmp_path, StubControl(), url="http://localhost/clear")
    assert done == (200, {"result": {"command": "clear"}})


async def test_the_command_comes_from_the_path_not_from_the_body(tmp_path: Path) -> None:
    control = StubControl()
    await post(tmp_path, control, json={"command": "restore", "snapshot": 0})
    assert control.commands == [{"command": "advance", "snapshot": 0}]


async def test_an_error_of_a_command_is_a_bad_request(tmp_path: Path) -> None:
    assert await post(tmp_path, StubControl(), url="http://localhost/explode") == (400, {"error": "refused"})


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (400, {"data": b"[1]", "headers": {"Content-Type": "application/json"}}),
        (400, {"data": b"{", "headers": {"Content-Type": "application/json"}}),
        (400, {"data": b"\xff", "headers": {"Content-Type": "application/json"}}),
        (400, {"data": b"[" * 60_000, "headers": {"Content-Type": "application/json"}}),
        (413, {"data": b" " * 70_000, "headers": {"Content-Type": "application/json"}}),
        (415, {"data": b'{"ms": 5}', "headers": {"Content-Type": "text/plain"}}),
        (415, {"data": {"ms": "5"}}),
        (403, {"json": {"ms": 5}, "headers": {"Origin": "http://evil.example"}}),
        (403, {"json": {"ms": 5}, "headers": {"Origin": "null"}}),
        (403, {"json": {"ms": 5}, "headers": {"Origin": "http://127.0.0.1:8000"}}),
        (403, {"headers": {"Sec-Fetch-Site": "cross-site"}}),
        (421, {"json": {"ms": 5}, "url": "http://evil.example/advance"}),
    ],
)
async def test_requests_of_foreign_pages_do_nothing(tmp_path: Path, status: int, request_: dict[str, Any]) -> None:
    control = StubControl()
    assert (await post(tmp_path, control, **request_))[0] == status
    assert control.commands == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9645",
        "0.0.0.0:0",
        ":0",
        "[::]:0",
        "192.0.2.1:0",
        "example.org:0",
        "127.0.0.1:",
        "[::1]:x",
        "127.0.0.1:70000",
    ],
)
def test_only_the_loopback_address_is_listened_on(text: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT with a loopback address"):
        open_listener(text)


@pytest.mark.parametrize(("host", "is_own"), [("127.8.9.1", True), ("::1", True), ("localhost", True), ("host", False)])
def test_loopback_hosts_are_known(host: str, is_own: bool) -> None:
    assert is_loopback(host) is is_own


def test_a_listener_takes_a_free_port() -> None:
    with open_listener("127.0.0.1:0") as listener:
        assert listener.getsockname()[1] > 0
