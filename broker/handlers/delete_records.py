"""DeleteRecords: move a partition's log start offset forward; records before it are no longer served.

v0-1 equal, v2 flexible. Offset -1 means the high watermark. Internal topics are refused, and so are topics that are
only compacted, as in Kafka. Before the answer is sent, the new log start is written to log-start-offset-checkpoint. By
then the live replicas have it, too, unless the partition's answer has an error.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps
from tidelog.broker.replica.opening import opening_of
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import note_change
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidTopicError, KafkaError
from tidelog.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

API_KEY = ApiKey.DELETE_RECORDS
MIN_VERSION, MAX_VERSION = 0, 2
Request = DeleteRecordsRequest

_INVALID_LOW_WATERMARK = -1


def handle(broker: Broker, context: RequestContext, request: DeleteRecordsRequest) -> Steps[DeleteRecordsResponse]:
    """Delete records in each partition by itself, then write the new log starts to the checkpoint."""
    topics = []
    waits: list[tuple[DeleteRecordsPartitionResult, Deferred[int]]] = []
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            yield opening_of(broker, topic.name, asked.partition_index)
            try:
                low_watermark = delete_records(broker, topic.name, asked.partition_index, asked.offset)
                details = {"topic": topic.name, "partition": asked.partition_index, "start": low_watermark}
                note_change("records deleted", context, **details)
                result = DeleteRecordsPartitionResult(
                    partition_index=asked.partition_index, low_watermark=low_watermark
                )
                partition = broker.replica_manager.partition(topic.name, asked.partition_index)
                if partition.leading is not None:
                    waits.append((result, partition.leading.when_deleted(low_watermark, request.timeout_ms)))
            except KafkaError as error:
                result = _build_error_result(asked.partition_index, error)
            results.append(result)
            yield None
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
        yield None
    written = broker.replica_manager.checkpoint_log_starts()
    yield written
    written.result()
    for result, wait in waits:
        yield wait
        note_low_watermark(result, wait)
    return DeleteRecordsResponse(topics=topics)


def error_response(request: DeleteRecordsRequest, error: KafkaError) -> DeleteRecordsResponse:
    """Build a response with one error for every partition."""
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_build_error_result(asked.partition_index, error) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def delete_records(broker: Broker, topic: str, index: int, offset: int) -> int:
    """Delete the records before ``offset``; return the new log start offset.

    Raises UnknownTopicOrPartitionError, InvalidTopicError, and what ``Partition.delete_records`` raises.
    """
    partition = broker.replica_manager.partition(topic, index)
    if partition.is_internal:
        raise InvalidTopicError(f"Cannot delete records of internal topic {topic}")
    return partition.delete_records(offset)


def note_low_watermark(result: DeleteRecordsPartitionResult, wait: Deferred[int]) -> None:
    """Put the low watermark of the live replicas into a partition's answer, or the error of the wait for it."""
    try:
        result.low_watermark = wait.result()
    except KafkaError as error:
        result.low_watermark, result.error_code = _INVALID_LOW_WATERMARK, error.code


def _build_error_result(index: int, error: KafkaError) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=_INVALID_LOW_WATERMARK, error_code=error.code
    )
