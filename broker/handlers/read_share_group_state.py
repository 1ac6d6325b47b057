"""ReadShareGroupState v0: read states of share partitions, for the broker that leads the partitions (KIP-932)."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.handlers.share_state import build_error, serve_share_state
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
)

API_KEY = ApiKey.READ_SHARE_GROUP_STATE
MIN_VERSION, MAX_VERSION = 0, 0
Request = ReadShareGroupStateRequest


def handle(
    broker: Broker, context: RequestContext, request: ReadShareGroupStateRequest
) -> Steps[ReadShareGroupStateResponse]:
    """Read states, and fence earlier leaders; the answer is sent when the new leader epochs are committed."""
    response: ReadShareGroupStateResponse = yield from serve_share_state(broker, API_KEY, request)
    return response


def error_response(request: ReadShareGroupStateRequest, error: KafkaError) -> Steps[ReadShareGroupStateResponse]:
    """Build a response with one error for every share partition."""
    response: ReadShareGroupStateResponse = yield from build_error(API_KEY, request, error)
    return response
