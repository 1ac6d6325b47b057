"""Routes: whatever form a handler's answer has, the frame is the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.loop.steps import StepRunner
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.route import Route
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

VERSION = 4
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
