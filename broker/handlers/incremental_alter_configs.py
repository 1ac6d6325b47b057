"""IncrementalAlterConfigs: set and delete single keys, append to and subtract from lists (KIP-339). Versions 0, 1."""

from __future__ import annotations

from broker.broker import Broker, RequestContext
from broker.config_manager import Change, operation_of
from protocol.api_keys import ApiKey
from protocol.errors import KafkaError
from protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

API_KEY = ApiKey.INCREMENTAL_ALTER_CONFIGS
MIN_VERSION = 0
MAX_VERSION = 1
Request = IncrementalAlterConfigsRequest


def handle(
    broker: Broker, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change each resource by itself."""
    responses = []
    for resource in request.resources:
        try:
            changes = [
                Change(config.name, operation_of(config.config_operation), config.value) for config in resource.configs
            ]
            broker.configs.alter(resource.resource_type, resource.resource_name, changes, request.validate_only)
            responses.append(answer(resource))
        except KafkaError as error:
            responses.append(answer(resource, error))
    return IncrementalAlterConfigsResponse(responses=responses)


def answer(resource: AlterConfigsResource, error: KafkaError | None = None) -> AlterConfigsResourceResponse:
    """One resource's answer."""
    return AlterConfigsResourceResponse(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def error_response(request: IncrementalAlterConfigsRequest, error: KafkaError) -> IncrementalAlterConfigsResponse:
    """Every resource with the error."""
    return IncrementalAlterConfigsResponse(responses=[answer(resource, error) for resource in request.resources])
