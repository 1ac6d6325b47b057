"""Requests of a page to its own broker: responses, records in files, timeouts, other brokers."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.loop.deferred import Deferred, deferred_error, deferred_value
from tidelog.broker.loop.log_openings import opening_expected
from tidelog.broker.peers import LeaderRequest
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.security.principal import ANONYMOUS
from tidelog.client.admin.groups import _known_ends as known_ends
from tidelog.client.admin.offsets import log_ends
from tidelog.client.admin.topics import list_topics
from tidelog.client.cluster import ask
from tidelog.client.connection import ClientError
from tidelog.client.records.fetcher import Fetcher
from tidelog.console import local_client
from tidelog.console.local_client import LeaderClient, LocalClient, LocalCluster, RequestSender, read_part, wait_for
from tidelog.protocol.acl import AclOperation
from tidelog.protocol.errors import LeaderNotAvailableError, TopicAuthorizationFailedError
from tidelog.protocol.messages.fetch import FetchRequest, FetchTopic
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.protocol.transferable import RetainedFile, TransferableRecords


async def test_local_requests_have_the_responses_of_a_socket(tmp_path: Path) -> None:
    parts = DataBroker(tmp_path)
    parts.broker = replace(parts.broker, loop=asyncio.get_running_loop())
    with opening_expected():
        create_topic(parts, "orders", 2, 1, {})
        parts.append("orders", b"first", b"second")
    sender = RequestSender(parts.broker, Dispatcher(parts.broker), ANONYMOUS, "127.0.0.1")

    def ask() -> None:
        cluster = LocalCluster(sender)
        assert [topic.name for topic in list_topics(cluster)] == ["orders"]
        assert log_ends(cluster, [("orders", 0), ("orders", 1)]) == {("orders", 0): 2, ("orders", 1): 0}
        found = Fetcher(cluster, {("orders", 0): 0}).fetch(0)
        assert [one.record.value for one in found] == [b"first", b"second"]
        assert sender.run_in_loop(lambda: 5) == 5
        with pytest.raises(ClientError, match="no broker at"):
            cluster.client_for(("10.0.0.9", 9092))
        places = [("orders", 0), ("orders", 7), ("gone", 0)]
        assert known_ends(cluster, places, False) == {("orders", 0): 2}
        with pytest.raises(ZeroDivisionError):
            sender.run_in_loop(lambda: 1 // 0)

    await asyncio.to_thread(ask)
    parts.close()


async def test_a_request_that_cannot_be_encoded_is_an_error_of_the_client(tmp_path: Path) -> None:
    parts = DataBroker(tmp_path)
    broker = replace(parts.broker, loop=asyncio.get_running_loop())
    client = LocalClient(RequestSender(broker, Dispatcher(broker), ANONYMOUS, "127.0.0.1"))

    def ask() -> None:
        with pytest.raises(ClientError, match="MetadataRequest"):
            client.call(MetadataRequest(topics=[MetadataRequestTopic(name="x" * 40_000)]), MetadataResponse)
        assert client.call(MetadataRequest(topics=[]), MetadataResponse).brokers, "the connection can still be used"

    await asyncio.to_thread(ask)
    parts.close()


def test_an_answer_after_the_timeout_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_client, "TIMEOUT_S", 0.0)
    waits: Future[int] = Future()
    with pytest.raises(ClientError, match="not answered"):
        wait_for(waits)
    assert waits.cancelled()


def test_a_result_that_arrives_as_the_wait_ends_is_discarded() -> None:
    class Late(Future[int]):
        def result(self, timeout: float | None = None) -> int:
            if timeout is not None:
                self.set_result(5)
                raise TimeoutError
            return super().result()

    discarded: list[int] = []
    with pytest.raises(ClientError, match="not answered"):
        wait_for(Late(), discarded.append)
    assert discarded == [5]


def test_a_file_that_was_cut_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"0123456789")
    with (tmp_path / "log").open("rb") as file:
        assert read_part(TransferableRecords(cast(RetainedFile, file), 2, 3)) == b"234"
        with pytest.raises(ClientError, match="truncated"):
            read_part(TransferableRecords(cast(RetainedFile, file), 8, 5))


def test_a_file_that_cannot_be_read_is_an_error_of_the_client(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file, pytest.raises(ClientError, match="a log cannot be read: Bad file"):
        read_part(TransferableRecords(cast(RetainedFile, file), 0, 5))


class OtherBroker:
    """Another broker as the member asks it, and the rights of the page's caller."""

    def __init__(self, *rights: tuple[AclOperation, str]) -> None:
        self.answer: Deferred[Any] = deferred_value(ListOffsetsResponse(topics=[]))
        self.asked: list[int] = []
        self._rights = rights

    def ask_leader(self, node_id: int, *_: object) -> Deferred[Any]:
        self.asked.append(node_id)
        return self.answer

    def authorize(self, _: object, operation: AclOperation, __: object, name: str) -> bool:
        return (operation, name) in self._rights


