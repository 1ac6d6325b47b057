"""A signal while a broker starts: it ends the start at any time, and the broker stops cleanly."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

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
    texts = {"log.dirs": str(data), "listeners": "PLAINTEXT://127.0.0.1:0", "admin.listener": ""}
    async with asyncio.timeout(20):
        process = asyncio.create_task(serve_until_asked_to_stop(BrokerConfig(texts), ServeWords()))
        await UnfencedLater.waits.wait()
        handlers[signal.SIGTERM]()
        await process
    assert (data / ".kafka_cleanshutdown").exists()
