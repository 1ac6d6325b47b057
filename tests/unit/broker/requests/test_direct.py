"""The direct path of a request: headers of every length, errors of a handler, and requests that leave this path."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.steps import StepRunner
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.direct import DirectDispatcher
from tidelog.broker.requests.route import Route
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError, KafkaStorageError
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

VERSION = 4
WORD = ApiKey.INIT_PRODUCER_ID << 16 | VERSION
NO_ID, ID = struct.pack(">h", -1), struct.pack(">h", 6) + b"tester"
BODY = InitProducerIdRequest(transactional_id=None).encode(VERSION)


def answer_for(request: InitProducerIdRequest, error: Any) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error.code)


def dispatcher(handle: Any) -> DirectDispatcher:
    module = SimpleNamespace(Request=InitProducerIdRequest, handle=handle, error_response=answer_for)
    made = DirectDispatcher(SimpleNamespace(), SimpleNamespace(made=None))  # type: ignore[arg-type]
    made._routes[WORD] = Route(
        ApiKey.INIT_PRODUCER_ID, VERSION, module, StepRunner(ManualLoop().call_soon, lambda: 0.0)
    )
    return made


def frame(client_id: bytes, tags: bytes = b"\0") -> memoryview:
    return memoryview(bytearray(struct.pack(">Ii", WORD, 77) + client_id + tags + BODY))


def decoded(answer: Any) -> InitProducerIdResponse:
    assert struct.unpack_from(">iix", answer) == (len(answer) - 4, 77)
    return InitProducerIdResponse.decode(memoryview(answer)[9:], VERSION)


@pytest.mark.parametrize(("client_id", "name"), [(NO_ID, None), (b"\0\0", ""), (ID, "tester")])
@pytest.mark.parametrize("tags", [b"\0", b"\x01\x00\x02ab"])
def test_header_is_read_and_noted(client_id: bytes, name: str | None, tags: bytes) -> None:
    context = RequestContext()
    ways = dispatcher(lambda *_: InitProducerIdResponse(producer_id=7))
    for _ in range(3):
        assert decoded(ways.dispatch(context, frame(client_id, tags))).producer_id == 7
    assert (context.api_key, context.api_version, context.client_id) == (ApiKey.INIT_PRODUCER_ID, VERSION, name)
    assert (context.correlation_id, context.frame_bytes, context.owns_frame) == (77, len(frame(client_id, tags)), False)
    assert ways._routes[WORD].requests == 3


def test_a_header_cut_anywhere_is_refused() -> None:
    whole = frame(ID)
    header = len(whole) - len(BODY)
    ways = dispatcher(None)
    for size in range(header):
        with pytest.raises(InvalidRequestError):
            ways.dispatch(RequestContext(), memoryview(bytearray(whole[:size])))
    with pytest.raises(InvalidRequestError, match="not UTF-8"):
        ways.dispatch(RequestContext(), frame(b"\0\x01\xff"))


@pytest.mark.parametrize(("error", "code"), [(KafkaStorageError(), KafkaStorageError.code), (ValueError("ours"), -1)])
def test_an_error_of_the_handler_is_answered(error: Exception, code: int) -> None:
    def handle(*_: Any) -> None:
        raise error

    assert decoded(dispatcher(handle).dispatch(RequestContext(), frame(ID))).error_code == code


def test_a_handler_can_have_the_connection_closed() -> None:
    def handle(*_: Any) -> None:
        raise CloseConnectionError("enough")

    with pytest.raises(CloseConnectionError):
        dispatcher(handle).dispatch(RequestContext(), frame(ID))
