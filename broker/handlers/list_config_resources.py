"""ListConfigResources: resources with configs, by type (KIP-1142). Version 0 lists client metrics only; 1 any types.

All registered brokers with the client's listener, their loggers, and all topics are listed; groups and client metrics
only if they have own configs. Source: KafkaApis of Kafka 4.3.
"""

from __future__ import annotations

from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, UnsupportedVersionError
from tidelog.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

API_KEY = ApiKey.LIST_CONFIG_RESOURCES
MIN_VERSION = 0
MAX_VERSION = 1
Request = ListConfigResourcesRequest


def handle(
    broker: Broker, context: RequestContext, request: ListConfigResourcesRequest
) -> Steps[ListConfigResourcesResponse]:
    """List all resources of the requested types. Raises UnsupportedVersionError for a type that does not exist."""
    known = {int(kind) for kind in ResourceType}
    kinds = request.resource_types if context.api_version > 0 else [ResourceType.CLIENT_METRICS]
    resources = []
    for kind in dict.fromkeys(kinds) if kinds else sorted(known):
        if kind not in known:
            raise UnsupportedVersionError(f"There is no config resource type {kind}.")
        names = list_names(broker, context, ResourceType(kind))
        resources += yield from apply_each(names, partial(build_resource, kind))
    return ListConfigResourcesResponse(config_resources=resources)


def build_resource(kind: int, name: str) -> ConfigResource:
    """Build the part of the response that is about one resource."""
    return ConfigResource(resource_name=name, resource_type=kind)


def list_names(broker: Broker, context: RequestContext, kind: ResourceType) -> list[str]:
    """List the names of the resources of a type."""
    if kind not in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return broker.configs.resource_names(kind)
    nodes = [*broker.nodes.alive_nodes(context), *broker.nodes.fenced_nodes(context)]
    return [str(node_id) for node_id in sorted(node.node_id for node in nodes)]


def error_response(request: ListConfigResourcesRequest, error: KafkaError) -> ListConfigResourcesResponse:
    """Build an answer that has only the error."""
    return ListConfigResourcesResponse(error_code=error.code)
