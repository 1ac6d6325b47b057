"""A repeated produce request is appended and answered as the general way does it, or left to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.data_broker import DataBroker, batch
from tests.unit.broker.handlers.test_data_path import Wire, produce_request
from tidelog.broker.requests.dispatch import MOST_PATIENCE
from tidelog.broker.requests.repeated_produce import RepeatedProduce
from tidelog.broker.requests.route import Pending
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import (
    CorruptMessageError,
    InvalidRecordError,
    MessageTooLargeError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumberError,
    TransactionalIdAuthorizationFailedError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse
from tidelog.protocol.record.record_batch import BatchOptions

VERSIONS = range(9, 14)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    data.topics.create_topic("t", 2)
    yield data
    data.close()


class Writer:
    """A producer into t-0 on a connection of its own, whose requests repeat already."""

    def __init__(self, data: DataBroker, version: int = 13, *, acks: int = 1) -> None:
        self.data, self.version, self.acks = data, version, acks
        self.wire = Wire(data)
        for _ in range(2):
            assert self.send(batch(b"first")).error_code == 0

    def request(self, records: bytes | bytearray) -> ProduceRequest:
        return produce_request(self.data, records, acks=self.acks)

    def send(self, records: bytes | bytearray) -> PartitionProduceResponse:
        response = self.wire.ask(self.request(records), ProduceResponse, self.version)
        return response.responses[0].partition_responses[0]

    @property
    def repeat(self) -> RepeatedProduce:
        repeat = self.wire.context.repeat
        assert isinstance(repeat, RepeatedProduce)
        return repeat


def log_of(data: DataBroker, topic: str = "t") -> UnifiedLog:
    return data.replica_manager.partition(topic, 0).local_log


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 40, 60, 127, 128, 5000, 16_300, 16_400, 300_000])
def test_records_of_every_size_are_appended(data: DataBroker, version: int, size: int) -> None:
    writer = Writer(data, version)
    quick = writer.wire.ask(writer.request(batch(bytes(size), b"2")), ProduceResponse, version)
    general = Wire(data).ask(writer.request(batch(bytes(size), b"2")), ProduceResponse, version)
    assert quick.responses[0].partition_responses[0].base_offset == 2
    quick.responses[0].partition_responses[0].base_offset = 4
    assert quick == general
    assert log_of(data).log_end_offset == log_of(data).high_watermark == 6
    assert isinstance(writer.repeat, RepeatedProduce)


def test_the_general_way_is_not_asked(data: DataBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(data)
    monkeypatch.setattr(writer.wire.dispatcher, "_routes", {})
    assert writer.send(batch(b"a")).base_offset == 2
    assert writer.wire.dispatcher.routes() == []


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (batch(bytes(2_000_000)), MessageTooLargeError),
        (batch(b"a")[:-1], InvalidRecordError),
        (batch(b"a") + batch(b"b"), InvalidRecordError),
        (batch(b"a")[:-3] + b"xyz", CorruptMessageError),
        (
            batch(b"a", options=BatchOptions(producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)),
            TransactionalIdAuthorizationFailedError,
        ),
        (batch(b"a", options=BatchOptions(base_offset=4)), InvalidRecordError),
        (b"", InvalidRecordError),
        (bytes(61), InvalidRecordError),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_refused_is_refused_alike(data: DataBroker, records: bytes, error: type, version: int) -> None:
    writer = Writer(data, version)
    quick = writer.send(bytearray(records))
    general = Wire(data).ask(writer.request(bytearray(records)), ProduceResponse, version)
    assert quick.error_code == error.code  # type: ignore[attr-defined]
    assert quick == general.responses[0].partition_responses[0]
    assert log_of(data).log_end_offset == 2
    assert writer.send(batch(b"a")).base_offset == 2


def test_refused_records_are_named(data: DataBroker) -> None:
    writer = Writer(data)
    data.topics.set_configs("t", {"cleanup.policy": "compact"})
    answer = writer.send(batch(b"a"))
    assert answer.error_code == InvalidRecordError.code
    assert [fault.batch_index for fault in answer.record_errors] == [0]
    assert answer.error_message


def test_a_producer_is_checked_and_a_retry_moves_nothing(data: DataBroker) -> None:
    def numbered(sequence: int) -> bytearray:
        return batch(b"a", options=BatchOptions(producer_id=5, producer_epoch=0, base_sequence=sequence))

    writer = Writer(data)
    assert [writer.send(numbered(number)).base_offset for number in (0, 1, 0, 1)] == [2, 3, 2, 3]
    assert log_of(data).log_end_offset == 4
    assert writer.send(numbered(7)).error_code == OutOfOrderSequenceNumberError.code


def test_a_sync_that_is_asked_for_later_is_waited_for(data: DataBroker) -> None:
    writer = Writer(data)
    data.topics.set_configs("t", {"flush.messages": "1"})
    answer = writer.wire.send(writer.request(batch(b"a")), 13)
    assert isinstance(answer, Pending)


def test_a_topic_that_is_made_again_is_another(data: DataBroker) -> None:
    writer = Writer(data, 12)
    data.topics.delete_topic("t")
    data.topics.create_topic("t", 1)
    assert writer.send(batch(b"a")).base_offset == 0
    assert log_of(data).log_end_offset == 1


def test_a_topic_that_is_gone_is_unknown(data: DataBroker) -> None:
    writer = Writer(data, 12)
    request = writer.request(batch(b"a"))
    data.topics.delete_topic("t")
    answer = writer.wire.ask(request, ProduceResponse, 12).responses[0].partition_responses[0]
    assert answer.error_code == UnknownTopicOrPartitionError.code


def test_acks_0_has_no_pattern(data: DataBroker) -> None:
    wire = Wire(data)
    for _ in range(9):
        assert wire.send(produce_request(data, batch(b"a"), acks=0), 13) is None
    assert wire.context.repeat is None
    assert log_of(data).log_end_offset == 9


def test_bytes_that_are_left_over_go_the_general_way(data: DataBroker) -> None:
    writer = Writer(data)
    frame = whole_frame(writer, batch(b"a")) + b"\0\0\0"
    assert writer.repeat.answer(memoryview(frame)) is None
    assert log_of(data).log_end_offset == 2
    assert writer.wire.dispatcher.dispatch(writer.wire.context, memoryview(frame)) is not None
    assert log_of(data).log_end_offset == 3


def whole_frame(writer: Writer, records: bytearray) -> bytearray:
    header = b"\0\0\0\x0d\0\0\0\x4d\0\x06tester\0"
    return bytearray(header + writer.request(records).encode(13))


def test_no_frame_that_ends_early_is_appended(data: DataBroker) -> None:
    writer = Writer(data)
    frame = whole_frame(writer, batch(b"a" * 300))
    for end in range(len(frame)):
        assert writer.repeat.answer(memoryview(frame)[:end]) is None
    assert log_of(data).log_end_offset == 2
    assert writer.repeat.answer(memoryview(frame)) is not None


@pytest.mark.parametrize("at", [1, 3, 10, 15, 18, 20, 40])
def test_another_request_is_none_of_the_pattern(data: DataBroker, at: int) -> None:
    writer = Writer(data)
    frame = whole_frame(writer, batch(b"a"))
    frame[at] ^= 1
    assert writer.repeat.answer(memoryview(frame)) is None
    assert log_of(data).log_end_offset == 2


def test_the_length_is_a_varint_that_ends(data: DataBroker) -> None:
    writer = Writer(data)
    frame = whole_frame(writer, batch(b"a"))
    position = writer.repeat._request.layout.size
    frame[position : position + 6] = b"\xff" * 6
    assert writer.repeat.answer(memoryview(frame)) is None


def test_a_mistake_of_ours_is_an_error_of_the_server(data: DataBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(data)

    def mistake(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(UnifiedLog, "append_as_leader", mistake)
    assert writer.send(batch(b"a")).error_code == UnknownServerError.code
    assert writer.wire.dispatcher.routes()[0].requests == 3


def test_counters_go_on(data: DataBroker) -> None:
    writer = Writer(data)
    metrics = data.broker.metrics
    before = metrics.bytes_in.count, metrics.messages_in.count
    records = batch(b"a", b"b")
    writer.send(records)
    assert (metrics.bytes_in.count, metrics.messages_in.count) == (before[0] + len(records), before[1] + 2)
    assert writer.wire.dispatcher.routes()[0].requests == 3


def test_who_never_repeats_is_asked_ever_less(data: DataBroker) -> None:
    wire = Wire(data)
    for number in range(200):
        wire.ask(produce_request(data, batch(b"a"), index=number % 2), ProduceResponse, 13)
    assert 64 <= wire.context.repeat_patience <= MOST_PATIENCE


@pytest.mark.parametrize("acks", [1, -1])
def test_replicas_that_nobody_can_have_are_asked_of_acks_all_alone(data: DataBroker, acks: int) -> None:
    """One node, and min.insync.replicas is 2: refused before anything is written, for as long as the config stands."""
    writer = Writer(data, acks=acks)
    data.topics.set_configs("t", {"min.insync.replicas": "2"})
    answers = [writer.send(batch(b"a")).error_code for _ in range(4)]
    assert answers == [NotEnoughReplicasError.code if acks == -1 else 0] * 4
    assert log_of(data).log_end_offset == (2 if acks == -1 else 6)
    data.topics.set_configs("t", {})
    assert writer.send(batch(b"a")).error_code == 0
