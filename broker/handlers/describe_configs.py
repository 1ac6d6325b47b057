"""DescribeConfigs: every key with its value, where it comes from and what else is set.

Versions: 0 says only whether a value is the default; 1+ source and synonyms; 3+ type and documentation; 4 flexible.
"""

from __future__ import annotations

from broker.broker import Broker, RequestContext
from broker.config_description import ConfigEntry, ConfigSource
from protocol.api_keys import ApiKey
from protocol.errors import KafkaError
from protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

API_KEY = ApiKey.DESCRIBE_CONFIGS
MIN_VERSION = 0
MAX_VERSION = 4
Request = DescribeConfigsRequest


def handle(broker: Broker, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Describe each resource by itself."""
    results = []
    for resource in request.resources:
        keys = None if resource.configuration_keys is None else frozenset(resource.configuration_keys)
        try:
            entries = broker.configs.describe(resource.resource_type, resource.resource_name, keys)
        except KafkaError as error:
            results.append(failed(resource, error))
            continue
        results.append(
            DescribeConfigsResult(
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[config_result(entry, request) for entry in entries],
            )
        )
    return DescribeConfigsResponse(results=results)


def config_result(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    """One key, with what the client asked for."""
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        is_default=entry.source is ConfigSource.DEFAULT,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in synonyms
        ],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


def failed(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    """The answer for a resource that could not be described."""
    return DescribeConfigsResult(
        error_code=error.code,
        error_message=error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def error_response(request: DescribeConfigsRequest, error: KafkaError) -> DescribeConfigsResponse:
    """Every resource with the error."""
    return DescribeConfigsResponse(results=[failed(resource, error) for resource in request.resources])