@pytest.mark.parametrize(
    ("request_", "right"),
    [
        (FetchRequest(topics=[FetchTopic(topic="orders", partitions=[])]), AclOperation.READ),
        (ListOffsetsRequest(topics=[ListOffsetsTopic(name="orders", partitions=[])]), AclOperation.DESCRIBE),
    ],
    ids=["records", "offsets"],
)
async def test_another_broker_is_asked_only_with_the_permission_of_the_caller(
    tmp_path: Path, request_: LeaderRequest, right: AclOperation
) -> None:
    parts = DataBroker(tmp_path)
    loop = asyncio.get_running_loop()
    for other, error in (
        (OtherBroker((right, "orders")), None),
        (OtherBroker(), TopicAuthorizationFailedError),
        (OtherBroker((right, "other")), TopicAuthorizationFailedError),
    ):
        broker = replace(parts.broker, loop=loop, peers=cast(Any, other), authorizer=cast(Any, other))
        client = LeaderClient(RequestSender(broker, Dispatcher(broker), ANONYMOUS, "127.0.0.1"), "other:9092", 2)
        with pytest.raises(error) if error is not None else nullcontext():
            await asyncio.to_thread(ask, client, request_, ListOffsetsResponse, 5)
        assert other.asked == ([] if error else [2])
    with pytest.raises(ClientError, match="only the broker at other:9092 can answer this"):
        client.send(MetadataRequest(), MetadataResponse, 1)
    parts.close()


@pytest.mark.parametrize("name", ["orders...key.4711", "orders?key=4711"])
async def test_a_virtual_topic_needs_permissions_for_its_base_topic_too(tmp_path: Path, name: str) -> None:
    parts = DataBroker(tmp_path)
    request = FetchRequest(topics=[FetchTopic(topic=name, partitions=[])])
    for rights, asked in (([name], []), (["orders"], []), ([name, "orders"], [2])):
        other = OtherBroker(*((AclOperation.READ, one) for one in rights))
        broker = replace(
            parts.broker, loop=asyncio.get_running_loop(), peers=cast(Any, other), authorizer=cast(Any, other)
        )
        client = LeaderClient(RequestSender(broker, Dispatcher(broker), ANONYMOUS, "127.0.0.1"), "other:9092", 2)
        with nullcontext() if asked else pytest.raises(TopicAuthorizationFailedError):
            await asyncio.to_thread(ask, client, request, ListOffsetsResponse, 5)
        assert other.asked == asked
    parts.close()


async def test_a_leader_that_does_not_answer_is_no_reason_to_try_again(tmp_path: Path) -> None:
    parts = DataBroker(tmp_path)
    other = OtherBroker()
    other.answer = deferred_error(LeaderNotAvailableError("broker 2 does not answer"))
    broker = replace(parts.broker, loop=asyncio.get_running_loop(), peers=cast(Any, other))
    client = LeaderClient(RequestSender(broker, Dispatcher(broker), ANONYMOUS, "127.0.0.1"), "other:9092", 2)
    with pytest.raises(ClientError, match="broker 2 does not answer"):
        await asyncio.to_thread(client.send, ListOffsetsRequest(topics=[]), ListOffsetsResponse, 5)
    parts.close()
