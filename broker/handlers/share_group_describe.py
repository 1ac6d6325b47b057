"""ShareGroupDescribe v1: state, members and assignments of share groups (KIP-932)."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.share.config import check_enabled
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

API_KEY = ApiKey.SHARE_GROUP_DESCRIBE
MIN_VERSION, MAX_VERSION = 1, 1
Request = ShareGroupDescribeRequest


def handle(
    broker: Broker, context: RequestContext, request: ShareGroupDescribeRequest
) -> Steps[ShareGroupDescribeResponse]:
    """Describe each group once, however often it is named; each has its own error."""
    check_enabled(broker)
    describe = coordinators_of(broker).share_members.describe
    names, operations = broker.metadata.topic_names, request.include_authorized_operations
    asked = dict.fromkeys(request.group_ids)
    groups = yield from apply_each(asked, lambda group_id: describe(group_id, names, operations=operations))
    yield from coordinators_of(broker).groups.runtime.wait_until_committed(request.group_ids)
    return ShareGroupDescribeResponse(groups=groups)


def error_response(request: ShareGroupDescribeRequest, error: KafkaError) -> Steps[ShareGroupDescribeResponse]:
    """Build a response with one error for every group."""
    groups = yield from apply_each(
        request.group_ids,
        lambda group_id: DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message),
    )
    return ShareGroupDescribeResponse(groups=groups)
