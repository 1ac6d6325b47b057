"""DeleteShareGroupState v0: delete states of share partitions, for a group coordinator (KIP-932)."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.handlers.share_state import build_error, serve_share_state
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
)

API_KEY = ApiKey.DELETE_SHARE_GROUP_STATE
MIN_VERSION, MAX_VERSION = 0, 0
Request = DeleteShareGroupStateRequest


def handle(
    broker: Broker, context: RequestContext, request: DeleteShareGroupStateRequest
) -> Steps[DeleteShareGroupStateResponse]:
    """Delete states; the answer is sent when the deletions are committed."""
    response: DeleteShareGroupStateResponse = yield from serve_share_state(broker, API_KEY, request)
    return response


def error_response(request: DeleteShareGroupStateRequest, error: KafkaError) -> Steps[DeleteShareGroupStateResponse]:
    """Build a response with one error for every share partition."""
    response: DeleteShareGroupStateResponse = yield from build_error(API_KEY, request, error)
    return response
