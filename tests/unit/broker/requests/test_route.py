"""Routes: the frame is the same for each form in which a handler may return its response."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.steps import FREED_PER_STEP, StepRunner
from tidelog.broker.requests import route as route_module
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.route import Route
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, RequestTimedOutError
from tidelog.protocol.messages import fetch
from tidelog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

VERSION = 4
MANY = 1_000
RESPONSE = InitProducerIdResponse(producer_id=7)


def at_once(response: Any) -> Any:
    return response


def in_steps(response: Any) -> Any:
    yield None
    return response


@pytest.mark.parametrize("response", [RESPONSE, RESPONSE.encode(VERSION)], ids=["message", "bytes"])
@pytest.mark.parametrize("form", [at_once, in_steps])
@pytest.mark.parametrize("is_long", [False, True])
def test_message_and_bytes_make_one_frame(response: Any, form: Any, is_long: bool) -> None:
    loop = ManualLoop()
    module = SimpleNamespace(
        Request=InitProducerIdRequest, handle=lambda *_: form(response), error_response=lambda *_: None
    )
    route = Route(ApiKey.INIT_PRODUCER_ID, VERSION, module, StepRunner(loop.call_soon, lambda: 0.0))
    context, broker = RequestContext(), SimpleNamespace()
    context.correlation_id = 5
    answer = route.answer(broker, context, InitProducerIdRequest(), is_long=is_long)  # type: ignore[arg-type]
    assert b"".join(bytes(part) for part in ([answer] if isinstance(answer, bytes) else answer)) == route.encode(  # type: ignore[union-attr,arg-type]
        5, RESPONSE
    )


def test_an_answer_that_is_too_long_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(route_module, "MAX_ANSWER_BYTES", MANY)
    loop = ManualLoop()
    found = FindCoordinatorResponse(coordinators=[Coordinator(key="group", host="host")] * MANY)
    module = SimpleNamespace(
        Request=FindCoordinatorRequest, handle=lambda *_: in_steps(found), error_response=lambda *_: None
    )
    route = Route(ApiKey.FIND_COORDINATOR, VERSION, module, StepRunner(loop.call_soon, lambda: 0.0))
    with pytest.raises(CloseConnectionError):
        route.answer(SimpleNamespace(), RequestContext(), FindCoordinatorRequest())  # type: ignore[arg-type]
    assert "an answer of API 10 version 4 is longer than 1000 bytes: the connection is closed" in caplog.text


def test_a_fetch_answer_that_is_too_long_lets_its_files_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_module, "MAX_ANSWER_BYTES", MANY)
    let_go: list[object] = []
    monkeypatch.setattr(route_module, "release_records", let_go.append)
    partitions = [fetch.PartitionData(partition_index=number, records=b"") for number in range(MANY)]
    found = fetch.FetchResponse(responses=[fetch.FetchableTopicResponse(topic="t", partitions=partitions)])
    module = SimpleNamespace(
        Request=fetch.FetchRequest, handle=lambda *_: in_steps(found), error_response=lambda *_: None
    )
    route = Route(ApiKey.FETCH, VERSION, module, StepRunner(ManualLoop().call_soon, lambda: 0.0))
    with pytest.raises(CloseConnectionError):
        route.answer(SimpleNamespace(), RequestContext(), fetch.FetchRequest())  # type: ignore[arg-type]
    assert let_go == [found]


class Counted(str):
    """A name in a request that counts when it is freed."""

    freed = 0

    def __del__(self) -> None:
        Counted.freed += 1


def test_a_long_request_that_is_refused_frees_some_elements_in_a_step() -> None:
    def refuse(request: CreateTopicsRequest, error: KafkaError) -> CreateTopicsResponse:
        topics = [CreatableTopicResult(name="t", error_code=error.code) for _ in request.topics]
        return CreateTopicsResponse(topics=topics)

    module = SimpleNamespace(Request=CreateTopicsRequest, handle=None, error_response=refuse)
    route = Route(ApiKey.CREATE_TOPICS, VERSION, module, StepRunner(ManualLoop().call_soon, lambda: 0.0))
    topics = [CreatableTopic(name=Counted("t")) for _ in range(MANY)]
    steps = route.refuse_frame_in_steps(5, CreateTopicsRequest(topics=topics), RequestTimedOutError())
    del topics
    Counted.freed = before = max_freed = 0
    for _ in steps:
        max_freed, before = max(max_freed, Counted.freed - before), Counted.freed
    assert Counted.freed == MANY
    assert max(max_freed, Counted.freed - before) <= FREED_PER_STEP
