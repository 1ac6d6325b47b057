"""Starts that end early, by a signal or by an error: the broker stops cleanly."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tidelog.broker import server
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.errors import StartError
from tidelog.broker.server import LoneRole
from tidelog.commands.running.serve_process import ServeWords, serve_until_asked_to_stop


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """A start sets its process's umask; a test's has it back."""
    mask = os.umask(0o022)
    yield
    os.umask(mask)


class UnfencedLater(LoneRole):
    """A role that waits to be unfenced, with its listeners open, until it is told to stop waiting."""

    waits: asyncio.Event
    ended: asyncio.Event

    async def serve(self) -> None:
        self.waits.set()
        await self.ended.wait()
        raise StartError("asked to stop")

    def abandon(self) -> None:
        self.ended.set()


class Refused(LoneRole):
    """A role that its cluster refuses while it waits to be unfenced."""

    on_failure: Callable[[], None]

    async def serve(self) -> None:
        self.on_failure()
        raise StartError("the cluster refuses this broker")


def configured(data: Path, listeners: str = "PLAINTEXT://127.0.0.1:0") -> BrokerConfig:
    return BrokerConfig({"log.dirs": str(data), "listeners": listeners, "admin.listener": ""})


async def test_a_refused_member_ends_with_the_reason_and_with_its_logs_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure sets the same event as a signal, and counted as one: the exit code was 0."""
    whole = server.Server.__init__

    def watched(self: server.Server, *arguments: Any, **options: Any) -> None:
        whole(self, *arguments, **options)
        monkeypatch.setattr(Refused, "on_failure", lambda _: self._fail("refused"), raising=False)

    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", lambda *_: None)
    monkeypatch.setattr(server.Server, "__init__", watched)
    monkeypatch.setattr(server, "LoneRole", Refused)
    with pytest.raises(StartError, match="the cluster refuses this broker"):
        await serve_until_asked_to_stop(configured(tmp_path / "data"), ServeWords())
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


async def test_a_start_on_a_taken_port_closes_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start would recover all logs otherwise."""
    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", lambda *_: None)
    data = tmp_path / "data"
    data.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = configured(data, f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(OSError, match="in use"):
            await serve_until_asked_to_stop(config, ServeWords())
    assert (data / ".kafka_cleanshutdown").exists()


async def test_a_signal_ends_a_start_that_waits_with_open_listeners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: dict[int, Callable[[], object]] = {}

    def note(number: int, handler: Callable[..., object], *arguments: object) -> None:
        handlers[number] = partial(handler, *arguments)

    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", note)
    monkeypatch.setattr(UnfencedLater, "waits", asyncio.Event(), raising=False)
    monkeypatch.setattr(UnfencedLater, "ended", asyncio.Event(), raising=False)
    monkeypatch.setattr(server, "LoneRole", UnfencedLater)
    data = tmp_path / "data"
    async with asyncio.timeout(20):
        process = asyncio.create_task(serve_until_asked_to_stop(configured(data), ServeWords()))
        await UnfencedLater.waits.wait()
        handlers[signal.SIGTERM]()
        await process
    assert (data / ".kafka_cleanshutdown").exists()
