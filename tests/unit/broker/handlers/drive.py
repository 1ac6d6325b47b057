"""Sends a request through a handler as the dispatcher does: encoded and decoded in the wire form of one version."""

from __future__ import annotations

import importlib
from typing import Any, TypeVar

from tests.unit.broker.admin_broker import context_of
from tests.unit.broker.stepping import response_of
from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.schema.fields import Message

_Response = TypeVar("_Response", bound=Message)


def handler_of(request: Message) -> Any:
    """Return the module that handles this request."""
    return importlib.import_module(REGISTRY[request.API_KEY].module)


def drive(
    broker: Broker,
    request: Message,
    response_type: type[_Response],
    version: int | None = None,
    context: RequestContext | None = None,
) -> _Response:
    """Return the response as a client of this version reads it; by default the newest."""
    if version is None:
        version = request.VERSIONS.highest
    if context is None:
        context = context_of(version)
    context.api_version = version
    module = handler_of(request)
    received = module.Request.decode(memoryview(request.encode(version)), version)
    try:
        response = response_of(module.handle(broker, context, received))
    except KafkaError as error:
        response = response_of(module.error_response(received, error))
    return response_type.decode(memoryview(response.encode(version)), version)
