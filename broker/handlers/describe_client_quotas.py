"""DescribeClientQuotas: the quotas that match a filter (KIP-546). Versions 0, 1 (flexible)."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.controller.clients.client_quotas import ClientQuotas, FilterComponent
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

API_KEY = ApiKey.DESCRIBE_CLIENT_QUOTAS
MIN_VERSION = 0
MAX_VERSION = 1
Request = DescribeClientQuotasRequest


def handle(
    broker: Broker, context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """Describe the quotas of the metadata image that match the request's filter."""
    components = [FilterComponent(part.entity_type, part.match_type, part.match) for part in request.components]
    found = ClientQuotas(broker.controller).describe(components, request.strict)
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            EntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[ValueData(key=key, value=value) for key, value in values.items()],
            )
            for entity, values in found.items()
        ],
    )


def error_response(request: DescribeClientQuotasRequest, error: KafkaError) -> DescribeClientQuotasResponse:
    """Build an answer that has only the error."""
    return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
