"""The queue of requests to the active controller: their order, their answers, and closed connections of clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from tidelog.broker.cluster.quorum import Address, QuorumView
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.broker.member.forwarding.forwarder import MAX_QUEUED, Forwarder
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import ClusterAuthorizationFailedError, NotControllerError, RequestTimedOutError
from tidelog.protocol.messages.envelope import DefaultPrincipalData, EnvelopeRequest, EnvelopeResponse

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


async def test_a_response_is_noted_if_its_client_goes_while_it_is_asked() -> None:
    """The controller has made the change by then, so it has its line in the audit log."""
    noted: list[bytes] = []

    def answer(data: bytes) -> EnvelopeResponse:
        gone.abandon()
        return EnvelopeResponse(response_data=data)

    forwarder = forwarder_to(Controller(answer))
    gone = forwarder.forward(memoryview(b"gone"), WHO, "127.0.0.1", noted.append)
    there = forwarder.forward(memoryview(b"there"), WHO, "127.0.0.1")
    await run_until(forwarder, there)
    assert (noted, gone.done) == ([b"gone"], False)


async def test_a_refusal_is_answered_and_the_next_request_is_sent() -> None:
    refused = EnvelopeResponse(error_code=ClusterAuthorizationFailedError.code)
    controller = Controller(lambda data: refused if data == b"1" else EnvelopeResponse(response_data=data))
    forwarder = forwarder_to(controller)
    answers = [forwarder.forward(memoryview(data), WHO, "::1") for data in (b"1", b"2")]
    await run_until(forwarder, answers[-1])
    with pytest.raises(Exception, match="denies its principal ClusterAction"):
        answers[0].result()
    assert answers[1].result() == b"2"


async def test_a_request_is_repeated_until_the_clients_timeout() -> None:
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
