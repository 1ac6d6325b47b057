"""OffsetCommit: store a group's committed offsets.

v0 has no member, v1 a timestamp per partition, v2-4 a retention time; v6 leader epochs; v7 static members; v8
flexible; v9 the consumer group protocol (KIP-848); v10 topics by id. In old Kafka v0 stored offsets in ZooKeeper; here
all versions store them in ``__consumer_offsets``.
"""

from __future__ import annotations

from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.handlers.known_partitions import divide, join_answers
from tidelog.broker.handlers.partition_chunks import chunks_of
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.loop.steps import Steps, wait_for_all
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidelog.protocol.schema.copies import with_fields

API_KEY = ApiKey.OFFSET_COMMIT
MIN_VERSION, MAX_VERSION = 0, 10
Request = OffsetCommitRequest


def handle(broker: Broker, context: RequestContext, request: OffsetCommitRequest) -> Steps[OffsetCommitResponse]:
    """Append one record per partition, some partitions at a time; the answer is sent when all are committed."""
    commits, refused = [], []
    for topics in chunks_of(request.topics):
        known, unknown = divide(broker.metadata, topics)
        refused.append([answer for topic, error in unknown for answer in _refuse([topic], error)])
        commits.append(_commit(broker, context, with_fields(request, topics=known)))
        yield None
    answered = yield from wait_for_all(commits)
    responses = []
    for unknown_topics, answer in zip(refused, answered, strict=True):
        responses += join_answers(unknown_topics, answer.topics)
        yield None
    return OffsetCommitResponse(topics=responses)


def _commit(broker: Broker, context: RequestContext, part: OffsetCommitRequest) -> Deferred[OffsetCommitResponse]:
    """Let the coordinator commit the offsets of partitions that exist."""
    if not part.topics:
        return deferred_value(OffsetCommitResponse())
    refuse = partial(error_response, part)
    try:
        return coordinators_of(broker).groups.commit_offsets(context, part).recover(refuse)
    except KafkaError as error:
        return deferred_value(refuse(error))


def error_response(request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    """Build a response with one error for every partition."""
    return OffsetCommitResponse(topics=_refuse(request.topics, error))


def _refuse(topics: list[OffsetCommitRequestTopic], error: KafkaError) -> list[OffsetCommitResponseTopic]:
    return [
        OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error.code)
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]
