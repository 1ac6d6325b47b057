"""Requests with very many elements in one array: handled in one step, each would block the event loop for seconds.

Each is a name, an API version and a message; ``benchmarks.bystander`` sends them to Tidelog and to Apache Kafka, and
``tests/faults/test_long_requests.py`` to a broker process. Most kinds have a count near the largest legal one
(``broker/requests/bounds.py``). Some have a larger one: Tidelog refuses such a request and closes the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from tidelog.protocol.api_keys import ApiKey, request_header_version
from tidelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.protocol.messages.delete_groups import DeleteGroupsRequest
from tidelog.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tidelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tidelog.protocol.schema.fields import Message

WIDE_TOPIC = "wide"
"""A topic that is made before the requests are sent, by ``benchmarks.bystander.prepare``."""
WIDE_PARTITIONS = 10_000
"""Partitions of the wide topic and of the bystander's topic together. The latter has one, so the wide topic has one
less: its partition WIDE_PARTITIONS - 1 does not exist.
"""
MADE_TOPICS = 300
BROKER = 4
"""Resource type of a broker's configs."""


class Hostile(NamedTuple):
    """One request: its name in the table, its API version, and the function that builds its message, which may have
    many megabytes.
    """

    name: str
    version: int
    build: Callable[[], Message]

    def prepare(self, port: int) -> None:
        """Do nothing: what these requests name exists already, or is meant to be missing."""

    def frame(self) -> bytes:
        """Encode the request with its length in front, correlation id 7."""
        request = self.build()
        key = ApiKey(request.API_KEY)
        header = struct.pack(">hhih", key, self.version, 7, 1) + b"h"
        if request_header_version(key, self.version) >= 2:
            header += b"\0"
        body = request.encode(self.version)
        return struct.pack(">i", len(header) + len(body)) + header + body


def deletions(count: int) -> Hostile:
    """Build DeleteTopics of names that do not exist."""

    def build() -> Message:
        return DeleteTopicsRequest(topics=[DeleteTopicState(name=f"none-{number}") for number in range(count)])

    return Hostile(f"DeleteTopics, {count:,} unknown names", 6, build)


def descriptions(count: int, node_id: int) -> Hostile:
    """Build DescribeConfigs that names the broker ``count`` times."""
    resource = DescribeConfigsResource(resource_type=BROKER, resource_name=str(node_id))
    name = f"DescribeConfigs, the broker {count:,} times"
    return Hostile(name, 4, lambda: DescribeConfigsRequest(resources=[resource] * count))


def metadata_of_one(count: int) -> Hostile:
    """Build Metadata that names one unknown topic ``count`` times."""

    def build() -> Message:
        topics = [MetadataRequestTopic(name=WIDE_TOPIC + "-none")] * count
        return MetadataRequest(topics=topics, allow_auto_topic_creation=False)

    return Hostile(f"Metadata, one name {count:,} times", 9, build)


def creating_metadata(count: int) -> Hostile:
    """Build a Metadata request that names ``count`` missing topics, and asks to create them."""

    def build() -> Message:
        topics = [MetadataRequestTopic(name=f"auto-{number}") for number in range(count)]
        return MetadataRequest(topics=topics, allow_auto_topic_creation=True)

    return Hostile(f"Metadata that creates topics, {count:,} names", 9, build)


def list_offsets(count: int) -> Hostile:
    """Build ListOffsets of partitions, of which only the first WIDE_PARTITIONS - 1 exist."""

    def build() -> Message:
        partitions = [ListOffsetsPartition(partition_index=number, timestamp=-1) for number in range(count)]
        return ListOffsetsRequest(topics=[ListOffsetsTopic(name=WIDE_TOPIC, partitions=partitions)])

    return Hostile(f"ListOffsets, {count:,} partitions", 7, build)


def fetch(count: int) -> Hostile:
    """Build a Fetch of the partitions below WIDE_PARTITIONS, again and again; all but the last exist."""

    def build() -> Message:
        partitions = [
            FetchPartition(partition=number % WIDE_PARTITIONS, fetch_offset=0, partition_max_bytes=1024)
            for number in range(count)
        ]
        topics = [FetchTopic(topic=WIDE_TOPIC, partitions=partitions)]
        return FetchRequest(max_wait_ms=0, max_bytes=1 << 20, topics=topics)

    return Hostile(f"Fetch, {count:,} partitions", 11, build)


def committed_offsets(count: int) -> Hostile:
    """Build OffsetFetch of one group's partitions."""

    def build() -> Message:
        topics = [OffsetFetchRequestTopics(name=WIDE_TOPIC, partition_indexes=list(range(count)))]
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])

    return Hostile(f"OffsetFetch, {count:,} partitions", 8, build)


def commits(count: int) -> Hostile:
    """Build OffsetCommit for a group without members."""

    def build() -> Message:
        partitions = [
            OffsetCommitRequestPartition(partition_index=number, committed_offset=1, committed_metadata="")
            for number in range(count)
        ]
        topics = [OffsetCommitRequestTopic(name=WIDE_TOPIC, partitions=partitions)]
        return OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)

    return Hostile(f"OffsetCommit, {count:,} partitions", 8, build)


def record_deletions(count: int) -> Hostile:
    """Build DeleteRecords of partitions of a topic that does not exist."""

    def build() -> Message:
        partitions = [DeleteRecordsPartition(partition_index=number, offset=0) for number in range(count)]
        topics = [DeleteRecordsTopic(name=WIDE_TOPIC + "-none", partitions=partitions)]
        return DeleteRecordsRequest(topics=topics, timeout_ms=1000)

    return Hostile(f"DeleteRecords, {count:,} partitions", 2, build)


def made_topics() -> Iterator[Hostile]:
    """Yield requests that create topics, and delete them."""
    names = [f"made-{number}" for number in range(MADE_TOPICS)]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    created = CreateTopicsRequest(topics=topics, timeout_ms=60_000)
    yield Hostile(f"CreateTopics, {MADE_TOPICS:,}", 7, lambda: created)
    deleted = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=60_000)
    yield Hostile(f"DeleteTopics, {MADE_TOPICS:,} that exist", 6, lambda: deleted)


def hostile_requests(node_id: int) -> Iterator[Hostile]:
    """Yield all requests, in the order in which they are sent. ``node_id`` is the broker's."""
    for count in (20_000, 49_000, 262_144):
        yield deletions(count)
    for count in (1_000, 30_000):
        yield descriptions(count, node_id)
    for count in (49_000, 1_000_000):
        yield metadata_of_one(count)
    yield creating_metadata(65_536)
    for count in (49_000, 1_000_000):
        yield list_offsets(count)
    for count in (19_000, 262_000):
        yield fetch(count)
    names = [f"group-{number}" for number in range(49_000)]
    yield Hostile("DescribeGroups, 49,000", 5, lambda: DescribeGroupsRequest(groups=names))
    yield Hostile("DeleteGroups, 49,000", 2, lambda: DeleteGroupsRequest(groups_names=names))
    found = partial(FindCoordinatorRequest, key_type=0, coordinator_keys=names)
    yield Hostile("FindCoordinator, 49,000 keys", 4, found)
    yield committed_offsets(49_000)
    yield commits(49_000)
    yield record_deletions(49_000)
    yield from made_topics()
