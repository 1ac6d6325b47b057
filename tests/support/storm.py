"""Threads that work on the same few topics at random: clients, readers of the files, and one that tries an adoption.

Worker          creates, deletes, widens, changes, writes and reads topics by requests of an Asker
PipelineReader  reads the topics' files as the pipeline does
Adopter         tries to adopt the directory of the running broker
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from tests.support import raw_client
from tidelog.broker.adoption.plan import AdoptionOptions, make_plan
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import SystemTime
from tidelog.pipeline.decode.decode import Isolation, ReadOptions, read_slice
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.options import SourceOptions, parse_options
from tidelog.pipeline.options.row_filter import RowFilter
from tidelog.pipeline.plan.plan import OffsetRange, plan
from tidelog.pipeline.plan.request import batch_request
from tidelog.protocol.errors import (
    InvalidPartitionsError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages import create_partitions, create_topics, delete_topics, incremental_alter_configs
from tidelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.record_batch import Record, build_batch

TOPICS = [f"t{number}" for number in range(6)]
UNCOMPACTED = TOPICS[:3]
"""Topics that are never compacted, so a reader finds no gap in them."""
ADOPTION_PAUSE_S = 0.05
OLD_MS = 1_600_000_000_000
"""A record timestamp in 2020: with ``retention.ms`` such records are deleted soon."""
CONFIGS = {
    "cleanup.policy": ["delete", "compact", "compact,delete"],
    "retention.ms": ["1", "3600000"],
    "index.keys": ["true", "false"],
    "min.cleanable.dirty.ratio": ["0", "0.5"],
    "flush.messages": ["1", "9223372036854775807"],
    "flush.ms": ["10", "9223372036854775807"],
}
#: Errors that a client may get if another one has just created, deleted or widened its topic.
EXPECTED = {
    0,
    *(
        error.code
        for error in (
            OffsetOutOfRangeError, UnknownTopicOrPartitionError, UnknownTopicIdError, TopicAlreadyExistsError,
            InvalidPartitionsError,
            PolicyViolationError,  # DeleteRecords of a compacted topic
        )
    ),
}  # fmt: skip


def tag_of(topic_id: bytes, partition: int) -> bytes:
    """Return the bytes that each value in a partition begins with: the id of the topic, and the partition."""
    return bytes(topic_id) + b"/%d/" % partition


class Asker:
    """A client with one connection to a broker. Its methods wait for each answer; all raise OSError, EOFError."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self._connection = raw_client.connect(port)
        self._chance = chance

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def act(self) -> tuple[str, int]:
        """Send one request at random; return its name, and the error code of the answer."""
        actions = [self.create, self.delete, self.widen, self.change, self.delete_records, self.look]
        action = self._chance.choice([*actions, *[self.produce] * 12, *[self.fetch] * 4])
        return action.__name__, action()

    def ask(self, request: Any, version: int, response: Any, *, flexible: bool = False) -> Any:
        """Return the answer to a request; ``flexible`` says that its headers have tagged fields."""
        body = request.encode(version)
        self._connection.sendall(raw_client.frame(type(request).API_KEY, version, 1, body, flexible=flexible))
        answer = memoryview(raw_client.receive_frame(self._connection))
        return response.decode(answer[5 if flexible else 4 :], version)

    def _topic(self) -> str:
        return self._chance.choice(TOPICS)

    def _configs(self, topic: str) -> dict[str, str]:
        names = self._chance.sample(sorted(CONFIGS), self._chance.randint(0, 3))
        if topic in UNCOMPACTED:
            names = [name for name in names if name != "cleanup.policy"]
        return {name: self._chance.choice(CONFIGS[name]) for name in names}

    def create(self) -> int:
        """Send CreateTopics."""
        name = self._topic()
        configs = [create_topics.CreatableTopicConfig(name=k, value=v) for k, v in self._configs(name).items()]
        topic = create_topics.CreatableTopic(
            name=name, num_partitions=self._chance.randint(1, 3), replication_factor=1, configs=configs
        )
        request = create_topics.CreateTopicsRequest(topics=[topic])
        return int(self.ask(request, 2, create_topics.CreateTopicsResponse).topics[0].error_code)

    def delete(self) -> int:
        """Send DeleteTopics."""
        request = delete_topics.DeleteTopicsRequest(topic_names=[self._topic()], timeout_ms=10_000)
        return int(self.ask(request, 1, delete_topics.DeleteTopicsResponse).responses[0].error_code)

    def widen(self) -> int:
        """Send CreatePartitions."""
        topic = create_partitions.CreatePartitionsTopic(
            name=self._topic(), count=self._chance.randint(2, 5), assignments=None
        )
        request = create_partitions.CreatePartitionsRequest(topics=[topic], timeout_ms=10_000)
        return int(self.ask(request, 0, create_partitions.CreatePartitionsResponse).results[0].error_code)

    def change(self) -> int:
        """Send IncrementalAlterConfigs."""
        topic = self._topic()
        configs = [
            incremental_alter_configs.AlterableConfig(name=name, config_operation=0, value=value)
            for name, value in self._configs(topic).items()
        ]
        resource = incremental_alter_configs.AlterConfigsResource(resource_type=2, resource_name=topic, configs=configs)
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
        answer = self.ask(request, 0, incremental_alter_configs.IncrementalAlterConfigsResponse)
        return int(answer.responses[0].error_code)

    def produce(self) -> int:
        """Send a Produce of one batch to a topic by its id; each value begins with the id and the partition."""
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=self._topic())], allow_auto_topic_creation=False)
        found = self.ask(asked, 12, MetadataResponse, flexible=True).topics[0]
        if found.error_code:
            return int(found.error_code)
        index = self._chance.randrange(3)
        data = [PartitionProduceData(index=index, records=memoryview(self._batch(tag_of(found.topic_id, index))))]
        topics = [TopicProduceData(topic_id=found.topic_id, partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
        answer = self.ask(request, 13, ProduceResponse, flexible=True)
        return int(answer.responses[0].partition_responses[0].error_code)

    def _batch(self, tag: bytes) -> bytearray:
        timestamp = self._chance.choice([OLD_MS, int(time.time() * 1000)])
        records = [
            Record(number, timestamp, b"%d" % self._chance.randrange(9), tag + bytes(self._chance.randrange(300)))
            for number in range(self._chance.randint(1, 5))
        ]
        return build_batch(records)

    def fetch(self) -> int:
        """Send a Fetch of one partition."""
        offset = self._chance.choice([0, self._chance.randrange(50)])
        partition = FetchPartition(partition=self._chance.randrange(3), fetch_offset=offset, partition_max_bytes=10_000)
        request = FetchRequest(
            max_wait_ms=self._chance.choice([0, 20]), min_bytes=1, max_bytes=100_000, session_epoch=-1,
            isolation_level=self._chance.randrange(2), topics=[FetchTopic(topic=self._topic(), partitions=[partition])],
        )  # fmt: skip
        return int(self.ask(request, 7, FetchResponse).responses[0].partitions[0].error_code)

    def look(self) -> int:
        """Send ListOffsets."""
        timestamp = self._chance.choice([-1, -2, OLD_MS])
        partitions = [ListOffsetsPartition(partition_index=self._chance.randrange(3), timestamp=timestamp)]
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=self._topic(), partitions=partitions)])
        return int(self.ask(request, 2, ListOffsetsResponse).topics[0].partitions[0].error_code)

    def delete_records(self) -> int:
        """Send DeleteRecords up to the high watermark."""
        partitions = [DeleteRecordsPartition(partition_index=self._chance.randrange(3), offset=-1)]
        topics = [DeleteRecordsTopic(name=self._topic(), partitions=partitions)]
        answer = self.ask(DeleteRecordsRequest(topics=topics, timeout_ms=10_000), 1, DeleteRecordsResponse)
        return int(answer.topics[0].partitions[0].error_code)


