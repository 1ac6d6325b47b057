"""ConsumerGroupHeartbeat: members of consumer groups join, stay alive, reconcile and leave by this request alone
(KIP-848).

v1 lets the client choose its member id, and adds subscription by regular expression.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

API_KEY = ApiKey.CONSUMER_GROUP_HEARTBEAT
MIN_VERSION, MAX_VERSION = 0, 1
Request = ConsumerGroupHeartbeatRequest


def handle(
    broker: Broker, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Deferred[ConsumerGroupHeartbeatResponse]:
    """Answer one heartbeat; the answer holds the assignment if it has changed, the member joins, or the request has all
    fields."""
    return coordinators_of(broker).groups.consumer_group_heartbeat(context, request)


def error_response(request: ConsumerGroupHeartbeatRequest, error: KafkaError) -> ConsumerGroupHeartbeatResponse:
    """Answer with the error and its message."""
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
