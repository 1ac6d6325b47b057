"""Produce requests that take longer than a turn: they are handled in steps and threads, between other requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.slices import content_of
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker, batch
from tests.unit.broker.requests.test_dispatch import LongWire
from tidelog.broker.controller.topic_changes import NewTopic
from tidelog.broker.handlers import long_produce, produce
from tidelog.broker.handlers.produce import TURN_PARTITIONS
from tidelog.broker.loop import steps
from tidelog.broker.requests.route import ONE_TURN_ELEMENTS, Pending
from tidelog.log.fetch import FetchIsolation
from tidelog.log.records.work_budget import MAX_PLAIN_BYTES, TURN, TURN_PLAIN_BYTES, WorkBudget
from tidelog.protocol.errors import (
    InvalidRecordError,
    MessageTooLargeError,
    RequestTimedOutError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.compression import CompressionType
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import BatchOptions, Record, set_crc

T = TypeVar("T")

GZIP, ZSTD = CompressionType.GZIP, CompressionType.ZSTD
VERSION = 11


class HeldThreads:
    """An executor whose work is done when the test says so; its results are settled in the loop's next turn."""

    def __init__(self, data: DataBroker) -> None:
        self.work: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._loop = data.loop

    def run_in_executor(self, _: object, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self.work.append((work, future))
        return future

    def finish(self) -> None:
        """Do what waits."""
        waiting, self.work = self.work, []
        for work, future in waiting:
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - as an executor does
                future.set_exception(error)

    def finish_all(self) -> None:
        """Do what waits, and what comes of it."""
        while self.work or self._loop.soon:
            self.finish()
            self._loop.run_soon()


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 8)
    yield data
    data.close()


@pytest.fixture
def threads(data: DataBroker, monkeypatch: pytest.MonkeyPatch) -> HeldThreads:
    threads = HeldThreads(data)
    monkeypatch.setattr(data.loop, "run_in_executor", threads.run_in_executor)
    return threads


@pytest.fixture
def wire(data: DataBroker) -> LongWire:
    return LongWire(data)


def heavy(value: bytes = b"v", codec: int = GZIP, size: int = TURN_PLAIN_BYTES) -> bytearray:
    """Build records that decompress to more than a turn takes."""
    return batch(value * (size // len(value)), value, options=BatchOptions(compression=codec))


def request(*parts: tuple[int, bytes | bytearray], acks: int = -1, topic: str = "t") -> ProduceRequest:
    partitions = [PartitionProduceData(index=index, records=memoryview(records)) for index, records in parts]
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=partitions)]
    )


def answers(wire: LongWire, answer: object, version: int = VERSION) -> list[PartitionProduceResponse]:
    response = wire.decoded(wire.wait(answer), ProduceResponse, version)
    return [each for topic in response.responses for each in topic.partition_responses]


def ask(wire: LongWire, asked: ProduceRequest, version: int = VERSION) -> list[PartitionProduceResponse]:
    return answers(wire, wire.send(asked, version), version)


def values(data: DataBroker, partition: int, topic: str = "t") -> list[bytes | None]:
    log = data.replica_manager.partition(topic, partition).local_log
    found = log.read(0, 1 << 30, isolation=FetchIsolation.LOG_END, min_one_message=True)
    records = [record for stored in iter_batches(content_of(found.records)) for record in stored.records()]
    assert [record.offset for record in records] == list(range(len(records)))
    return [record.value for record in records]


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
def test_records_that_take_long_are_validated_in_a_thread(
    data: DataBroker, wire: LongWire, threads: HeldThreads, codec: int
) -> None:
    answer = wire.send(request((0, heavy(codec=codec))), VERSION)
    assert isinstance(answer, Pending)
    assert len(threads.work) == 1
    assert values_count(data, 0) == 0
    threads.finish()
    (answered,) = answers(wire, answer)
    assert (answered.error_code, answered.base_offset) == (0, 0)
    assert values(data, 0) == [b"v" * TURN_PLAIN_BYTES, b"v"]


def values_count(data: DataBroker, partition: int) -> int:
    return data.replica_manager.partition("t", partition).local_log.log_end_offset


def test_others_append_while_a_long_request_is_validated(
    data: DataBroker, wire: LongWire, threads: HeldThreads
) -> None:
    answer = wire.send(request((0, heavy())), VERSION)
    other = LongWire(data)
    (first,) = ask(other, request((0, batch(b"a", b"b", b"c"))))
    assert first.base_offset == 0
    threads.finish()
    (answered,) = answers(wire, answer)
    assert answered.base_offset == 3
    assert values(data, 0) == [b"a", b"b", b"c", b"v" * TURN_PLAIN_BYTES, b"v"]


def test_the_limits_of_a_turn_hold_for_others_meanwhile(data: DataBroker, wire: LongWire, threads: HeldThreads) -> None:
    """A second long batch goes to a thread, too."""
    first = wire.send(request((1, heavy(b"first"))), VERSION)
    assert TURN.in_turn
    second = LongWire(data).send(request((2, heavy(b"second"))), VERSION)
    assert len(threads.work) == 2
    threads.finish_all()
    assert [answer.error_code for answer in (*answers(wire, first), *answers(wire, second))] == [0, 0]


