"""DescribeGroups: members and assignments of classic groups.

v3 authorized operations (KIP-430); v4 instance ids; v5 flexible; v6 the error GROUP_ID_NOT_FOUND for a group that does
not exist or is not classic (KIP-1043). Its state is Dead in all versions.
"""

from __future__ import annotations

from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

API_KEY = ApiKey.DESCRIBE_GROUPS
MIN_VERSION, MAX_VERSION = 0, 6
Request = DescribeGroupsRequest


def handle(broker: Broker, context: RequestContext, request: DescribeGroupsRequest) -> Steps[DescribeGroupsResponse]:
    """Describe each group once, however often it is named; each has its own error. Raises NotCoordinatorError if the
    records of a group are not committed."""
    operations = request.include_authorized_operations
    coordinator = coordinators_of(broker).groups
    describe = partial(coordinator.describe_group, context, operations=operations)
    groups = yield from apply_each(dict.fromkeys(request.groups), describe)
    yield from coordinator.runtime.wait_until_committed(request.groups)
    return DescribeGroupsResponse(groups=groups)


def error_response(request: DescribeGroupsRequest, error: KafkaError) -> DescribeGroupsResponse:
    """Build a response with one error for every group."""
    return DescribeGroupsResponse(
        groups=[DescribedGroup(group_id=group_id, error_code=error.code) for group_id in request.groups]
    )
