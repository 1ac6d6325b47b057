"""ListPartitionReassignments: on one node none is ever under way (KIP-455). Version 0."""

from __future__ import annotations

from broker.broker import Broker, RequestContext
from protocol.api_keys import ApiKey
from protocol.errors import KafkaError
from protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

API_KEY = ApiKey.LIST_PARTITION_REASSIGNMENTS
MIN_VERSION = 0
MAX_VERSION = 0
Request = ListPartitionReassignmentsRequest


def handle(
    broker: Broker, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """An empty list."""
    return ListPartitionReassignmentsResponse(error_message=None)


def error_response(request: ListPartitionReassignmentsRequest, error: KafkaError) -> ListPartitionReassignmentsResponse:
    """The error for the whole answer."""
    return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)
