"""Long requests through the dispatcher: handled in steps with the same answers, and dropped when the connection
closes."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tests.unit.broker.handlers.test_data_path import R, Wire
from tidelog.broker.loop import steps
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.late_imports import LateImports
from tidelog.broker.replica.replica_manager import ReplicaManager
from tidelog.broker.requests.route import ONE_TURN_BYTES, InSteps, Parts, Pending
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.schema.fields import Message
from tidelog.protocol.transferable import TransferableRecords


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 2)
    yield data
    data.close()


class LongWire(Wire):
    """A wire whose answers may come later, and whose frames are overwritten once the dispatcher has returned."""

    turns = 0

    def send(self, request: Message, version: int) -> object:
        key = request.API_KEY
        header = struct.pack(">hhih", key, version, 77, 6) + b"tester" + b"\0" * request.FLEXIBLE.has(version)
        frame = bytearray(header + request.encode(version))
        answer = self.dispatcher.dispatch(self.context, memoryview(frame))
        frame[:] = b"\xff" * len(frame)
        return answer

    def wait(self, answer: object) -> object:
        """Wait for the frame; ``turns`` counts how long it took."""
        self.turns = 0
        if not isinstance(answer, Pending):
            return answer
        frames: list[bytes | Parts | None] = []
        answer.on_answer(frames.append)
        while not frames:
            self.data.loop.run_soon()
            self.turns += 1
        return frames[0]

    def ask(self, request: Message, response_type: type[R], version: int) -> R:
        return self.decoded(self.wait(self.send(request, version)), response_type, version)


@pytest.fixture
def wire(data: DataBroker, monkeypatch: pytest.MonkeyPatch) -> LongWire:
    monkeypatch.setattr(steps, "SLICE_MS", 0.0)  # one step is one slice, whatever the clock says
    return LongWire(data)


def keys(count: int) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key_type=0, coordinator_keys=[f"group-{number}" for number in range(count)])


def test_a_long_request_is_answered_as_its_parts_are(wire: LongWire) -> None:
    count = ONE_TURN_BYTES
    response = wire.ask(keys(count), FindCoordinatorResponse, 6)
    assert wire.turns > 100
    assert [found.key for found in response.coordinators] == keys(count).coordinator_keys
    one = wire.ask(keys(1), FindCoordinatorResponse, 6)
    assert one.coordinators == response.coordinators[:1]


def test_a_short_request_of_a_handler_in_steps_may_wait_for_the_loop_only_beyond_a_slice(
    data: DataBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SLICE_MS", 3600.0)
    wire = LongWire(data)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="none"), DeleteTopicState(name="neither")])
    answer = wire.send(request, 6)
    assert not isinstance(answer, Pending)
    assert [found.error_code for found in wire.decoded(answer, DeleteTopicsResponse, 6).responses] == [3, 3]


def test_requests_of_other_connections_are_answered_between_the_steps(wire: LongWire) -> None:
    long_one = wire.send(keys(ONE_TURN_BYTES), 6)
    assert isinstance(long_one, Pending)
    other = LongWire(wire.data)
    frames: list[Any] = []
    long_one.on_answer(frames.append)
    wire.data.loop.run_soon()
    assert other.ask(keys(1), FindCoordinatorResponse, 6).coordinators[0].error_code == 0
    assert not frames
    wire.wait(long_one)


def test_a_request_whose_connection_goes_away_is_given_up(wire: LongWire) -> None:
    create_topic(wire.data, "last", 1)
    names = [*(f"none-{number}" for number in range(ONE_TURN_BYTES)), "last"]
    for turns in (0, 1, 10, 300):
        answer = wire.send(DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names]), 6)
        assert isinstance(answer, Pending)
        for _ in range(turns):
            wire.data.loop.run_soon()
        answer.abandon()
        while wire.data.loop.soon:
            wire.data.loop.run_soon()
    assert "last" in wire.data.broker.metadata.topics


def test_a_malformed_long_request_closes_the_connection(wire: LongWire) -> None:
    request = keys(ONE_TURN_BYTES)
    whole = request.encode(6)
    header = struct.pack(">hhih", request.API_KEY, 6, 77, 1) + b"t\0"
    answer = wire.dispatcher.dispatch(wire.context, memoryview(header + whole[:-5]))
    assert wire.wait(answer) is None
    wire.dispatcher.dispatch(wire.context, memoryview(header + keys(1).encode(6)))


def test_a_long_request_that_is_refused_in_its_first_slice_raises(
    data: DataBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SLICE_MS", 3600.0)
    wire = LongWire(data)
    header = struct.pack(">hhih", 10, 6, 77, 1) + b"t\0"
    with pytest.raises(InvalidRequestError):
        wire.dispatcher.dispatch(wire.context, memoryview(header + keys(ONE_TURN_BYTES).encode(6)[:-5]))


def test_errors_of_a_long_request_are_its_own(wire: LongWire) -> None:
    request = FindCoordinatorRequest(key_type=9, coordinator_keys=["k"] * ONE_TURN_BYTES)
    response = wire.ask(request, FindCoordinatorResponse, 6)
    assert {found.error_code for found in response.coordinators} == {InvalidRequestError.code}


def test_a_defect_is_an_error_of_the_request(
    wire: LongWire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ReplicaManager, "partition", None)
    partitions = [ListOffsetsPartition(partition_index=number) for number in range(ONE_TURN_BYTES)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=partitions)])
    response = wire.ask(request, ListOffsetsResponse, 11)
    assert {found.error_code for found in response.topics[0].partitions} == {-1}
    assert "API 2 version 11 failed" in caplog.text


def test_steps_may_end_with_an_answer_that_is_encoded_already(wire: LongWire, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = bytes(FindCoordinatorResponse(throttle_time_ms=7).encode(6))

    def answer_in_steps(*_: object) -> Generator[None, None, bytes]:
        yield None
        return encoded

    monkeypatch.setattr("tidelog.broker.handlers.find_coordinator.handle", answer_in_steps)
    assert wire.ask(keys(1), FindCoordinatorResponse, 6).throttle_time_ms == 7


WIDE = 300
"""Partitions whose fetch is answered in steps: it takes more than `ONE_TURN_BYTES`."""


def fetch(count: int, wait_ms: int) -> FetchRequest:
    partitions = [FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=100) for number in range(count)]
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic="t", partitions=partitions)]
    )


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> list[TransferableRecords]:
    """The slices that were promised and not released."""
    promised: list[TransferableRecords] = []
    make, release = TransferableRecords.__init__, TransferableRecords.release

    def promise(self: TransferableRecords, file: Any, position: int, size: int) -> None:
        make(self, file, position, size)
        promised.append(self)

    def let_go(self: TransferableRecords) -> None:
        release(self)
        promised.remove(self)

    monkeypatch.setattr(TransferableRecords, "__init__", promise)
    monkeypatch.setattr(TransferableRecords, "release", let_go)
    return promised


@pytest.mark.parametrize("later", [0, 1, 4, 8, 10_000])
def test_no_file_stays_open_for_a_fetch_that_is_given_up(
    wire: LongWire, slices: list[TransferableRecords], later: int
) -> None:
    data = wire.data
    create_topic(data, "wide", WIDE)
    for partition in range(0, WIDE, 25):
        data.append("wide", b"value" * 10, partition=partition)
    request = fetch(WIDE, 0)
    request.topics[0].topic = "wide"
    answer = wire.send(request, 11)
    assert isinstance(answer, Pending)
    while not slices:
        data.loop.run_soon()
    for _ in range(later):
        data.loop.run_soon()
    answer.abandon()
    frames: list[Any] = []
    answer.on_answer(frames.append)  # a frame that was there is the connection's to release
    while data.loop.soon:
        data.loop.run_soon()
    for frame in frames:
        wire.decoded(frame, FetchResponse, 11)
    assert slices == []


def test_a_long_fetch_waits_and_is_hurried(wire: LongWire) -> None:
    create_topic(wire.data, "wide", WIDE)
    request = fetch(WIDE, 60_000)
    request.topics[0].topic = "wide"
    answer = wire.send(request, 11)
    assert isinstance(answer, Pending)
    frames: list[Any] = []
    answer.on_answer(frames.append)
    while wire.data.loop.soon:
        wire.data.loop.run_soon()
    assert not frames
    answer.hurry()
    while wire.data.loop.soon:
        wire.data.loop.run_soon()
    response = wire.decoded(frames[0], FetchResponse, 11)
    assert len(response.responses[0].partitions) == WIDE


def test_a_long_fetch_is_answered_when_there_is_enough(wire: LongWire) -> None:
    data = wire.data
    create_topic(data, "wide", WIDE)
    request = fetch(WIDE, 60_000)
    request.topics[0].topic = "wide"
    request.min_bytes = 150
    answer = wire.send(request, 11)
    assert isinstance(answer, Pending)
    frames: list[Any] = []
    answer.on_answer(frames.append)
    for partition in (WIDE - 1, 150):
        while data.loop.soon:
            data.loop.run_soon()
        assert not frames
        data.append("wide", b"value" * 4, partition=partition)
    while data.loop.soon:
        data.loop.run_soon()
    response = wire.decoded(frames[0], FetchResponse, 11)
    with_records = [found.partition_index for found in response.responses[0].partitions if found.records]
    assert with_records == [150, WIDE - 1]
    assert not len(data.purgatory)


def test_a_long_fetch_is_answered_when_its_time_is_up(wire: LongWire) -> None:
    data = wire.data
    create_topic(data, "wide", WIDE)
    request = fetch(WIDE, 500)
    request.topics[0].topic = "wide"
    frames: list[Any] = []
    answer = wire.send(request, 11)
    assert isinstance(answer, Pending)
    answer.on_answer(frames.append)
    while data.loop.soon:
        data.loop.run_soon()
    data.loop.advance(499)
    assert not frames
    data.loop.advance(2)
    while data.loop.soon:
        data.loop.run_soon()
    assert len(wire.decoded(frames[0], FetchResponse, 11).responses[0].partitions) == WIDE
    assert not len(data.purgatory)


def test_a_long_fetch_that_waits_is_given_up(wire: LongWire) -> None:
    create_topic(wire.data, "wide", WIDE)
    request = fetch(WIDE, 500)
    request.topics[0].topic = "wide"
    answer = wire.send(request, 11)
    assert isinstance(answer, Pending)
    while wire.data.loop.soon:
        wire.data.loop.run_soon()
    assert len(wire.data.purgatory) == 1
    answer.abandon()
    assert not len(wire.data.purgatory)


def test_a_request_that_waits_for_its_handlers_module_is_logged_with_its_own_api(
    data: DataBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for_ever(_self: object, _name: str) -> Generator[Deferred[None], None, None]:
        yield Deferred()

    monkeypatch.setattr(LateImports, "is_loaded", lambda *_: False)
    monkeypatch.setattr(LateImports, "wait_until_loaded", wait_for_ever)
    answer = LongWire(data).send(FindCoordinatorRequest(key="g"), 3)
    assert isinstance(answer, InSteps)
    assert answer._api_key == FindCoordinatorRequest.API_KEY
