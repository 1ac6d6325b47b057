"""Heartbeat: keeps a member of a classic group alive, and informs the member of rebalances.

v3 static members (KIP-345); v4 flexible.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import CoordinatorLoadInProgressError, KafkaError
from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

API_KEY = ApiKey.HEARTBEAT
MIN_VERSION, MAX_VERSION = 0, 4
Request = HeartbeatRequest


def handle(
    broker: Broker, context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse | Deferred[HeartbeatResponse]:
    """Extend the member's session. While the group loads, the answer has no error: an error would make clients rejoin
    for nothing."""
    try:
        return coordinators_of(broker).groups.heartbeat(request)
    except CoordinatorLoadInProgressError:
        return HeartbeatResponse()


def error_response(request: HeartbeatRequest, error: KafkaError) -> HeartbeatResponse:
    """Answer with the error."""
    return HeartbeatResponse(error_code=error.code)
