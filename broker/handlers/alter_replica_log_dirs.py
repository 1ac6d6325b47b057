"""AlterReplicaLogDirs: refused, because replicas cannot move to other directories (KIP-113).

A request for the directory that a replica is in succeeds. Versions 0 to 2 differ in encoding only.
"""

from __future__ import annotations

import os.path

from tidelog.broker.broker import Broker
from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.broker.replica.opening import opening_of
from tidelog.broker.requests.context import RequestContext
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    InvalidRequestError,
    KafkaError,
    LogDirNotFoundError,
    NotLeaderOrFollowerError,
    ReplicaNotAvailableError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

API_KEY = ApiKey.ALTER_REPLICA_LOG_DIRS
MIN_VERSION = 0
MAX_VERSION = 2
Request = AlterReplicaLogDirsRequest


def handle(
    broker: Broker, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> Steps[AlterReplicaLogDirsResponse]:
    """Check whether each partition is in the requested directory."""
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                code = yield from check(broker, directory.path, TopicPartition(topic.name, index))
                results.setdefault(topic.name, []).append(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                )
                yield None
            yield None
    return (yield from answer(results))


def check(broker: Broker, path: str, topic_partition: TopicPartition) -> Steps[int]:
    """Return 0 if the partition is in this directory, else an error code. A thread opens the log if it is not open.

    Source: ReplicaManager.alterReplicaLogDirs of Kafka, which answers REPLICA_NOT_AVAILABLE for a replica that is not
    on this broker; kafka-reassign-partitions.sh goes on after it.
    """
    if path not in map(os.path.abspath, broker.config.log_dirs):
        return LogDirNotFoundError.code
    image = broker.metadata.topics.get(topic_partition.topic)
    if image is None or not 0 <= topic_partition.partition < image.partition_count:
        return ReplicaNotAvailableError.code
    yield opening_of(broker, *topic_partition)
    try:
        current = broker.replica_manager.partition(*topic_partition).directory
    except (NotLeaderOrFollowerError, UnknownTopicOrPartitionError):  # the latter: deleted meanwhile
        return ReplicaNotAvailableError.code
    except KafkaError as error:
        return error.code
    return 0 if os.path.dirname(os.path.abspath(current)) == path else InvalidRequestError.code


def answer(results: dict[str, list[AlterReplicaLogDirPartitionResult]]) -> Steps[AlterReplicaLogDirsResponse]:
    """Build the answer from the results by topic."""
    topics = yield from apply_each(
        results.items(), lambda found: AlterReplicaLogDirTopicResult(topic_name=found[0], partitions=found[1])
    )
    return AlterReplicaLogDirsResponse(results=topics)


def error_response(request: AlterReplicaLogDirsRequest, error: KafkaError) -> Steps[AlterReplicaLogDirsResponse]:
    """Answer every partition with the error."""

    def refuse(index: int) -> AlterReplicaLogDirPartitionResult:
        return AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error.code)

    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for topic in (topic for directory in request.dirs for topic in directory.topics):
        refused = yield from apply_each(topic.partitions, refuse)
        topics.setdefault(topic.name, []).extend(refused)
        yield None
    return (yield from answer(topics))