def test_two_long_requests_at_once_are_both_appended(data: DataBroker, wire: LongWire, threads: HeldThreads) -> None:
    other = LongWire(data)
    first, second = wire.send(request((0, heavy(b"a"))), VERSION), other.send(request((0, heavy(b"b"))), VERSION)
    threads.finish()
    found = {answers(wire, first)[0].base_offset, answers(other, second)[0].base_offset}
    assert found == {0, 2}
    assert set(values(data, 0)) == {b"a" * TURN_PLAIN_BYTES, b"a", b"b" * TURN_PLAIN_BYTES, b"b"}


def test_a_producers_next_batch_follows_and_a_repeated_one_is_a_duplicate(data: DataBroker) -> None:
    def numbered(sequence: int) -> bytearray:
        options = BatchOptions(compression=GZIP, producer_id=9, producer_epoch=0, base_sequence=sequence)
        return batch(b"v" * TURN_PLAIN_BYTES, b"v", options=options)

    one, other = LongWire(data), LongWire(data)
    sent = [one.send(request((0, numbered(0))), VERSION), other.send(request((0, numbered(0))), VERSION)]
    assert [answers(one, answer)[0].base_offset for answer in sent] == [0, 0]
    assert ask(other, request((0, numbered(2))))[0].base_offset == 2
    assert values_count(data, 0) == 4


def test_a_topic_deleted_meanwhile_is_an_error(data: DataBroker, wire: LongWire, threads: HeldThreads) -> None:
    answer = wire.send(request((0, heavy())), VERSION)
    data.topics.changes.delete("t")
    threads.finish_all()
    assert answers(wire, answer)[0].error_code == UnknownTopicOrPartitionError.code


def test_an_error_found_in_a_thread_is_reported(data: DataBroker, wire: LongWire) -> None:
    bad = heavy()
    bad[60] += 1  # a record more than there are
    bad[26] += 1
    set_crc(bad, 0, len(bad))
    assert ask(wire, request((0, bad)))[0].error_code == InvalidRecordError.code
    assert values_count(data, 0) == 0


