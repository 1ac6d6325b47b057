"""ShareGroupHeartbeat v1: members of share groups join, stay alive and leave by this request alone (KIP-932)."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.share.config import check_enabled
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

API_KEY = ApiKey.SHARE_GROUP_HEARTBEAT
MIN_VERSION, MAX_VERSION = 1, 1
Request = ShareGroupHeartbeatRequest


def handle(
    broker: Broker, context: RequestContext, request: ShareGroupHeartbeatRequest
) -> Steps[ShareGroupHeartbeatResponse]:
    """Answer one heartbeat; the answer holds the assignment when it has changed or the request names topics."""
    check_enabled(broker)
    return (yield from coordinators_of(broker).share_members.heartbeat(context, request))


def error_response(request: ShareGroupHeartbeatRequest, error: KafkaError) -> ShareGroupHeartbeatResponse:
    """Answer with the code and the message of the error."""
    return ShareGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
