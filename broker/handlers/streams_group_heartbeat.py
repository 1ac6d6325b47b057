"""StreamsGroupHeartbeat v0: members of streams groups join, stay alive and leave by this request alone (KIP-1071)."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.group.streams.config import check_enabled
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

API_KEY = ApiKey.STREAMS_GROUP_HEARTBEAT
MIN_VERSION, MAX_VERSION = 0, 0
Request = StreamsGroupHeartbeatRequest


def handle(
    broker: Broker, context: RequestContext, request: StreamsGroupHeartbeatRequest
) -> Deferred[StreamsGroupHeartbeatResponse]:
    """Answer one heartbeat; the answer holds the tasks when they have changed or the member joins."""
    check_enabled(broker)
    return coordinators_of(broker).streams_members.heartbeat(context, request)


def error_response(request: StreamsGroupHeartbeatRequest, error: KafkaError) -> StreamsGroupHeartbeatResponse:
    """Answer with the code and the message of the error."""
    return StreamsGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
