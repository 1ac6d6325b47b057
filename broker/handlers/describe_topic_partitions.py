"""DescribeTopicPartitions: topics page by page, with a cursor to the next page (KIP-966). Version 0.

Topics come in the order of their names. ``response_partition_limit`` and ``max.request.partition.size.limit`` bound the
partitions of one answer; the cursor names the first partition that did not fit.
"""

from __future__ import annotations

from heapq import heapify, heappop

from tidelog.broker.broker import Broker
from tidelog.broker.loop.steps import Steps
from tidelog.broker.metadata.image import TopicImage
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.authorized_operations import TOPIC_OPERATIONS
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError, KafkaError, UnknownTopicOrPartitionError
from tidelog.protocol.messages.describe_topic_partitions import (
    Cursor,
    CursorResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

API_KEY = ApiKey.DESCRIBE_TOPIC_PARTITIONS
MIN_VERSION = 0
MAX_VERSION = 0
Request = DescribeTopicPartitionsRequest


def handle(
    broker: Broker, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> Steps[DescribeTopicPartitionsResponse]:
    """Answer with one page. Raises InvalidRequestError for a cursor before the first partition, or in a topic that the
    request does not name."""
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise InvalidRequestError(f"DescribeTopicPartitions cursor partition must be valid: {cursor.partition_index}")
    room = max(1, min(request.response_partition_limit, broker.config.get_int("max.request.partition.size.limit")))
    if cursor is not None and request.topics and cursor.topic_name not in {topic.name for topic in request.topics}:
        raise InvalidRequestError("DescribeTopicPartitions must ask for the topic of its cursor.")
    names = yield from pending_names(broker, request, cursor)
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    while names:
        yield None
        name = heappop(names)
        if room == 0:
            return page(topics, CursorResponse(topic_name=name, partition_index=0))
        image = broker.metadata.find(name)
        if image is None:
            topics.append(unknown_topic(name))
            continue
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        end = min(image.partition_count, start + room)
        topics.append(describe(broker, image, range(start, end)))
        room -= max(0, end - start)
        if end < image.partition_count:
            return page(topics, CursorResponse(topic_name=name, partition_index=end))
    return page(topics, None)


def pending_names(broker: Broker, request: DescribeTopicPartitionsRequest, cursor: Cursor | None) -> Steps[list[str]]:
    """Return a heap of the requested topic names, or of all if none is requested, from the cursor's topic on. Sorting
    them all would take longer than a turn of the loop."""
    first = "" if cursor is None else cursor.topic_name
    names = set()
    for name in [topic.name for topic in request.topics] or list(broker.metadata.topics):
        if name >= first:
            names.add(name)
        yield None
    heap = list(names)
    heapify(heap)
    return heap


def describe(broker: Broker, image: TopicImage, indexes: range) -> DescribeTopicPartitionsResponseTopic:
    """Describe some partitions of a topic, as its image in the metadata has them."""
    states = [image.partitions[index] for index in indexes]
    return DescribeTopicPartitionsResponseTopic(
        name=image.name,
        topic_id=image.topic_id,
        is_internal=image.is_internal,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                eligible_leader_replicas=list(state.elr),
                last_known_elr=list(state.last_known_elr),
                offline_replicas=offline,
            )
            for index, state, offline in zip(indexes, states, broker.nodes.offline_replicas(states), strict=False)
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def unknown_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    """Build the answer for a topic that does not exist."""
    return DescribeTopicPartitionsResponseTopic(
        error_code=UnknownTopicOrPartitionError.code, name=name, topic_authorized_operations=TOPIC_OPERATIONS
    )


def page(
    topics: list[DescribeTopicPartitionsResponseTopic], next_cursor: CursorResponse | None
) -> DescribeTopicPartitionsResponse:
    """Build the answer; ``next_cursor`` is None when it is the last page."""
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=next_cursor)


def error_response(request: DescribeTopicPartitionsRequest, error: KafkaError) -> DescribeTopicPartitionsResponse:
    """Answer every requested topic with the error."""
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=error.code, name=topic.name) for topic in request.topics
        ]
    )
