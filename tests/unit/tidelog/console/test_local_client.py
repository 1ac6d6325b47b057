"""Requests of a page to its own broker: answers, files in them, time-outs, other brokers."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.loop.log_openings import opening_expected
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.security.principal import ANONYMOUS
from tidelog.client.admin.groups import _ends_that_are_there as ends_that_are_there
from tidelog.client.admin.offsets import log_ends
from tidelog.client.admin.topics import list_topics
from tidelog.client.connection import ClientError
from tidelog.client.records.fetcher import Fetcher
from tidelog.console import local_client
from tidelog.console.local_client import Asker, LocalCluster, read_part, wait_for
from tidelog.protocol.transferable import RetainedFile, TransferableRecords


async def test_it_asks_as_over_a_socket(tmp_path: Path) -> None:
    parts = DataBroker(tmp_path)
    parts.broker = replace(parts.broker, loop=asyncio.get_running_loop())
    with opening_expected():
        create_topic(parts, "orders", 2, 1, {})
        parts.append("orders", b"first", b"second")
    asker = Asker(parts.broker, Dispatcher(parts.broker), ANONYMOUS, "127.0.0.1")

    def ask() -> None:
        cluster = LocalCluster(asker)
        assert [topic.name for topic in list_topics(cluster)] == ["orders"]
        assert log_ends(cluster, [("orders", 0), ("orders", 1)]) == {("orders", 0): 2, ("orders", 1): 0}
        found = Fetcher(cluster, {("orders", 0): 0}).fetch(0)
        assert [one.record.value for one in found] == [b"first", b"second"]
        assert asker.in_loop(lambda: 5) == 5
        with pytest.raises(ClientError, match="ask its console"):
            cluster.client_for(("10.0.0.9", 9092))
        cluster._leaders["elsewhere"] = [("10.0.0.9", 9092), cluster.leader("orders", 0)]
        assert ends_that_are_there(cluster, [("orders", 0), ("orders", 7), ("gone", 0)]) == {("orders", 0): 2}
        assert [cluster.can_ask_leader("elsewhere", number) for number in (0, 1)] == [False, True]
        with pytest.raises(ZeroDivisionError):
            asker.in_loop(lambda: 1 // 0)

    await asyncio.to_thread(ask)
    parts.close()


def test_what_comes_after_the_time_out_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_client, "TIMEOUT_S", 0.0)
    waits: Future[int] = Future()
    with pytest.raises(ClientError, match="not answered"):
        wait_for(waits)
    assert waits.cancelled()


def test_a_file_that_was_cut_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"0123456789")
    with (tmp_path / "log").open("rb") as file:
        assert read_part(TransferableRecords(cast(RetainedFile, file), 2, 3)) == b"234"
        with pytest.raises(ClientError, match="cut"):
            read_part(TransferableRecords(cast(RetainedFile, file), 8, 5))
