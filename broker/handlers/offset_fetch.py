"""OffsetFetch: how far groups have read.

v0-7 one group, its answer at the top; v2 null topics ask for all, errors at the top; v5 leader epochs; v6 flexible; v7
require stable (KIP-447); v8 many groups (KIP-709); v9 member id and epoch (KIP-848); v10 topics by id.
v0 answers UNKNOWN_TOPIC_OR_PARTITION where nothing is committed, later versions offset -1.
"""

from __future__ import annotations

from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.handlers.whole_groups import leave_out_repetitions
from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import NONE, KafkaError, UnknownTopicOrPartitionError
from tidelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
)

API_KEY = ApiKey.OFFSET_FETCH
MIN_VERSION, MAX_VERSION = 0, 10
Request = OffsetFetchRequest

_FIRST_VERSION_WITH_GROUPS = 8
_FIRST_VERSION_WITH_IDS = 10
_FIRST_VERSION_WITH_ERROR = 2
_NO_OFFSET = -1


def handle(broker: Broker, context: RequestContext, request: OffsetFetchRequest) -> Steps[OffsetFetchResponse]:
    """Answer each group; a group that does not exist has no offsets, which is no error.

    A group whose offsets are all asked for is answered once, however often it is named.
    """
    coordinator = coordinators_of(broker).groups
    if context.api_version >= _FIRST_VERSION_WITH_GROUPS:
        by_id = context.api_version >= _FIRST_VERSION_WITH_IDS
        groups = []
        for asked in leave_out_repetitions(request.groups):
            fetched = coordinator.fetch_offsets(asked, require_stable=request.require_stable, by_id=by_id)
            groups.append((yield from fetched))
            yield None
        return OffsetFetchResponse(groups=groups)
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=_topics(request))
    answer = yield from coordinator.fetch_offsets(group, require_stable=request.require_stable, by_id=False)
    return (yield from _single_group(context.api_version, request, answer))


def error_response(request: OffsetFetchRequest, error: KafkaError) -> OffsetFetchResponse:
    """The error for each group, at the top, and for v0-1 in each partition."""
    return OffsetFetchResponse(
        error_code=error.code,
        topics=_build_error_topics(request, error.code),
        groups=[OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code) for group in request.groups],
    )


def _topics(request: OffsetFetchRequest) -> list[OffsetFetchRequestTopics] | None:
    if request.topics is None:
        return None
    return [OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes) for t in request.topics]


def _single_group(
    version: int, request: OffsetFetchRequest, answer: OffsetFetchResponseGroup
) -> Steps[OffsetFetchResponse]:
    if answer.error_code != NONE:
        if version >= _FIRST_VERSION_WITH_ERROR:
            return OffsetFetchResponse(error_code=answer.error_code)
        return OffsetFetchResponse(topics=_build_error_topics(request, answer.error_code))
    topics = []
    for topic in answer.topics:
        partitions = yield from apply_each(topic.partitions, partial(_old_partition, version))
        topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
        yield None
    return OffsetFetchResponse(topics=topics)


def _old_partition(version: int, partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    """A partition as versions below 8 tell of it."""
    return OffsetFetchResponsePartition(
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=_missing(version, partition.committed_offset) or partition.error_code,
    )


def _missing(version: int, offset: int) -> int:
    return UnknownTopicOrPartitionError.code if version == 0 and offset == _NO_OFFSET else NONE


def _build_error_topics(request: OffsetFetchRequest, error_code: int) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=partition, committed_offset=_NO_OFFSET, metadata="", error_code=error_code
                )
                for partition in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]
