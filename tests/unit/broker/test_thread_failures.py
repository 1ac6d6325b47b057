"""A failure in any work of a thread: the request that waits for it is answered. Each piece of work of each request
fails once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker, batch
from tests.unit.broker.requests.test_dispatch import LongWire
from tidelog.broker.requests.route import Pending
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tidelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest
from tidelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.record.compression import CompressionType
from tidelog.protocol.record.record_batch import BatchOptions
from tidelog.protocol.schema.fields import Message

MAX_TURNS = 5000
NOT_STARTED = RuntimeError("can't start new thread")
ERRORS = [
    MemoryError(),
    OSError(5, "Input/output error"),
    RuntimeError("a mistake of ours"),
    RecursionError(),
    KafkaStorageError(),
    NOT_STARTED,
]


@cache
def long_batch() -> bytes:
    """Build records that a thread validates, and converts for a client of an old version."""
    values = (b"%0100d" % number for number in range(12_000))
    return bytes(batch(*values, options=BatchOptions(compression=CompressionType.GZIP)))


class FailingThreads:
    """A broker's threads, one piece of whose work fails: the one of this number from ``arm`` on."""

    def __init__(self, data: DataBroker) -> None:
        self._run = data.loop.run_in_executor
        self._left = -1
        self._error: Exception | None = None
        data.loop.run_in_executor = self._failing  # type: ignore[method-assign]

    def arm(self, number: int, error: Exception) -> None:
        self._left, self._error = number, error

    @property
    def has_failed(self) -> bool:
        return self._left < 0

    def _failing(self, executor: object, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        self._left -= 1
        if self._left == -1 and self._error is NOT_STARTED:
            raise NOT_STARTED
        return self._run(executor, self._fail if self._left == -1 else work, *arguments)

    def _fail(self, *_: Any) -> None:
        assert self._error is not None
        raise self._error


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    yield data
    data.loop.advance(10_000)
    data.close()


def create(data: DataBroker, name: str) -> Message:
    return CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=2, replication_factor=1)])


def auto_create(data: DataBroker, name: str) -> Message:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)


def delete(data: DataBroker, name: str) -> Message:
    create_topic(data, name, 2)
    return DeleteTopicsRequest(topic_names=[name])


def widen(data: DataBroker, name: str) -> Message:
    create_topic(data, name, 2)
    return CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=4, assignments=None)])


def configure(data: DataBroker, name: str) -> Message:
    create_topic(data, name, 1)
    configs = [AlterableConfig(name="retention.ms", config_operation=0, value="1000")]
    resource = AlterConfigsResource(resource_type=2, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource])


def produce(data: DataBroker, name: str, **configs: str) -> Message:
    create_topic(data, name, 1, configs=configs)
    part = PartitionProduceData(index=0, records=memoryview(bytearray(long_batch())))
    return ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=name, partition_data=[part, part])]
    )


def produce_durably(data: DataBroker, name: str) -> Message:
    return produce(data, name, **{"flush.messages": "1"})


def fetch(data: DataBroker, name: str) -> Message:
    create_topic(data, name, 1)
    data.replica_manager.partition(name, 0).append_records(memoryview(bytearray(long_batch())))
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=name, partitions=[part])])


def delete_records(data: DataBroker, name: str) -> Message:
    create_topic(data, name, 1)
    data.append(name, b"one", b"two")
    parts = [DeleteRecordsPartition(partition_index=0, offset=1)]
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=parts)], timeout_ms=1000)


def describe_log_dirs(data: DataBroker, name: str) -> Message:
    return DescribeLogDirsRequest(topics=None)


VERSIONS: dict[object, int] = {fetch: 2, produce: 9, produce_durably: 9, delete: 5}


@pytest.mark.parametrize(
    "error", ERRORS, ids=lambda error: "not started" if error is NOT_STARTED else type(error).__name__
)
@pytest.mark.parametrize(
    "request_of",
    [create, auto_create, delete, widen, configure, produce, produce_durably, fetch, delete_records, describe_log_dirs],
    ids=lambda request_of: str(request_of.__name__),
)
def test_a_request_is_answered_whatever_a_thread_raises(
    data: DataBroker, request_of: Callable[[DataBroker, str], Message], error: Exception
) -> None:
    threads, wire = FailingThreads(data), LongWire(data)
    for number in itertools.count():
        request = request_of(data, f"t{number}")
        threads.arm(number, error)
        answer = wire.send(request, VERSIONS.get(request_of, request.VERSIONS.highest))
        answers: list[object] = []
        if isinstance(answer, Pending):
            answer.on_answer(answers.append)
        for _ in range(MAX_TURNS):
            if answers or not isinstance(answer, Pending):
                break
            data.loop.run_soon()
        assert answers or not isinstance(answer, Pending), f"no answer after its piece of work {number} failed"
        if not threads.has_failed:
            break
    assert number, "this request has a thread do something"
