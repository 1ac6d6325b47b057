"""ListOffsets: the first offset of each partition, its next offset, or the offset of the first record at or after a
time.

v0 lists segment base offsets (old consumers), v1+ one offset and its timestamp, v2+ isolation level, v4+ leader epoch;
v7+ the record with the largest timestamp (KIP-734), v8+ earliest local (KIP-405), v9+ latest tiered, v11+ earliest
pending upload.
No segment is in remote storage: earliest local is the earliest; latest tiered and earliest pending upload are unknown.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.loop.steps import Steps, find_distinct
from tidelog.broker.replica.offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    UNKNOWN,
    FoundOffset,
)
from tidelog.broker.replica.partition import Partition
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    InvalidRequestError,
    KafkaError,
    LeaderNotAvailableError,
    OffsetNotAvailableError,
    UnsupportedVersionError,
)
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

API_KEY = ApiKey.LIST_OFFSETS
MIN_VERSION, MAX_VERSION = 0, 11
Request = ListOffsetsRequest

_SINCE_VERSION = {EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""First version that may ask for each special timestamp; LATEST may be asked for in all."""
_FIRST_VERSION_WITH_NOT_AVAILABLE = 5
_NEVER = 1 << 15
"""Number above all versions, for a special timestamp that does not exist."""
_READ_COMMITTED = 1
_CONSUMER = -1
"""Replica id in the requests of consumers."""
_MAX_OLD_STYLE_OFFSETS = 10_000
"""Largest number of a partition's offsets in an answer of v0: the client asks for a number of segment base offsets."""


def handle(broker: Broker, context: RequestContext, request: ListOffsetsRequest) -> Steps[ListOffsetsResponse]:
    """Answer each partition by itself. One that is named twice is refused, once in each entry of its topic."""
    named = ((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions)
    repeated = (yield from find_distinct(named, lambda pair: pair)).repeated
    topics = []
    for topic in request.topics:
        partitions = []
        once = yield from find_distinct(topic.partitions, lambda asked: asked.partition_index)
        for asked in once.items.values():
            try:
                if (topic.name, asked.partition_index) in repeated:
                    raise InvalidRequestError
                partition = broker.replica_manager.partition(topic.name, asked.partition_index)
                yield partition.when_open()
                partitions.append(_look_up(partition, asked, request, context.api_version))
            except KafkaError as error:
                partitions.append(
                    ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=error.code)
                )
            yield None
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=topics)


def error_response(request: ListOffsetsRequest, error: KafkaError) -> ListOffsetsResponse:
    """Build a response with one error for every partition."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=error.code)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _look_up(
    partition: Partition, asked: ListOffsetsPartition, request: ListOffsetsRequest, version: int
) -> ListOffsetsPartitionResponse:
    """Look up one partition's offset. Raises UnsupportedVersionError, and what ``Partition.offsets`` and
    ``Partition.offset_for`` raise.

    Raises OffsetNotAvailableError, or LeaderNotAvailableError before v5, if a consumer's answer may change once a new
    leader knows its followers' log ends.
    """
    timestamp = asked.timestamp
    if timestamp < EARLIEST and version < _SINCE_VERSION.get(timestamp, _NEVER):
        raise UnsupportedVersionError
    offsets = partition.offsets(asked.current_leader_epoch)
    response = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    if version == 0:
        count = min(max(asked.max_num_offsets, 0), _MAX_OLD_STYLE_OFFSETS)
        response.old_style_offsets = partition.segment_offsets_for(timestamp, count)
        return response
    limit = offsets.last_stable_offset if request.isolation_level == _READ_COMMITTED else offsets.high_watermark
    if timestamp == LATEST and request.replica_id != _CONSUMER:
        limit = offsets.log_end_offset
    found = partition.offset_for(timestamp, limit)
    may_change = timestamp == LATEST or may_find_later(found, timestamp)
    if request.replica_id == _CONSUMER and partition.is_settling and may_change:
        raise OffsetNotAvailableError if version >= _FIRST_VERSION_WITH_NOT_AVAILABLE else LeaderNotAvailableError
    response.offset, response.timestamp, response.leader_epoch = found
    return response


def may_find_later(found: FoundOffset, timestamp: int) -> bool:
    """Return whether a look-up by time found nothing, but may find a record that is committed soon (KIP-207)."""
    return found.offset == UNKNOWN and (timestamp >= 0 or timestamp == MAX_TIMESTAMP)
