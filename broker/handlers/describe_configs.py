"""DescribeConfigs: every config key with its value, the value's source, and the values of all sources (synonyms).

v0 says only whether a value is the default; v1 adds source and synonyms; v3 adds type and documentation; v4 is
flexible.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.config.description import ConfigEntry, ConfigSource
from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError, KafkaError
from tidelog.protocol.messages.describe_configs import (
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

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Largest size in bytes of an answer: enough for some 30,000 topics with all keys. Without a limit a request of 240
KB was answered with 1.4 GB."""


def handle(broker: Broker, context: RequestContext, request: DescribeConfigsRequest) -> Steps[DescribeConfigsResponse]:
    """Describe each resource by itself, and only once if it is named several times.

    Raises InvalidRequestError when the answer would be longer than MAX_ANSWER_BYTES.
    """
    described = DescribedKeys(request)
    once = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    results = []
    for resource in once.values():
        yield None
        keys = (
            frozenset(resource.configuration_keys) if resource.configuration_keys else None
        )  # an empty list asks for all keys
        try:
            entries = broker.configs.describe(resource.resource_type, resource.resource_name, keys)
        except KafkaError as error:
            results.append(build_error_result(resource, error))
            continue
        results.append(
            DescribeConfigsResult(
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=described.results(entries),
            )
        )
    return DescribeConfigsResponse(results=results)


class DescribedKeys:
    """Described config keys of one answer, and their size. Resources with the same entry for a key share one object;
    its size counts for each of them."""

    __slots__ = ("_known", "_request", "_size")

    def __init__(self, request: DescribeConfigsRequest) -> None:
        self._request = request
        self._known: dict[tuple[str, str | None, int], tuple[ConfigEntry, DescribeConfigsResourceResult, int]] = {}
        self._size = 0

    def results(self, entries: list[ConfigEntry]) -> list[DescribeConfigsResourceResult]:
        """Convert entries to the response's form. Raises InvalidRequestError when the answer becomes too long."""
        found = [self._result(entry) for entry in entries]
        if self._size > MAX_ANSWER_BYTES:
            raise InvalidRequestError(
                f"The answer would be longer than {MAX_ANSWER_BYTES} bytes: ask for fewer resources, or for some keys."
            )
        return found

    def _result(self, entry: ConfigEntry) -> DescribeConfigsResourceResult:
        identity = (entry.name, entry.value, entry.source)
        known = self._known.get(identity)
        if known is None or known[0] != entry:
            result = config_result(entry, self._request)
            known = self._known[identity] = (entry, result, size_of(result))
        self._size += known[2]
        return known[1]


def size_of(result: DescribeConfigsResourceResult) -> int:
    """Estimate the bytes of a described key: its texts with two bytes of length each, and ten for the other fields."""
    texts = [result.name, result.value, result.documentation]
    for synonym in result.synonyms:
        texts += [synonym.name, synonym.value]
    return 10 + sum(2 + len(text) for text in texts if text)


def config_result(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    """Describe one key, with its synonyms and documentation if the client asked for them."""
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


def build_error_result(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    """Build the answer for a resource that could not be described."""
    return DescribeConfigsResult(
        error_code=error.code,
        error_message=error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def error_response(request: DescribeConfigsRequest, error: KafkaError) -> Steps[DescribeConfigsResponse]:
    """Build an answer in which every resource has the error."""
    results = yield from apply_each(request.resources, lambda resource: build_error_result(resource, error))
    return DescribeConfigsResponse(results=results)