def test_a_defect_in_a_thread_is_an_error_of_its_partition(
    data: DataBroker, wire: LongWire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tidelog.broker.replica.partition.Partition.validation", lambda *_: fail)
    answered = ask(wire, request((0, batch(b"a")), (1, heavy()), (2, batch(b"b"))))
    assert [each.error_code for each in answered] == [0, UnknownServerError.code, 0]
    assert "ZeroDivisionError" in caplog.text


def test_partitions_of_the_same_request_as_a_long_one_are_appended_once(data: DataBroker, wire: LongWire) -> None:
    answered = ask(wire, request((0, batch(b"a")), (1, heavy()), (2, batch(b"b")), (3, heavy(codec=ZSTD))))
    assert [(each.index, each.error_code, each.base_offset) for each in answered] == [(n, 0, 0) for n in range(4)]
    assert values(data, 0) == [b"a"]
    assert values(data, 2) == [b"b"]
    assert values(data, 1) == values(data, 3) == [b"v" * TURN_PLAIN_BYTES, b"v"]


@pytest.mark.parametrize("small", [True, False])
def test_without_acks_nothing_is_answered(data: DataBroker, wire: LongWire, small: bool) -> None:
    records = batch(b"a") if small else heavy()
    answer = wire.send(request((0, records), acks=0), VERSION)
    if isinstance(answer, Pending):
        assert wire.wait(answer) == b""
    else:
        assert answer is None
    assert values_count(data, 0) == len([b"a"] if small else [b"v", b"v"])
    refused = wire.send(request((99, heavy()), (0, heavy()), acks=0), VERSION)
    assert wire.wait(refused) is None


def test_of_two_batches_for_one_partition_the_last_counts(data: DataBroker, wire: LongWire) -> None:
    answered = ask(wire, request((0, batch(b"a")), (1, batch(b"b")), (0, batch(b"c"))))
    assert [(each.index, each.error_code) for each in answered] == [(0, 0), (1, 0)]
    assert (values(data, 0), values(data, 1)) == ([b"c"], [b"b"])
    twice = request((2, batch(b"d")))
    twice.topic_data += request((2, batch(b"e")), (3, batch(b"f"))).topic_data
    assert [(each.index, each.error_code) for each in ask(wire, twice)] == [(2, 0), (3, 0)]
    assert (values(data, 2), values(data, 3)) == ([b"e"], [b"f"])


@pytest.mark.parametrize("version", [7, 9, VERSION])
@pytest.mark.parametrize("count", [TURN_PARTITIONS + 1, 2 * ONE_TURN_ELEMENTS])
def test_many_partitions_are_appended_in_steps(
    data: DataBroker, wire: LongWire, monkeypatch: pytest.MonkeyPatch, count: int, version: int
) -> None:
    monkeypatch.setattr(steps, "SLICE_MS", 0.0)
    asked = request(*((index % 10, batch(b"%d" % index)) for index in range(count)))
    asked.topic_data += request(*((index, batch(b"x")) for index in range(TURN_PARTITIONS)), topic="none").topic_data
    answered = ask(wire, asked, version)
    assert wire.turns > TURN_PARTITIONS
    unknown = UnknownTopicOrPartitionError.code
    assert [each.error_code for each in answered] == [0] * 8 + [unknown] * (2 + TURN_PARTITIONS)
    assert sum(len(values(data, index)) for index in range(8)) == 8


@pytest.mark.parametrize("acks", [-1, 0])
def test_a_request_of_few_partitions_goes_on_in_a_later_turn_if_they_take_long(
    data: DataBroker, wire: LongWire, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    """The limits of a turn hold for each batch: 64 old sets of 16 KB took 300 ms in one turn."""
    for module in (produce, long_produce):
        monkeypatch.setattr(module, "append", slowed(data, steps.SLICE_MS / 2.5, module.append))
    answer = wire.send(request(*((index, batch(b"%d" % index)) for index in range(8)), acks=acks), VERSION)
    assert isinstance(answer, Pending)
    assert sum(values_count(data, index) for index in range(8)) == 6  # a slice, and the first slice of the steps
    if acks:
        assert [(each.index, each.error_code, each.base_offset) for each in answers(wire, answer)] == [
            (index, 0, 0) for index in range(8)
        ]
    else:
        assert wire.wait(answer) == b""
    assert [values(data, index) for index in range(8)] == [[b"%d" % index] for index in range(8)]


def slowed(data: DataBroker, ms: float, append: Callable[..., T]) -> Callable[..., T]:
    def append_slowly(*arguments: Any) -> T:
        data.loop.time.advance(ms)
        return append(*arguments)

    return append_slowly


def test_the_bytes_that_one_request_decompresses_are_limited(data: DataBroker, wire: LongWire) -> None:
    size = 15 << 20
    fit = MAX_PLAIN_BYTES // size
    answered = ask(wire, request(*((index, heavy(codec=ZSTD, size=size)) for index in range(fit + 2))))
    assert [each.error_code for each in answered] == [0] * fit + [MessageTooLargeError.code] * 2


def test_a_request_whose_connection_goes_away_appends_no_more(
    data: DataBroker, wire: LongWire, threads: HeldThreads
) -> None:
    answer = wire.send(request((0, batch(b"a")), (1, heavy())), VERSION)
    assert isinstance(answer, Pending)
    answer.abandon()
    threads.finish()
    while data.loop.soon:
        data.loop.run_soon()
    assert (values_count(data, 0), values_count(data, 1)) == (1, 0)


def test_repeated_requests_with_long_records_are_the_same(data: DataBroker, wire: LongWire) -> None:
    for number in range(8):
        records = batch(b"a", b"b") if number % 3 else heavy()
        assert ask(wire, request((0, records)))[0].base_offset == 2 * number
    assert values_count(data, 0) == 16


def test_a_wrapper_of_the_oldest_format_is_validated_until_no_way_was_faster(
    data: DataBroker, wire: LongWire, threads: HeldThreads
) -> None:
    data.topics.changes.create(NewTopic("old", 1, configs={"message.format.version": "0.9.0"}))
    threads.finish_all()
    wrapper = build_message_set([Record(n, -1, b"k", b"v" * 100) for n in range(1000)], MessageSetOptions(0, GZIP))
    other = LongWire(data)
    for rounds, expected in ((2, (0, 2)), (99, (RequestTimedOutError.code, -1))):
        answer = wire.send(request((0, wrapper), topic="old"), 1)
        for _ in range(rounds):
            threads.finish()
            ask(other, request((0, batch(b"x")), topic="old"))
            data.loop.run_soon()
            data.loop.run_soon()
        threads.finish()
        (answered,) = answers(wire, answer, 1)
        assert (answered.error_code, answered.base_offset) == expected


def test_records_that_are_validated_again_count_once(
    data: DataBroker, wire: LongWire, threads: HeldThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others append meanwhile: good records got MESSAGE_TOO_LARGE."""
    defaults: dict[str, Any] = WorkBudget.__init__.__kwdefaults__  # type: ignore[assignment]
    monkeypatch.setitem(defaults, "rebuilt_records", 2500)
    monkeypatch.setitem(defaults, "plain_bytes", 400_000)
    data.topics.changes.create(NewTopic("old", 3, configs={"message.format.version": "0.9.0"}))
    threads.finish_all()
    wrapper = build_message_set([Record(n, -1, b"k", b"v" * 100) for n in range(1000)], MessageSetOptions(0, GZIP))
    other = LongWire(data)
    answer = wire.send(request((0, wrapper), (1, wrapper), (2, wrapper), topic="old"), 1)
    for partition in (0, 1):
        for _ in range(3):
            threads.finish()
            ask(other, request((partition, batch(b"x")), topic="old"))
            data.loop.run_soon()
            data.loop.run_soon()
        threads.finish()
        data.loop.run_soon()
    threads.finish_all()
    # The request may rebuild two and a half of these sets.
    assert [each.error_code for each in answers(wire, answer, 1)] == [0, 0, MessageTooLargeError.code]
