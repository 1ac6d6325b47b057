"""DescribeClientQuotas: the quotas that match a filter (KIP-546). Versions 0, 1 (flexible)."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.broker.broker import Broker
from tidelog.broker.controller.clients.client_quotas import ClientQuotas, Entity, FilterComponent
from tidelog.broker.loop.steps import Steps, apply_each
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
) -> Steps[DescribeClientQuotasResponse]:
    """Describe the quotas of the metadata image that match the request's filter. Raises InvalidRequestError,
    UnsupportedVersionError."""
    components = [FilterComponent(part.entity_type, part.match_type, part.match) for part in request.components]
    found = yield from ClientQuotas(broker.controller).describe(components, request.strict)
    entries = yield from apply_each(found.items(), lambda pair: describe_entity(*pair))
    return DescribeClientQuotasResponse(error_message=None, entries=entries)


def describe_entity(entity: Entity, values: Mapping[str, float]) -> EntryData:
    """Build the part of the response that is about one entity."""
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        values=[ValueData(key=key, value=value) for key, value in values.items()],
    )


def error_response(request: DescribeClientQuotasRequest, error: KafkaError) -> DescribeClientQuotasResponse:
    """Build an answer that has only the error."""
    return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
