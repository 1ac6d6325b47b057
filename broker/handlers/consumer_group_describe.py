"""ConsumerGroupDescribe: members of consumer groups, with their current and target assignments (KIP-848).

v1 adds whether a member uses the classic protocol.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

API_KEY = ApiKey.CONSUMER_GROUP_DESCRIBE
MIN_VERSION, MAX_VERSION = 0, 1
Request = ConsumerGroupDescribeRequest


def handle(
    broker: Broker, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> Steps[ConsumerGroupDescribeResponse]:
    """Describe each group once, however often it is named; each has its own error."""
    coordinator = coordinators_of(broker).groups
    describe = coordinator.describe_consumer_group
    names, operations = broker.metadata.topic_names, request.include_authorized_operations
    asked = dict.fromkeys(request.group_ids)
    groups = yield from apply_each(asked, lambda group_id: describe(group_id, names, operations=operations))
    yield from coordinator.runtime.wait_until_committed(request.group_ids)
    return ConsumerGroupDescribeResponse(groups=groups)


def error_response(request: ConsumerGroupDescribeRequest, error: KafkaError) -> ConsumerGroupDescribeResponse:
    """Build a response with one error for every group."""
    return ConsumerGroupDescribeResponse(
        groups=[
            DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
            for group_id in request.group_ids
        ]
    )
