"""IncrementalAlterConfigs: set and delete single keys, append to and subtract from lists (KIP-339). Versions 0, 1."""

from __future__ import annotations

from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.config.changes import Change, operation_of
from tidelog.broker.handlers.config_change import check_and_change, check_named_once, key_of
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps, answer_each, apply_each, find_distinct, strip_traceback
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Notes
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
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
) -> Steps[IncrementalAlterConfigsResponse]:
    """Change each resource by itself. The answer is sent when all changes are durable."""
    with Notes(broker.late_lines) as notes:
        results = yield from change_each(broker, context, request, notes)
        yield from notes.write()
    responses = yield from answer_each(results, answer)
    return IncrementalAlterConfigsResponse(responses=responses)


def change_each(
    broker: Broker, context: RequestContext, request: IncrementalAlterConfigsRequest, notes: Notes
) -> Steps[list[tuple[AlterConfigsResource, Deferred[None] | KafkaError]]]:
    """Begin the change of each resource; return each resource with its change, or with the error that refuses it."""
    results: list[tuple[AlterConfigsResource, Deferred[None] | KafkaError]] = []
    repeated = (yield from find_distinct(request.resources, key_of)).repeated
    for resource in request.resources:
        try:
            check_named_once(resource, repeated)
            keys = yield from apply_each(resource.configs, change_of)
            work = partial(
                broker.configs.alter, resource.resource_type, resource.resource_name, keys, request.validate_only
            )
            check = broker.configs.stores.check(resource.resource_type, resource.resource_name, keys)
            noted = None if request.validate_only else notes
            results.append((resource, (yield from check_and_change(broker, context, resource, check, work, noted))))
        except KafkaError as error:
            results.append((resource, strip_traceback(error)))
        yield None
    return results


def change_of(config: AlterableConfig) -> Change:
    """Return one key's change. Raises InvalidRequestError."""
    return Change(config.name, operation_of(config.config_operation), config.value)


def answer(resource: AlterConfigsResource, error: KafkaError | None = None) -> AlterConfigsResourceResponse:
    """Build one resource's answer."""
    return AlterConfigsResourceResponse(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def error_response(request: IncrementalAlterConfigsRequest, error: KafkaError) -> IncrementalAlterConfigsResponse:
    """Answer every resource with the error."""
    return IncrementalAlterConfigsResponse(responses=[answer(resource, error) for resource in request.resources])
