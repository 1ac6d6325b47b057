from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker, batch
from tests.unit.broker.handlers.test_data_path import Wire
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.laboratory.faults import Fault, Faults, LaboratoryDispatcher, topics_of
from tidelog.broker.requests.route import Pending
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import NotEnoughReplicasError, NotLeaderOrFollowerError
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

PRODUCE_VERSION = 9


class LaboratoryWire(Wire):
    """A client on a connection of a laboratory."""

    def __init__(self, data: DataBroker) -> None:
        super().__init__(data)
        self.faults = Faults()
        self.dispatcher = LaboratoryDispatcher(data.broker, self.faults)

    def produce(self, topic: str = "t") -> object:
        """Produce one record. Returns the dispatcher's answer."""
        data = [PartitionProduceData(index=0, records=memoryview(batch(b"value")))]
        request = ProduceRequest(
            acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
        )
        return self.send(request, PRODUCE_VERSION)

    def error_of(self, answer: object) -> int:
        response = self.decoded(answer, ProduceResponse, PRODUCE_VERSION)
        return response.responses[0].partition_responses[0].error_code

    def log_end(self, topic: str = "t") -> int:
        return self.data.replica_manager.partition(topic, 0).local_log.log_end_offset

    def settle(self, answer: object) -> list[object]:
        """Collect what a pending answer becomes within some turns of the loop; None for a connection that closes."""
        assert isinstance(answer, Pending)
        sent: list[object] = []
        answer.on_answer(sent.append)
        for _ in range(5):
            self.data.loop.run_soon()
        return sent


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[LaboratoryWire]:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 1)
    create_topic(data, "u", 1)
    yield LaboratoryWire(data)
    data.close()


def test_an_error_is_the_answer_and_nothing_is_handled(wire: LaboratoryWire) -> None:
    number = wire.faults.add(Fault(api_key=ApiKey.PRODUCE, error=NotEnoughReplicasError, times=2))
    codes = [wire.error_of(wire.produce()) for _ in range(3)]
    assert codes == [NotEnoughReplicasError.code] * 2 + [0]
    assert wire.log_end() == 1
    assert wire.faults.count_met(number) == 2
    assert wire.faults.requests[ApiKey.PRODUCE] == 3


def test_a_fault_leaves_the_first_requests_alone(wire: LaboratoryWire) -> None:
    wire.faults.add(Fault(api_key=ApiKey.PRODUCE, error=NotEnoughReplicasError, after=2))
    assert [wire.error_of(wire.produce()) for _ in range(4)] == [0, 0, NotEnoughReplicasError.code, 0]


def test_a_fault_of_a_topic_leaves_others_alone(wire: LaboratoryWire) -> None:
    wire.faults.add(Fault(api_key=ApiKey.PRODUCE, error=NotEnoughReplicasError, topic="u"))
    assert [wire.error_of(wire.produce(topic)) for topic in ("t", "u", "u")] == [0, NotEnoughReplicasError.code, 0]


def test_a_fault_of_an_api_leaves_others_alone(wire: LaboratoryWire) -> None:
    wire.faults.add(Fault(api_key=ApiKey.FETCH, error=NotLeaderOrFollowerError))
    assert wire.error_of(wire.produce()) == 0


def test_a_dropped_request_is_not_handled(wire: LaboratoryWire) -> None:
    wire.faults.add(Fault(api_key=ApiKey.PRODUCE, drops=True))
    with pytest.raises(CloseConnectionError):
        wire.produce()
    assert wire.log_end() == 0


def test_a_request_is_handled_and_its_answer_lost(wire: LaboratoryWire) -> None:
    wire.faults.add(Fault(api_key=ApiKey.PRODUCE, drops=True, is_handled=True))
    with pytest.raises(CloseConnectionError):
        wire.produce()
    assert wire.log_end() == 1


def test_a_fetch_whose_answer_is_lost_gives_its_file_back(wire: LaboratoryWire) -> None:
    wire.produce()
    wire.faults.add(Fault(api_key=ApiKey.FETCH, drops=True, is_handled=True))
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])])
    with pytest.raises(CloseConnectionError):
        wire.send(request, 11)
    response = wire.ask(request, FetchResponse, 11)
    assert response.responses[0].partitions[0].error_code == 0


def test_a_delayed_request_is_handled_by_the_clock(wire: LaboratoryWire) -> None:
    wire.faults.add(Fault(api_key=ApiKey.PRODUCE, delay_ms=5_000))
    answer = wire.produce()
    assert wire.settle(answer) == []
    wire.data.loop.advance(4_990)
    assert (wire.settle(answer), wire.log_end()) == ([], 0)
    wire.data.loop.advance(20)
    (frame,) = wire.settle(answer)
    assert (wire.error_of(frame), wire.log_end()) == (0, 1)


def test_a_delay_may_end_in_an_error(wire: LaboratoryWire) -> None:
    wire.faults.add(Fault(api_key=ApiKey.PRODUCE, delay_ms=10, error=NotEnoughReplicasError))
    answer = wire.produce()
    wire.data.loop.advance(20)
    (frame,) = wire.settle(answer)
    assert (wire.error_of(frame), wire.log_end()) == (NotEnoughReplicasError.code, 0)


def test_clearing_lets_delayed_requests_continue(wire: LaboratoryWire) -> None:
    number = wire.faults.add(Fault(api_key=ApiKey.PRODUCE, delay_ms=5_000, times=9))
    answer = wire.produce()
    wire.faults.clear()
    (frame,) = wire.settle(answer)
    assert wire.error_of(frame) == 0
    assert wire.error_of(wire.produce()) == 0
    with pytest.raises(ValueError, match="was cleared"):
        wire.faults.count_met(number)
    wire.data.loop.advance(10_000)


def test_topics_are_known_by_name_and_by_id() -> None:
    by_id = MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"i" * 16), MetadataRequestTopic(name="named")])
    assert topics_of(by_id, {b"i" * 16: "known"}) == {"named", "known"}
    assert topics_of(MetadataRequest(topics=None), {}) == set()
    assert topics_of(HeartbeatRequest(), {}) == set()
