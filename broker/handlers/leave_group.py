"""LeaveGroup: members leave a classic group, or are removed by an admin.

v0-2 one member; v3 a batch, static members by instance id (KIP-345); v4 flexible; v5 reasons (KIP-800).
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

API_KEY = ApiKey.LEAVE_GROUP
MIN_VERSION, MAX_VERSION = 0, 5
Request = LeaveGroupRequest


def handle(broker: Broker, context: RequestContext, request: LeaveGroupRequest) -> Deferred[LeaveGroupResponse]:
    """Remove the members; one rebalance follows for all."""
    return coordinators_of(broker).groups.leave_group(context, request)


def error_response(request: LeaveGroupRequest, error: KafkaError) -> LeaveGroupResponse:
    """Build an answer that has only the error."""
    return LeaveGroupResponse(error_code=error.code)
