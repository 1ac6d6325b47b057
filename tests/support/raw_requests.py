"""Functions that send one request each, on a bare socket and a connection of its own, and read the response."""

from __future__ import annotations

import struct

from tests.support import raw_client
from tidelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import Record, build_batch

TOPIC_RESOURCE = 2
NOW_MS = 1_700_000_000_000
EARLIEST, LATEST = -2, -1


def ask(port: int, api_key: int, version: int, body: bytes) -> memoryview:
    """Send a request; return the response's body. Raises EOFError if the broker closes the connection."""
    with raw_client.connect(port) as connection:
        connection.sendall(raw_client.frame(api_key, version, 1, body))
        return memoryview(raw_client.receive_frame(connection))[4:]


def create(port: int, topic: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic by CreateTopics v0; ``configs`` have underscores for dots in their names."""
    body = struct.pack(">ih", 1, len(topic)) + topic.encode() + struct.pack(">ihi", partitions, 1, 0)
    body += struct.pack(">i", len(configs))
    for name, value in configs.items():
        for text in (name.replace("_", "."), value):
            body += struct.pack(">h", len(text)) + text.encode()
    answer = ask(port, 19, 0, body + struct.pack(">i", 10_000))
    assert bytes(answer[-2:]) == b"\0\0", bytes(answer)


def produce(port: int, topic: str, partition: int = 0, value: bytes = b"value", timestamp: int = NOW_MS) -> int:
    """Produce one record with acks=all; return the error code."""
    return produce_batch(port, topic, build_batch([Record(0, timestamp, b"k", value)]), partition)


def produce_batch(port: int, topic: str, batch: bytes | bytearray, partition: int = 0) -> int:
    """Produce one batch with acks=all; return the error code."""
    data = [PartitionProduceData(index=partition, records=memoryview(batch))]
    request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=data)])
    answer = ProduceResponse.decode(ask(port, 0, 7, request.encode(7)), 7)
    return answer.responses[0].partition_responses[0].error_code


def offset(port: int, topic: str, timestamp: int) -> int:
    """Return partition 0's offset for a timestamp by ListOffsets."""
    partitions = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=partitions)])
    return ListOffsetsResponse.decode(ask(port, 2, 2, request.encode(2)), 2).topics[0].partitions[0].offset


def delete_records(port: int, topic: str, before: int) -> int:
    """Delete records; return the new low watermark of partition 0."""
    code, low_watermark = try_delete_records(port, topic, before)
    assert code == 0, code
    return low_watermark


def try_delete_records(port: int, topic: str, before: int) -> tuple[int, int]:
    """Delete records; return error code and new low watermark of partition 0."""
    partitions = [DeleteRecordsPartition(partition_index=0, offset=before)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=partitions)], timeout_ms=5000)
    answer = DeleteRecordsResponse.decode(ask(port, 21, 1, request.encode(1)), 1).topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


def fetch_error(port: int, topic: str, fetch_offset: int) -> int:
    """Fetch from partition 0; return the error code."""
    partition = FetchPartition(partition=0, fetch_offset=fetch_offset, partition_max_bytes=1000)
    topics = [FetchTopic(topic=topic, partitions=[partition])]
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, session_epoch=-1, topics=topics)
    answer = FetchResponse.decode(ask(port, 1, 7, request.encode(7)), 7)
    return answer.responses[0].partitions[0].error_code


def produced(port: int, topic: str, value: bytes, *, partition: int = 0) -> tuple[int, int]:
    """Produce one record with acks=all; return error code and base offset."""
    batch = build_batch([Record(0, NOW_MS, b"k", value)])
    data = [PartitionProduceData(index=partition, records=memoryview(batch))]
    request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=data)])
    answer = ProduceResponse.decode(ask(port, 0, 7, request.encode(7)), 7).responses[0].partition_responses[0]
    return answer.error_code, answer.base_offset


def fetch_values(port: int, topic: str, first: int = 0) -> dict[int, bytes | None]:
    """Fetch every record of partition 0 from offset ``first`` on. An error fails the test."""
    values: dict[int, bytes | None] = {}
    with raw_client.connect(port) as connection:
        while True:
            partition = FetchPartition(partition=0, fetch_offset=first, partition_max_bytes=1 << 20)
            topics = [FetchTopic(topic=topic, partitions=[partition])]
            request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_epoch=-1, topics=topics)
            connection.sendall(raw_client.frame(1, 7, 1, request.encode(7)))
            answer = FetchResponse.decode(memoryview(raw_client.receive_frame(connection))[4:], 7)
            found = answer.responses[0].partitions[0]
            assert found.error_code == 0, (topic, first, found.error_code)
            assert isinstance(found.records, memoryview | bytes | None)
            batches = list(iter_batches(found.records or b""))
            if not batches:
                return values
            values |= {record.offset: record.value for entry in batches for record in entry.records()}
            first = batches[-1].last_offset + 1


def delete_topic(port: int, topic: str) -> int:
    """Delete a topic by DeleteTopics v1; return the error code."""
    name = topic.encode()
    answer = ask(port, 20, 1, struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", 10_000))
    return int(struct.unpack(">h", answer[-2:])[0])


def commit_offset(port: int, group: str, topic: str, committed: int) -> int:
    """Commit an offset for partition 0 by OffsetCommit v2, without a member; return the error code."""
    text = struct.pack(">h", len(group)) + group.encode() + struct.pack(">ihq", -1, 0, -1)
    text += struct.pack(">ih", 1, len(topic)) + topic.encode() + struct.pack(">iiqh", 1, 0, committed, 0)
    return int(struct.unpack(">h", ask(port, 8, 2, text)[-2:])[0])


def committed_offset(port: int, group: str, topic: str) -> tuple[int, int]:
    """Send OffsetFetch v2 for partition 0; return error code and offset."""
    text = struct.pack(">h", len(group)) + group.encode() + struct.pack(">ih", 1, len(topic)) + topic.encode()
    answer = ask(port, 9, 2, text + struct.pack(">ii", 1, 0))
    position = 4 + 2 + len(topic) + 4 + 4
    offset_there, metadata = struct.unpack_from(">qh", answer, position)
    (code,) = struct.unpack_from(">h", answer, position + 10 + max(metadata, 0))
    return int(code) or int(struct.unpack(">h", answer[-2:])[0]), int(offset_there)


def alter_config(port: int, topic: str, name: str, value: str) -> int:
    """Set one config of a topic by IncrementalAlterConfigs v0; return the error code."""
    configs = [AlterableConfig(name=name, config_operation=0, value=value)]
    resource = AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    return IncrementalAlterConfigsResponse.decode(ask(port, 44, 0, request.encode(0)), 0).responses[0].error_code


def config_of(port: int, topic: str, name: str) -> str | None:
    """Read one config of a topic, by DescribeConfigs v1."""
    resource = DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=[name])
    request = DescribeConfigsRequest(resources=[resource])
    answer = DescribeConfigsResponse.decode(ask(port, 32, 1, request.encode(1)), 1).results[0]
    assert answer.error_code == 0
    return answer.configs[0].value
