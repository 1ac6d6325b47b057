"""Forwarding of requests to the active controller: their order, their answers, and which requests stay here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from tidelog.broker.cluster.quorum import Address, QuorumView
from tidelog.broker.config.description import ResourceType
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.member.channel import Channel, ChannelError
from tidelog.broker.member.forwarding import (
    MAX_QUEUED,
    Forwarder,
    has_transactional_id,
    is_about_loggers,
    producer_of,
)
from tidelog.log.system.time import ManualTime
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import ClusterAuthorizationFailedError, NotControllerError, RequestTimedOutError
from tidelog.protocol.header import RequestHeader, encode_request_header
from tidelog.protocol.messages.envelope import DefaultPrincipalData, EnvelopeRequest, EnvelopeResponse
from tidelog.protocol.messages.incremental_alter_configs import AlterConfigsResource, IncrementalAlterConfigsRequest
from tidelog.protocol.messages.produce import ProduceRequest
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch
from tidelog.protocol.schema.fields import Message

WHO = DefaultPrincipalData(type="User", name="ann")
LIMIT_S = 60.0


class Controller:
    """A channel to a controller whose answers a test gives."""

    def __init__(self, answer: Callable[[bytes], EnvelopeResponse]) -> None:
        self.asked: list[bytes] = []
        self._answer = answer

    async def ask(self, _: Address, request: EnvelopeRequest, __: object) -> EnvelopeResponse:
        self.asked.append(bytes(request.request_data))
        return self._answer(self.asked[-1])


def forwarder_to(controller: Controller, time: ManualTime | None = None) -> Forwarder:
    quorum = QuorumView([Address("controller", 1)])
    return Forwarder(quorum, cast(Channel, controller), cast(Any, time or ManualTime()))


async def run_until(forwarder: Forwarder, last: Deferred[bytes]) -> None:
    """Let the forwarder work until this answer, the last one, is there."""
    is_done = asyncio.Event()
    last.on_done(lambda _: is_done.set())
    task = asyncio.ensure_future(forwarder.run())
    async with asyncio.timeout(LIMIT_S):
        await is_done.wait()
    task.cancel()


async def test_requests_are_asked_in_their_order_and_answered_whole() -> None:
    controller = Controller(lambda data: EnvelopeResponse(response_data=b"answer to " + data))
    forwarder = forwarder_to(controller)
    answers = [forwarder.forward(memoryview(data), WHO, "127.0.0.1") for data in (b"1", b"2", b"3")]
    await run_until(forwarder, answers[-1])
    assert controller.asked == [b"1", b"2", b"3"]
    assert [answer.result() for answer in answers] == [b"answer to 1", b"answer to 2", b"answer to 3"]


async def test_a_request_whose_client_is_gone_is_not_asked() -> None:
    controller = Controller(lambda data: EnvelopeResponse(response_data=data))
    forwarder = forwarder_to(controller)
    gone = forwarder.forward(memoryview(b"gone"), WHO, "127.0.0.1")
    there = forwarder.forward(memoryview(b"there"), WHO, "127.0.0.1")
    gone.abandon()
    await run_until(forwarder, there)
    assert controller.asked == [b"there"]
    assert not gone.done


async def test_a_refusal_is_told_and_the_next_request_is_asked() -> None:
    refused = EnvelopeResponse(error_code=ClusterAuthorizationFailedError.code)
    controller = Controller(lambda data: refused if data == b"1" else EnvelopeResponse(response_data=data))
    forwarder = forwarder_to(controller)
    answers = [forwarder.forward(memoryview(data), WHO, "::1") for data in (b"1", b"2")]
    await run_until(forwarder, answers[-1])
    with pytest.raises(Exception, match="ClusterAction is missing"):
        answers[0].result()
    assert answers[1].result() == b"2"


async def test_a_controller_that_is_none_is_asked_until_the_clients_time_is_over() -> None:
    time = ManualTime()

    def answer(_: bytes) -> EnvelopeResponse:
        time.advance(20_000)
        if len(controller.asked) == 1:
            raise ChannelError("the connection broke")
        return EnvelopeResponse(error_code=NotControllerError.code)

    controller = Controller(answer)
    forwarder = forwarder_to(controller, time)
    waiting = forwarder.forward(memoryview(b"1"), WHO, "127.0.0.1")
    await run_until(forwarder, waiting)
    assert len(controller.asked) == 2
    with pytest.raises(RequestTimedOutError):
        waiting.result()


def test_so_many_requests_may_wait() -> None:
    forwarder = forwarder_to(Controller(lambda data: EnvelopeResponse(response_data=data)))
    for _ in range(MAX_QUEUED - 1):
        forwarder.forward(memoryview(b""), WHO, "127.0.0.1")
    assert not forwarder.is_full
    forwarder.forward(memoryview(b""), WHO, "127.0.0.1")
    assert forwarder.is_full


def frame(api_key: int, version: int, request: Message) -> memoryview:
    header = RequestHeader(api_key, version, 7, "client")
    return memoryview(encode_request_header(header) + request.encode(version))


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("transactional_id", [None, "id"])
def test_the_transactional_id_of_a_produce_request(version: int, transactional_id: str | None) -> None:
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1)
    assert has_transactional_id(frame(ApiKey.PRODUCE, version, request)) is (transactional_id is not None)


@pytest.mark.parametrize(
    ("kinds", "answer"),
    [
        ([ResourceType.BROKER_LOGGER], True),
        ([ResourceType.BROKER_LOGGER, ResourceType.TOPIC], False),
        ([ResourceType.TOPIC], False),
        ([], False),
    ],
)
def test_levels_of_loggers_are_changed_here(kinds: list[ResourceType], answer: bool) -> None:
    resources = [AlterConfigsResource(resource_type=kind, resource_name="1") for kind in kinds]
    request = IncrementalAlterConfigsRequest(resources=resources)
    assert is_about_loggers(frame(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)) is answer


def test_the_producer_of_a_transactional_batch() -> None:
    records = [Record(0, 1, None, b"value", [])]

    def batch(*, is_transactional: bool) -> memoryview:
        options = BatchOptions(producer_id=9, producer_epoch=2, base_sequence=0, is_transactional=is_transactional)
        return memoryview(build_batch(records, options))

    assert producer_of(batch(is_transactional=True)) == (9, 2)
    assert producer_of(batch(is_transactional=False)) is None
    assert producer_of(batch(is_transactional=True)[:60]) is None
    assert producer_of(None) is None
