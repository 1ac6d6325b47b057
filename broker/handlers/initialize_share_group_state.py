"""InitializeShareGroupState v0: create states of share partitions, for a group coordinator (KIP-932)."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.handlers.share_state import build_error, serve_share_state
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)

API_KEY = ApiKey.INITIALIZE_SHARE_GROUP_STATE
MIN_VERSION, MAX_VERSION = 0, 0
Request = InitializeShareGroupStateRequest


def handle(
    broker: Broker, context: RequestContext, request: InitializeShareGroupStateRequest
) -> Steps[InitializeShareGroupStateResponse]:
    """Create states; the answer is sent when they are committed."""
    response: InitializeShareGroupStateResponse = yield from serve_share_state(broker, API_KEY, request)
    return response


def error_response(
    request: InitializeShareGroupStateRequest, error: KafkaError
) -> Steps[InitializeShareGroupStateResponse]:
    """Build a response with one error for every share partition."""
    response: InitializeShareGroupStateResponse = yield from build_error(API_KEY, request, error)
    return response
