"""AlterConfigs: put a whole set of configs in place of a resource's own. Versions 0 to 2 differ in encoding only."""

from __future__ import annotations

from broker.broker import Broker, RequestContext
from protocol.api_keys import ApiKey
from protocol.errors import InvalidRequestError, KafkaError
from protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

API_KEY = ApiKey.ALTER_CONFIGS
MIN_VERSION = 0
MAX_VERSION = 2
Request = AlterConfigsRequest


def handle(broker: Broker, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Change each resource by itself; what is set on it and not named is removed."""
    responses = []
    for resource in request.resources:
        try:
            texts = given_texts(resource)
            broker.configs.replace(resource.resource_type, resource.resource_name, texts, request.validate_only)
            responses.append(answer(resource))
        except KafkaError as error:
            responses.append(answer(resource, error))
    return AlterConfigsResponse(responses=responses)


def given_texts(resource: AlterConfigsResource) -> dict[str, str]:
    """The texts to set. Raises InvalidRequestError for a key without a value, or named twice."""
    texts: dict[str, str] = {}
    for config in resource.configs:
        if config.value is None:
            raise InvalidRequestError(f"Null value not supported for : {config.name}")
        if config.name in texts:
            raise InvalidRequestError(f"Error due to duplicate config keys: {config.name}")
        texts[config.name] = config.value
    return texts


def answer(resource: AlterConfigsResource, error: KafkaError | None = None) -> AlterConfigsResourceResponse:
    """One resource's answer."""
    return AlterConfigsResourceResponse(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def error_response(request: AlterConfigsRequest, error: KafkaError) -> AlterConfigsResponse:
    """Every resource with the error."""
    return AlterConfigsResponse(responses=[answer(resource, error) for resource in request.resources])
