"""OffsetFetch: the committed offsets of groups.

v0-7 one group, its answer at the top; v2 null topics ask for all, errors at the top; v5 leader epochs; v6 flexible; v7
require stable (KIP-447); v8 many groups (KIP-709); v9 member id and epoch (KIP-848); v10 topics by id. Without a
committed offset v0 answers UNKNOWN_TOPIC_OR_PARTITION, later versions offset -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps, apply_each
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
from tidelog.protocol.whole_groups import leave_out_repetitions

API_KEY = ApiKey.OFFSET_FETCH
MIN_VERSION, MAX_VERSION = 0, 10
Request = OffsetFetchRequest

_FIRST_VERSION_WITH_GROUPS = 8
_FIRST_VERSION_WITH_IDS = 10
_FIRST_VERSION_WITH_ERROR = 2
_NO_OFFSET = -1

AskedPartition = tuple[str, str, bytes, int]
"""Group id, topic name, topic id and partition."""


def handle(broker: Broker, context: RequestContext, request: OffsetFetchRequest) -> Steps[OffsetFetchResponse]:
    """Answer each group; a group that does not exist has no offsets, which is not an error.

    A partition of a group is answered once, even if it is named several times; so is a group of which all offsets are
    requested.
    """
    coordinator = coordinators_of(broker).groups
    seen: set[AskedPartition] = set()
    if context.api_version >= _FIRST_VERSION_WITH_GROUPS:
        by_id = context.api_version >= _FIRST_VERSION_WITH_IDS
        groups = []
        for asked in leave_out_repetitions(request.groups):
            yield from leave_out_repeated_partitions(asked.group_id, asked.topics or (), seen)
            fetched = coordinator.fetch_offsets(asked, require_stable=request.require_stable, by_id=by_id)
            groups.append((yield from fetched))
            yield None
        return OffsetFetchResponse(groups=groups)
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=(yield from _topics(request)))
    yield from leave_out_repeated_partitions(group.group_id, group.topics or (), seen)
    answer = yield from coordinator.fetch_offsets(group, require_stable=request.require_stable, by_id=False)
    return (yield from _build_single_group(context.api_version, request, answer))


def leave_out_repeated_partitions(
    group_id: str, topics: Sequence[OffsetFetchRequestTopics], seen: set[AskedPartition]
) -> Steps[None]:
    """Leave out the partitions that are in ``seen``, and add the others to it.

    Otherwise each four bytes of a request could ask for ``offset.metadata.max.bytes`` of metadata, 4,096 by default.
    """
    for topic in topics:
        topic_id, kept = bytes(topic.topic_id), []
        for number, index in enumerate(topic.partition_indexes):
            asked = (group_id, topic.name, topic_id, index)
            if asked not in seen:
                seen.add(asked)
                kept.append(index)
            if not number % ITEMS_PER_STEP:
                yield None
        topic.partition_indexes = kept
        yield None


def error_response(request: OffsetFetchRequest, error: KafkaError) -> Steps[OffsetFetchResponse]:
    """Answer with the error for each group (v8 and later), at the top (v2-7), and in each partition, for v0-1."""
    topics = yield from _build_error_topics(request, error.code)
    groups = yield from apply_each(
        request.groups, lambda group: OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    )
    return OffsetFetchResponse(error_code=error.code, topics=topics, groups=groups)


def _topics(request: OffsetFetchRequest) -> Steps[list[OffsetFetchRequestTopics] | None]:
    if request.topics is None:
        return None
    return (
        yield from apply_each(
            request.topics,
            lambda topic: OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes),
        )
    )


def _build_single_group(
    version: int, request: OffsetFetchRequest, answer: OffsetFetchResponseGroup
) -> Steps[OffsetFetchResponse]:
    """Convert the answer of one group to the form of versions below 8."""
    if answer.error_code != NONE:
        if version >= _FIRST_VERSION_WITH_ERROR:
            return OffsetFetchResponse(error_code=answer.error_code)
        return OffsetFetchResponse(topics=(yield from _build_error_topics(request, answer.error_code)))
    topics = []
    for topic in answer.topics:
        partitions = yield from apply_each(topic.partitions, partial(_old_partition, version))
        topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
        yield None
    return OffsetFetchResponse(topics=topics)


def _old_partition(version: int, partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    """Convert a partition's answer to the form of versions below 8."""
    return OffsetFetchResponsePartition(
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=_missing_code(version, partition.committed_offset) or partition.error_code,
    )


def _missing_code(version: int, offset: int) -> int:
    return UnknownTopicOrPartitionError.code if version == 0 and offset == _NO_OFFSET else NONE


def _build_error_topics(request: OffsetFetchRequest, error_code: int) -> Steps[list[OffsetFetchResponseTopic]]:
    topics = []
    for topic in request.topics or ():
        partitions = yield from apply_each(
            topic.partition_indexes,
            lambda partition: OffsetFetchResponsePartition(
                partition_index=partition, committed_offset=_NO_OFFSET, metadata="", error_code=error_code
            ),
        )
        topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
        yield None
    return topics
