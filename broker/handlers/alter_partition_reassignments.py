"""AlterPartitionReassignments on a lone node, where each partition has one possible assignment (KIP-455).

A request for that assignment succeeds at once; any other is invalid; there is no reassignment to cancel. Versions 0, 1.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.controller.replica_assignment import check_replicas
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    InvalidReplicaAssignmentError,
    KafkaError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

API_KEY = ApiKey.ALTER_PARTITION_REASSIGNMENTS
MIN_VERSION = 0
MAX_VERSION = 1
Request = AlterPartitionReassignmentsRequest


def handle(
    broker: Broker, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> Steps[AlterPartitionReassignmentsResponse]:
    """Check the requested assignment of each partition; no partition moves."""
    responses = []
    for topic in request.topics:
        image = broker.metadata.topics.get(topic.name)
        count = 0 if image is None else image.partition_count
        partitions = []
        for partition in topic.partitions:
            try:
                check(broker, partition, count)
                partitions.append(
                    ReassignablePartitionResponse(partition_index=partition.partition_index, error_message=None)
                )
            except KafkaError as error:
                partitions.append(build_error_result(partition, error))
            yield None
        yield None
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=partitions))
    return AlterPartitionReassignmentsResponse(
        error_message=None,
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=responses,
    )


def check(broker: Broker, partition: ReassignablePartition, partition_count: int) -> None:
    """Raise a KafkaError unless the partition has the requested replicas already."""
    if not 0 <= partition.partition_index < partition_count:
        raise UnknownTopicOrPartitionError
    if partition.replicas is None:
        raise NoReassignmentInProgressError
    if not partition.replicas:
        raise InvalidReplicaAssignmentError("The manual partition assignment includes an empty replica list.")
    check_replicas([partition.replicas], [broker.node_id])


def build_error_result(partition: ReassignablePartition, error: KafkaError) -> ReassignablePartitionResponse:
    """Build the answer for a partition whose reassignment is refused."""
    return ReassignablePartitionResponse(
        partition_index=partition.partition_index, error_code=error.code, error_message=error.message
    )


def error_response(
    request: AlterPartitionReassignmentsRequest, error: KafkaError
) -> AlterPartitionReassignmentsResponse:
    """Build an answer that has only the error."""
    return AlterPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)