class Worker(threading.Thread):
    """A client that sends random requests until ``deadline``. ``answers`` counts them by request and error code."""

    def __init__(self, port: int, seed: int, deadline: float) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._chance = random.Random(seed)
        self._deadline = deadline
        self.answers: Counter[tuple[str, int]] = Counter()
        self.failure: Exception | None = None

    def run(self) -> None:
        """Work until the end; an exception is kept for the test."""
        try:
            asker = Asker(self._port, self._chance)
            while time.monotonic() < self._deadline:
                self.answers[asker.act()] += 1
            asker.close()
        except Exception as error:  # noqa: BLE001 - told by the test
            self.failure = error


class PipelineReader(threading.Thread):
    """Reads topics from their files, as the pipeline does, until ``deadline``: right rows, or one PipelineError.

    ``results`` counts the passes by their result: ``read``, ``empty``, or the error's class.
    """

    def __init__(self, directory: str, seed: int, deadline: float) -> None:
        super().__init__(daemon=True)
        self._directory = directory
        self._chance = random.Random(seed)
        self._deadline = deadline
        self.results: Counter[str] = Counter()
        self.errors: set[str] = set()
        self.failure: Exception | None = None

    def run(self) -> None:
        """Read until the end; an exception is kept for the test."""
        try:
            while time.monotonic() < self._deadline:
                self._pass()
        except Exception as error:  # noqa: BLE001 - told by the test
            self.failure = error

    def _pass(self) -> None:
        name = self._chance.choice(TOPICS)
        choice = {"subscribe": name} if self._chance.random() < 0.7 else {"subscribePattern": "t.*"}
        isolation = self._chance.choice(["read_committed", "read_uncommitted"])
        chosen = {"path": self._directory, **choice, "bytesPerTask": "3000", "kafka.isolation.level": isolation}
        try:
            rows = self._read(parse_options(chosen))
        except PipelineError as error:
            self.results[type(error).__name__] += 1
            self.errors.add(str(error))
        else:
            self.results["read" if rows else "empty"] += 1

    def _read(self, options: SourceOptions) -> int:
        request = batch_request(options)
        if self._chance.random() < 0.3:
            request = replace(request, row_filter=RowFilter(key=b"3"))
        ranges = {(each.directory.topic, each.directory.partition): each for each in request.ranges}
        level = Isolation.READ_COMMITTED if options.read_committed else Isolation.READ_UNCOMMITTED
        offsets: dict[tuple[str, int], list[int]] = {topic_partition: [] for topic_partition in ranges}
        for piece in plan(request):
            wanted = ranges[piece.topic, piece.partition]
            tag = tag_of(wanted.directory.topic_id or b"", piece.partition)
            read = ReadOptions(level, fail_on_data_loss=options.fail_on_data_loss, row_filter=request.row_filter)
            for batch in read_slice(piece, Columns(("offset", "key", "value")), options=read):
                found = [column.to_pylist() for column in batch]
                offsets[piece.topic, piece.partition] += found[0]
                assert all(value.startswith(tag) for value in found[2]), f"rows of another topic in {piece}"
        for topic_partition, wanted in ranges.items():
            is_filtered = request.row_filter.key is not None
            self._check_offsets(topic_partition, offsets[topic_partition], wanted, is_filtered=is_filtered)
        return sum(map(len, offsets.values()))

    def _check_offsets(
        self, partition: tuple[str, int], offsets: list[int], wanted: OffsetRange, *, is_filtered: bool
    ) -> None:
        assert offsets == sorted(set(offsets)), f"{partition}: offsets twice, or not in order: {offsets}"
        assert all(wanted.start <= offset < wanted.end for offset in offsets), f"{partition}: {offsets} beyond {wanted}"
        if not is_filtered and partition[0] in UNCOMPACTED:
            first = offsets[0] if offsets else wanted.end  # older records may have been deleted
            assert offsets == list(range(first, wanted.end)), f"{partition}: {offsets} of {wanted}"


class Adopter(threading.Thread):
    """Plans an adoption of the running broker's directory again and again, until ``deadline``.

    ``problems`` counts the reasons for which it was refused, one text per plan.
    """

    def __init__(self, directory: str, target: str, deadline: float) -> None:
        super().__init__(daemon=True)
        self._options = AdoptionOptions((directory,), target, topic_configs={})
        self._deadline = deadline
        self.problems: Counter[str] = Counter()
        self.failure: Exception | None = None

    def run(self) -> None:
        """Try until the end; an exception is kept for the test."""
        try:
            while time.monotonic() < self._deadline:
                plan = make_plan(OsFileSystem(), SystemTime(), self._options)
                self.problems["; ".join(plan.problems)] += 1
                plan.close()
                time.sleep(ADOPTION_PAUSE_S)
        except Exception as error:  # noqa: BLE001 - told by the test
            self.failure = error
