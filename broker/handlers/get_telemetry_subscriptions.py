"""GetTelemetrySubscriptions: the metrics that a client should push (KIP-714). Version 0.

A client without an id is given one. Without a subscription the list is empty, and the client asks again later.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.controller.clients.client_metrics import subscription_of
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from tidelog.protocol.types import ZERO_UUID, SystemRandom, random_uuid

API_KEY = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS
MIN_VERSION = 0
MAX_VERSION = 0
Request = GetTelemetrySubscriptionsRequest

ZSTD, LZ4, GZIP, SNAPPY = 4, 3, 1, 2
"""Numbers of compression types, as in record batches."""


def handle(
    broker: Broker, context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Answer with the subscription that applies to this client."""
    client_instance_id = request.client_instance_id
    if client_instance_id == ZERO_UUID:
        client_instance_id = random_uuid(SystemRandom())
    subscription = subscription_of(broker.configs, context, client_instance_id)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=client_instance_id,
        subscription_id=subscription.subscription_id,
        accepted_compression_types=[ZSTD, LZ4, GZIP, SNAPPY],
        push_interval_ms=subscription.push_interval_ms,
        telemetry_max_bytes=broker.config.get_int("telemetry.max.bytes"),
        delta_temporality=True,
        requested_metrics=subscription.metrics,
    )


def error_response(request: GetTelemetrySubscriptionsRequest, error: KafkaError) -> GetTelemetrySubscriptionsResponse:
    """Build an answer that has only the error."""
    return GetTelemetrySubscriptionsResponse(error_code=error.code)
