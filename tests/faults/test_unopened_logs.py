"""The first request to a partition after a start: threads open logs, the loop does not; the answers are those of open
logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.watched_loop import WatchedLoop
from tests.unit.broker.data_broker import DataBroker, batch
from tests.unit.broker.handlers.test_data_path import Wire
from tidelog.log import manager
from tidelog.log.recovery.loader import load_log
from tidelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.schema.fields import Message

PARTITIONS = 3
ALL = range(PARTITIONS)


def produce(asked: range) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=memoryview(batch(b"new"))) for index in asked]
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)])


def fetch(asked: range) -> FetchRequest:
    partitions = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000) for index in asked]
    topics = [FetchTopic(topic="t", partitions=partitions)]
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=9000, session_epoch=-1, topics=topics)


def list_offsets(asked: range) -> ListOffsetsRequest:
    partitions = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in asked]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=partitions)])


def end_offsets(asked: range) -> OffsetForLeaderEpochRequest:
    partitions = [OffsetForLeaderPartition(partition=index, leader_epoch=0) for index in asked]
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic="t", partitions=partitions)])


def delete_records(asked: range) -> DeleteRecordsRequest:
    partitions = [DeleteRecordsPartition(partition_index=index, offset=1) for index in asked]
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=partitions)], timeout_ms=1000)


def describe_producers(asked: range) -> DescribeProducersRequest:
    return DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=list(asked))])


REQUESTS: list[tuple[Callable[[range], Message], type[Message], int]] = [
    (produce, ProduceResponse, 7),
    (fetch, FetchResponse, 11),
    (list_offsets, ListOffsetsResponse, 5),
    (end_offsets, OffsetForLeaderEpochResponse, 3),
    (delete_records, DeleteRecordsResponse, 1),
    (describe_producers, DescribeProducersResponse, 0),
]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataBroker]:
    """A broker after a clean stop, in which no log is open yet."""
    before = DataBroker(tmp_path)
    before.topics.create_topic("t", PARTITIONS)
    for partition in ALL:
        before.append("t", b"one", b"two", partition=partition)
    before.close()
    data = DataBroker(tmp_path)
    watched = WatchedLoop(data.loop)
    load = load_log

    def load_in_worker(*arguments: Any) -> Any:
        assert watched.is_in_worker, "a log is opened on the loop"
        return load(*arguments)

    monkeypatch.setattr(manager, "load_log", load_in_worker)
    yield data
    data.close()


def ask(data: DataBroker, request: Message, response: type[Message], version: int) -> list[Any]:
    """Each partition's part of the answer; none has an error."""
    decoded: Any = Wire(data).ask_patiently(request, response, version)
    topics = getattr(decoded, "topics", None) or decoded.responses
    parts = [part for topic in topics for part in getattr(topic, "partitions", None) or topic.partition_responses]
    assert all(part.error_code == 0 for part in parts), parts
    return parts


@pytest.mark.parametrize("asked", [range(1), ALL], ids=["one partition", "some partitions"])
@pytest.mark.parametrize(("build", "response", "version"), REQUESTS, ids=[row[0].__name__ for row in REQUESTS])
def test_threads_open_what_requests_name(
    data: DataBroker, build: Callable[[range], Message], response: type[Message], version: int, asked: range
) -> None:
    assert len(ask(data, build(asked), response, version)) == len(asked)
    assert all(data.replica_manager.partition("t", index).log_metrics() is not None for index in asked)


def test_records_are_appended_after_those_that_were_there(data: DataBroker) -> None:
    assert [part.base_offset for part in ask(data, produce(ALL), ProduceResponse, 7)] == [2] * PARTITIONS
    assert [part.offset for part in ask(data, list_offsets(ALL), ListOffsetsResponse, 5)] == [3] * PARTITIONS
