"""PushTelemetry: metrics from a client (KIP-714). Version 0.

Id, subscription, compression type and size are checked as Kafka checks them. Then the metrics are dropped: no receiver
for client metrics is part of the broker. Nothing is kept about a client, so a push that comes too early, or after the
client's last one, is not refused.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.controller.clients.client_metrics import subscription_of
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    InvalidRequestError,
    KafkaError,
    TelemetryTooLargeError,
    UnknownSubscriptionIdError,
    UnsupportedCompressionTypeError,
)
from tidelog.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from tidelog.protocol.types import ZERO_UUID

API_KEY = ApiKey.PUSH_TELEMETRY
MIN_VERSION = 0
MAX_VERSION = 0
Request = PushTelemetryRequest

LAST_COMPRESSION_TYPE = 4
"""Largest number of a compression type, that of zstd, as in record batches."""


def handle(broker: Broker, context: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse:
    """Check the metrics, and drop them.

    Raises InvalidRequestError, UnknownSubscriptionIdError (after which the client gets its subscription again),
    UnsupportedCompressionTypeError, TelemetryTooLargeError.
    """
    if request.client_instance_id == ZERO_UUID:
        raise InvalidRequestError("Invalid request: a client pushes metrics under its instance id.")
    subscription = subscription_of(broker.configs, context, request.client_instance_id)
    if request.subscription_id != subscription.subscription_id:
        raise UnknownSubscriptionIdError
    if not 0 <= request.compression_type <= LAST_COMPRESSION_TYPE:
        raise UnsupportedCompressionTypeError(f"Unknown compression type {request.compression_type}")
    if len(request.metrics) > broker.config.get_int("telemetry.max.bytes"):
        raise TelemetryTooLargeError
    return PushTelemetryResponse()


def error_response(request: PushTelemetryRequest, error: KafkaError) -> PushTelemetryResponse:
    """Build an answer that has only the error."""
    return PushTelemetryResponse(error_code=error.code)
