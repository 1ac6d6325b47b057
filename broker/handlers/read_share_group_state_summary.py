"""ReadShareGroupStateSummary v0-1: read the start offsets of share partitions, for a group coordinator (KIP-932).

v1 adds the delivery complete count (KIP-1226).
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.handlers.share_state import build_error, serve_share_state
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)

API_KEY = ApiKey.READ_SHARE_GROUP_STATE_SUMMARY
MIN_VERSION, MAX_VERSION = 0, 1
Request = ReadShareGroupStateSummaryRequest


def handle(
    broker: Broker, context: RequestContext, request: ReadShareGroupStateSummaryRequest
) -> Steps[ReadShareGroupStateSummaryResponse]:
    """Read start offsets; the answer is sent when they are committed."""
    response: ReadShareGroupStateSummaryResponse = yield from serve_share_state(broker, API_KEY, request)
    return response


def error_response(
    request: ReadShareGroupStateSummaryRequest, error: KafkaError
) -> Steps[ReadShareGroupStateSummaryResponse]:
    """Build a response with one error for every share partition."""
    response: ReadShareGroupStateSummaryResponse = yield from build_error(API_KEY, request, error)
    return response
