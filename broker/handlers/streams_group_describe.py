"""StreamsGroupDescribe v0: state, topology, members and tasks of streams groups (KIP-1071)."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.group.streams.config import check_enabled
from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)

API_KEY = ApiKey.STREAMS_GROUP_DESCRIBE
MIN_VERSION, MAX_VERSION = 0, 0
Request = StreamsGroupDescribeRequest


def handle(
    broker: Broker, context: RequestContext, request: StreamsGroupDescribeRequest
) -> Steps[StreamsGroupDescribeResponse]:
    """Describe each group once, however often it is named; each has its own error."""
    check_enabled(broker)
    describe, operations = coordinators_of(broker).streams_members.describe, request.include_authorized_operations
    asked = dict.fromkeys(request.group_ids)
    groups = yield from apply_each(asked, lambda group_id: describe(group_id, operations=operations))
    yield from coordinators_of(broker).groups.runtime.wait_until_committed(request.group_ids)
    return StreamsGroupDescribeResponse(groups=groups)


def error_response(request: StreamsGroupDescribeRequest, error: KafkaError) -> Steps[StreamsGroupDescribeResponse]:
    """Build a response with one error for every group."""
    groups = yield from apply_each(
        request.group_ids,
        lambda group_id: DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message),
    )
    return StreamsGroupDescribeResponse(groups=groups)
