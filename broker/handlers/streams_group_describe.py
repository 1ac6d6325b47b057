"""StreamsGroupDescribe v0: state, topology, members and tasks of streams groups (KIP-1071)."""

from __future__ import annotations

from broker.broker import Broker, RequestContext
from broker.coordinator.coordinators import coordinators_of
from broker.coordinator.streams_config import check_enabled
from protocol.api_keys import ApiKey
from protocol.errors import KafkaError
from protocol.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)

API_KEY = ApiKey.STREAMS_GROUP_DESCRIBE
MIN_VERSION, MAX_VERSION = 0, 0
Request = StreamsGroupDescribeRequest


def handle(
    broker: Broker, context: RequestContext, request: StreamsGroupDescribeRequest
) -> StreamsGroupDescribeResponse:
    """Describe each; each group has its own error."""
    check_enabled(broker)
    describe, operations = coordinators_of(broker).streams_members.describe, request.include_authorized_operations
    return StreamsGroupDescribeResponse(
        groups=[describe(group_id, operations=operations) for group_id in request.group_ids]
    )


def error_response(request: StreamsGroupDescribeRequest, error: KafkaError) -> StreamsGroupDescribeResponse:
    """The same error for every group."""
    return StreamsGroupDescribeResponse(
        groups=[
            DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
            for group_id in request.group_ids
        ]
    )
