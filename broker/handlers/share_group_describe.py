"""ShareGroupDescribe v1: state, members and assignments of share groups (KIP-932)."""

from __future__ import annotations

from broker.broker import Broker, RequestContext
from broker.coordinator.coordinators import coordinators_of
from broker.share.config import check_enabled
from protocol.api_keys import ApiKey
from protocol.errors import KafkaError
from protocol.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

API_KEY = ApiKey.SHARE_GROUP_DESCRIBE
MIN_VERSION, MAX_VERSION = 1, 1
Request = ShareGroupDescribeRequest


def handle(broker: Broker, context: RequestContext, request: ShareGroupDescribeRequest) -> ShareGroupDescribeResponse:
    """Describe each; each group has its own error."""
    check_enabled(broker)
    describe = coordinators_of(broker).share_members.describe
    names, operations = broker.metadata.topic_names, request.include_authorized_operations
    return ShareGroupDescribeResponse(
        groups=[describe(group_id, names, operations=operations) for group_id in request.group_ids]
    )


def error_response(request: ShareGroupDescribeRequest, error: KafkaError) -> ShareGroupDescribeResponse:
    """The same error for every group."""
    return ShareGroupDescribeResponse(
        groups=[
            DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
            for group_id in request.group_ids
        ]
    )
