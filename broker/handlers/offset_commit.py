"""OffsetCommit: store how far a group has read.

v0 has no member, v1 a timestamp per partition, v2-4 a retention time; v6 leader epochs; v7 static members; v8
flexible; v9 the consumer group protocol (KIP-848); v10 topics by id. v0 went to ZooKeeper in old Kafka; here all
versions go to ``__consumer_offsets``.
"""

from __future__ import annotations

from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.handlers.partition_chunks import chunks_of
from tidelog.broker.loop.deferred import completed
from tidelog.broker.loop.steps import Steps, all_settled
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidelog.protocol.schema.copies import with_fields

API_KEY = ApiKey.OFFSET_COMMIT
MIN_VERSION, MAX_VERSION = 0, 10
Request = OffsetCommitRequest


def handle(broker: Broker, context: RequestContext, request: OffsetCommitRequest) -> Steps[OffsetCommitResponse]:
    """Append one record per partition, some partitions at a time; answered when they are committed."""
    commit = coordinators_of(broker).groups.commit_offsets
    commits = []
    for topics in chunks_of(request.topics):
        part = with_fields(request, topics=topics)
        refuse = partial(error_response, part)
        try:
            commits.append(commit(context, part).otherwise(refuse))
        except KafkaError as error:
            commits.append(completed(refuse(error)))
        yield None
    answered = yield from all_settled(commits)
    return OffsetCommitResponse(topics=[topic for part in answered for topic in part.topics])


def error_response(request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    """Build a response with one error for every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error.code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
