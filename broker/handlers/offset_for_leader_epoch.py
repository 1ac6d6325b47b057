"""OffsetForLeaderEpoch: the end offset of a leader epoch, which shows a client whether its position still exists
(KIP-101, KIP-320).

v0 end offset only, v1 its epoch, v2 current epoch checked, v3 replica id, v4 flexible. An epoch of which the log has no
records is no error: ``Partition.end_offset_for_epoch`` says what is answered.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.loop.steps import Steps
from tidelog.broker.replica.opening import opening_of
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

API_KEY = ApiKey.OFFSET_FOR_LEADER_EPOCH
MIN_VERSION, MAX_VERSION = 0, 4
Request = OffsetForLeaderEpochRequest


def handle(
    broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> Steps[OffsetForLeaderEpochResponse]:
    """Answer for each partition by itself, once its log is open."""
    topics = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            yield opening_of(broker, topic.topic, asked.partition)
            partitions.append(_end_offset(broker, topic.topic, asked))
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
        yield None
    return OffsetForLeaderEpochResponse(topics=topics)


def error_response(request: OffsetForLeaderEpochRequest, error: KafkaError) -> OffsetForLeaderEpochResponse:
    """Build a response with one error for every partition."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    EpochEndOffset(partition=asked.partition, error_code=error.code) for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _end_offset(broker: Broker, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = broker.replica_manager.partition(topic, asked.partition)
        partition.check_leader(asked.current_leader_epoch)
        found = partition.end_offset_for_epoch(asked.leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(partition=asked.partition, error_code=error.code)
    return EpochEndOffset(partition=asked.partition, leader_epoch=found[0], end_offset=found[1])
