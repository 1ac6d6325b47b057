"""Limits on requests: elements of all arrays, and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.long_requests import Case, all_cases, build, frame, frame_of, most_legal, request_class
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.requests import bounds, route
from tidelog.broker.requests.bounds import MAX_BYTES, max_bytes
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.protocol.messages.push_telemetry import PushTelemetryRequest
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tidelog.protocol.schema.fields import Message

BEYOND = bytes(MAX_BYTES + 1)
CARRIERS: list[tuple[Message, int]] = [
    (JoinGroupRequest(group_id="g", protocols=[JoinGroupRequestProtocol(name="p", metadata=BEYOND)]), 5),
    (SyncGroupRequest(group_id="g", assignments=[SyncGroupRequestAssignment(member_id="m", assignment=BEYOND)]), 3),
    (PushTelemetryRequest(metrics=BEYOND), 0),
]


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    yield data
    data.close()


def test_every_request_but_produce_has_a_bound_of_its_own(data: DataBroker) -> None:
    bounds = {key: max_bytes(key, data.broker.config) for key in REGISTRY if key != ApiKey.PRODUCE}
    assert set(bounds.values()) == {MAX_BYTES}


def test_config_keys_raise_the_bounds_of_their_requests(tmp_path: Path) -> None:
    data = DataBroker(tmp_path, {"telemetry.max.bytes": str(MAX_BYTES), "message.max.bytes": str(3 * MAX_BYTES)})
    assert max_bytes(ApiKey.PUSH_TELEMETRY, data.broker.config) == 2 * MAX_BYTES
    assert max_bytes(ApiKey.JOIN_GROUP, data.broker.config) == 6 * MAX_BYTES
    assert max_bytes(ApiKey.SYNC_GROUP, data.broker.config) == 6 * MAX_BYTES
    data.close()


@pytest.mark.parametrize(("request_", "version"), CARRIERS, ids=lambda value: type(value).__name__)
def test_a_request_beyond_its_bound_closes_the_connection(data: DataBroker, request_: Message, version: int) -> None:
    with pytest.raises(InvalidRequestError, match="this API has at most"):
        Dispatcher(data.broker).dispatch(data.context(0), memoryview(bytearray(frame(request_, version))))


MAX_ELEMENTS = 30


def test_no_array_of_any_api_is_longer_than_the_table_says(data: DataBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_ELEMENTS", {})
    monkeypatch.setattr(bounds, "DEFAULT", MAX_ELEMENTS)
    monkeypatch.setattr(route, "ONE_TURN_ELEMENTS", MAX_ELEMENTS)
    dispatcher = Dispatcher(data.broker)
    taken = []
    for case in (case for api_key in REGISTRY for case in all_cases(api_key)):
        try:
            dispatcher.dispatch(data.context(0), memoryview(bytearray(frame_of(case, MAX_ELEMENTS + 1))))
        except InvalidRequestError:
            continue
        taken.append(str(case))
    assert taken == []


def test_the_largest_allowed_number_of_elements_is_accepted_and_one_more_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The requests of ``tests/faults/test_long_requests.py`` have the largest allowed number."""
    monkeypatch.setattr(bounds, "MAX_ELEMENTS", {})
    monkeypatch.setattr(bounds, "DEFAULT", MAX_ELEMENTS)
    for case in (case for api_key in REGISTRY for case in all_cases(api_key)):
        decode = request_class(case.api_key).decoder_at(case.version).decode
        decode(body_of(case, most_legal(case)), 0, MAX_ELEMENTS)
        with pytest.raises(InvalidRequestError):
            decode(body_of(case, most_legal(case) + 1), 0, MAX_ELEMENTS)


def body_of(case: Case, count: int) -> memoryview:
    return memoryview(bytearray(build(case, count).encode(case.version)))
