"""AlterConfigs: replace all of a resource's own configs. Versions 0 to 2 differ in encoding only."""

from __future__ import annotations

from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.handlers.config_change import check_and_change, check_named_once, key_of
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps, answer_each, find_distinct, strip_traceback
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Notes
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError, KafkaError
from tidelog.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

API_KEY = ApiKey.ALTER_CONFIGS
MIN_VERSION = 0
MAX_VERSION = 2
Request = AlterConfigsRequest


def handle(broker: Broker, context: RequestContext, request: AlterConfigsRequest) -> Steps[AlterConfigsResponse]:
    """Change each resource by itself; configs that the request does not name are removed. The answer is sent when all
    changes are durable."""
    with Notes(broker.late_lines) as notes:
        results = yield from replace_each(broker, context, request, notes)
        yield from notes.write()
    responses = yield from answer_each(results, answer)
    return AlterConfigsResponse(responses=responses)


def replace_each(
    broker: Broker, context: RequestContext, request: AlterConfigsRequest, notes: Notes
) -> Steps[list[tuple[AlterConfigsResource, Deferred[None] | KafkaError]]]:
    """Begin the change of each resource; return each resource with its change, or with the error that refuses it."""
    results: list[tuple[AlterConfigsResource, Deferred[None] | KafkaError]] = []
    repeated = (yield from find_distinct(request.resources, key_of)).repeated
    for resource in request.resources:
        try:
            check_named_once(resource, repeated)
            kind, name, texts = resource.resource_type, resource.resource_name, read_texts(resource)
            work = partial(broker.configs.replace, kind, name, texts, request.validate_only)
            check = broker.configs.stores.check_replacement(kind, name, texts)
            noted = None if request.validate_only else notes
            results.append((resource, (yield from check_and_change(broker, context, resource, check, work, noted))))
        except KafkaError as error:
            results.append((resource, strip_traceback(error)))
        yield None
    return results


def read_texts(resource: AlterConfigsResource) -> dict[str, str]:
    """Return the values to set, as texts. Raises InvalidRequestError for a key without a value, or named twice."""
    texts: dict[str, str] = {}
    for config in resource.configs:
        if config.value is None:
            raise InvalidRequestError(f"Null value not supported for : {config.name}")
        if config.name in texts:
            raise InvalidRequestError(f"Error due to duplicate config keys: {config.name}")
        texts[config.name] = config.value
    return texts


def answer(resource: AlterConfigsResource, error: KafkaError | None = None) -> AlterConfigsResourceResponse:
    """Build one resource's answer."""
    return AlterConfigsResourceResponse(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def error_response(request: AlterConfigsRequest, error: KafkaError) -> AlterConfigsResponse:
    """Answer every resource with the error."""
    return AlterConfigsResponse(responses=[answer(resource, error) for resource in request.resources])
