"""Topics made, deleted, widened and changed in random order on a real broker, beside producers, readers and every job.

Retention every 20 ms, cleaner and indexer busy, segments of some kilobytes, files that go at once. Nothing goes
offline, no client is told KAFKA_STORAGE_ERROR, and at the end nothing is left on the disk. ``TIDELOG_STORM_SECONDS``
lengthens it (``make deletions``), ``TIDELOG_STORM_SEED`` chooses others.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import raw_client
from tests.support.broker import TidelogProcess
from tidelog.protocol.errors import (
    InvalidPartitionsError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages import create_partitions, create_topics, delete_topics, incremental_alter_configs
from tidelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.record_batch import Record, build_batch

SECONDS = float(os.environ.get("TIDELOG_STORM_SECONDS", "6"))
SEED = int(os.environ.get("TIDELOG_STORM_SEED", "1"))
WORKERS = 4
TOPICS = [f"t{number}" for number in range(6)]
OLD_MS = 1_600_000_000_000
PATIENCE_S = 60.0
OVERRIDES = {
    "log.retention.check.interval.ms": "20",
    "log.flush.scheduler.interval.ms": "20",
    "log.flush.offset.checkpoint.interval.ms": "20",
    "log.flush.start.offset.checkpoint.interval.ms": "20",
    "replica.high.watermark.checkpoint.interval.ms": "20",
    "log.cleaner.backoff.ms": "10",
    "log.cleaner.threads": "2",
    "log.segment.delete.delay.ms": "0",
    "log.segment.bytes": "3000",
    "log.index.interval.bytes": "200",
}
CONFIGS = {
    "cleanup.policy": ["delete", "compact", "compact,delete"],
    "retention.ms": ["1", "3600000"],
    "index.keys": ["true", "false"],
    "min.cleanable.dirty.ratio": ["0", "0.5"],
    "flush.messages": ["1", "9223372036854775807"],
    "flush.ms": ["10", "9223372036854775807"],
}
#: What a client may be told whose topic another one has just made, deleted or widened.
EXPECTED = {
    0,
    *(
        error.code
        for error in (
            OffsetOutOfRangeError, UnknownTopicOrPartitionError, TopicAlreadyExistsError, InvalidPartitionsError,
            PolicyViolationError,  # DeleteRecords of a compacted topic
        )
    ),
}  # fmt: skip


class Worker(threading.Thread):
    """One client that does things at random and counts the answers by what was asked."""

    def __init__(self, port: int, seed: int, deadline: float) -> None:
        super().__init__()
        self._port = port
        self._chance = random.Random(seed)
        self._deadline = deadline
        self.answers: Counter[tuple[str, int]] = Counter()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            with raw_client.connect(self._port) as self._connection:
                while time.monotonic() < self._deadline:
                    actions = [self.create, self.delete, self.widen, self.change, self.delete_records, self.look]
                    action = self._chance.choice([*actions, *[self.produce] * 12, *[self.fetch] * 4])
                    self.answers[action.__name__, action()] += 1
        except Exception as error:  # noqa: BLE001 - told by the test
            self.failure = error

    def _ask(self, request: Any, version: int, response: Any) -> Any:
        body = request.encode(version)
        self._connection.sendall(raw_client.frame(type(request).API_KEY, version, 1, body))
        return response.decode(memoryview(raw_client.receive_frame(self._connection))[4:], version)

    def _topic(self) -> str:
        return self._chance.choice(TOPICS)

    def _configs(self) -> dict[str, str]:
        names = self._chance.sample(sorted(CONFIGS), self._chance.randint(0, 3))
        return {name: self._chance.choice(CONFIGS[name]) for name in names}

    def create(self) -> int:
        configs = [create_topics.CreatableTopicConfig(name=k, value=v) for k, v in self._configs().items()]
        topic = create_topics.CreatableTopic(
            name=self._topic(), num_partitions=self._chance.randint(1, 3), replication_factor=1, configs=configs
        )
        request = create_topics.CreateTopicsRequest(topics=[topic])
        return int(self._ask(request, 2, create_topics.CreateTopicsResponse).topics[0].error_code)

    def delete(self) -> int:
        request = delete_topics.DeleteTopicsRequest(topic_names=[self._topic()], timeout_ms=10_000)
        return int(self._ask(request, 1, delete_topics.DeleteTopicsResponse).responses[0].error_code)

    def widen(self) -> int:
        topic = create_partitions.CreatePartitionsTopic(
            name=self._topic(), count=self._chance.randint(2, 5), assignments=None
        )
        request = create_partitions.CreatePartitionsRequest(topics=[topic], timeout_ms=10_000)
        return int(self._ask(request, 0, create_partitions.CreatePartitionsResponse).results[0].error_code)

    def change(self) -> int:
        configs = [
            incremental_alter_configs.AlterableConfig(name=name, config_operation=0, value=value)
            for name, value in self._configs().items()
        ]
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=2, resource_name=self._topic(), configs=configs
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
        answer = self._ask(request, 0, incremental_alter_configs.IncrementalAlterConfigsResponse)
        return int(answer.responses[0].error_code)

    def produce(self) -> int:
        timestamp = self._chance.choice([OLD_MS, int(time.time() * 1000)])
        records = [
            Record(number, timestamp, b"%d" % self._chance.randrange(9), bytes(self._chance.randrange(300)))
            for number in range(self._chance.randint(1, 5))
        ]
        data = [PartitionProduceData(index=self._chance.randrange(3), records=memoryview(build_batch(records)))]
        topics = [TopicProduceData(name=self._topic(), partition_data=data)]
        answer = self._ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), 7, ProduceResponse)
        return int(answer.responses[0].partition_responses[0].error_code)

    def fetch(self) -> int:
        offset = self._chance.choice([0, self._chance.randrange(50)])
        partition = FetchPartition(partition=self._chance.randrange(3), fetch_offset=offset, partition_max_bytes=10_000)
        request = FetchRequest(
            max_wait_ms=self._chance.choice([0, 20]), min_bytes=1, max_bytes=100_000, session_epoch=-1,
            isolation_level=self._chance.randrange(2), topics=[FetchTopic(topic=self._topic(), partitions=[partition])],
        )  # fmt: skip
        return int(self._ask(request, 7, FetchResponse).responses[0].partitions[0].error_code)

    def look(self) -> int:
        timestamp = self._chance.choice([-1, -2, OLD_MS])
        partitions = [ListOffsetsPartition(partition_index=self._chance.randrange(3), timestamp=timestamp)]
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=self._topic(), partitions=partitions)])
        return int(self._ask(request, 2, ListOffsetsResponse).topics[0].partitions[0].error_code)

    def delete_records(self) -> int:
        partitions = [DeleteRecordsPartition(partition_index=self._chance.randrange(3), offset=-1)]
        topics = [DeleteRecordsTopic(name=self._topic(), partitions=partitions)]
        answer = self._ask(DeleteRecordsRequest(topics=topics, timeout_ms=10_000), 1, DeleteRecordsResponse)
        return int(answer.topics[0].partitions[0].error_code)


def storm(broker: TidelogProcess) -> Counter[tuple[str, int]]:
    """The answers of all workers, by what was asked."""
    deadline = time.monotonic() + SECONDS
    workers = [Worker(broker.port, SEED * 1000 + number, deadline) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    answers: Counter[tuple[str, int]] = Counter()
    for worker in workers:
        worker.join()
        assert worker.failure is None, worker.failure
        answers += worker.answers
    return answers


def offline(port: int) -> list[int]:
    """The error codes of the log directories."""
    with raw_client.connect(port) as connection:
        connection.sendall(raw_client.frame(35, 1, 1, DescribeLogDirsRequest(topics=None).encode(1)))
        answer = DescribeLogDirsResponse.decode(memoryview(raw_client.receive_frame(connection))[4:], 1)
    return [result.error_code for result in answer.results]


def partition_directories(broker: TidelogProcess) -> list[str]:
    return sorted(path.name for path in broker.data_directory.iterdir() if path.is_dir())


def delete_all(broker: TidelogProcess) -> None:
    """Delete what is left, and wait until no directory is."""
    with raw_client.connect(broker.port) as connection:
        request = delete_topics.DeleteTopicsRequest(topic_names=TOPICS, timeout_ms=10_000)
        connection.sendall(raw_client.frame(20, 1, 1, request.encode(1)))
        raw_client.receive_frame(connection)
    deadline = time.monotonic() + PATIENCE_S
    while left := partition_directories(broker):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.timeout(SECONDS + 240)
def test_topics_come_and_go_under_every_job(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path, OVERRIDES) as broker:
        answers = storm(broker)
        told = {code for _, code in answers}
        assert not told & {KafkaStorageError.code, UnknownServerError.code}, answers
        assert told <= EXPECTED, answers
        for action in ("create", "delete", "widen", "change", "produce", "fetch"):
            assert answers[action, 0], f"no {action} went through: {answers}"
        assert offline(broker.port) == [0]
        delete_all(broker)
        output = broker.output()
        print(sorted(answers.items()))
        for word in ("Traceback", "goes offline", "out of service", "is refused", "job", "died", "quarantined"):
            assert word not in output, output[max(0, output.find(word) - 3000) : output.find(word) + 3000]
        broker.kill()
        broker.start()
        assert partition_directories(broker) == []
