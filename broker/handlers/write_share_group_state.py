"""WriteShareGroupState v0-1: store changes of share partitions' states, for the broker that leads them (KIP-932).

v1 adds the delivery complete count (KIP-1226).
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.handlers.share_state import build_error, serve_share_state
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)

API_KEY = ApiKey.WRITE_SHARE_GROUP_STATE
MIN_VERSION, MAX_VERSION = 0, 1
Request = WriteShareGroupStateRequest


def handle(
    broker: Broker, context: RequestContext, request: WriteShareGroupStateRequest
) -> Steps[WriteShareGroupStateResponse]:
    """Store changes; the answer is sent when they are committed."""
    response: WriteShareGroupStateResponse = yield from serve_share_state(broker, API_KEY, request)
    return response


def error_response(request: WriteShareGroupStateRequest, error: KafkaError) -> Steps[WriteShareGroupStateResponse]:
    """Build a response with one error for every share partition."""
    response: WriteShareGroupStateResponse = yield from build_error(API_KEY, request, error)
    return response
