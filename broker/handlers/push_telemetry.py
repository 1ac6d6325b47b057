"""PushTelemetry: metrics from a client (KIP-714). Version 0.

The metrics are checked as Kafka checks them and then dropped: no receiver for client metrics is part of the broker.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.controller.clients.client_metrics import subscription_of
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError, KafkaError, TelemetryTooLargeError, UnknownSubscriptionIdError
from tidelog.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from tidelog.protocol.types import ZERO_UUID

API_KEY = ApiKey.PUSH_TELEMETRY
MIN_VERSION = 0
MAX_VERSION = 0
Request = PushTelemetryRequest


def handle(broker: Broker, context: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse:
    """Check the metrics, and drop them.

    Raises InvalidRequestError, UnknownSubscriptionIdError (after which the client gets its subscription again),
    TelemetryTooLargeError.
    """
    if request.client_instance_id == ZERO_UUID:
        raise InvalidRequestError("Invalid request: a client pushes metrics under its instance id.")
    subscription = subscription_of(broker.configs, context, request.client_instance_id)
    if request.subscription_id != subscription.subscription_id:
        raise UnknownSubscriptionIdError
    if len(request.metrics) > broker.config.get_int("telemetry.max.bytes"):
        raise TelemetryTooLargeError
    return PushTelemetryResponse()


def error_response(request: PushTelemetryRequest, error: KafkaError) -> PushTelemetryResponse:
    """Build an answer that has only the error."""
    return PushTelemetryResponse(error_code=error.code)
