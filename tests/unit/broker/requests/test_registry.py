from __future__ import annotations

import importlib
import inspect

import pytest

from tests.unit.broker.stepping import response_of
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import UnknownServerError
from tidelog.protocol.schema.fields import Message


@pytest.mark.parametrize("api_key", sorted(REGISTRY), ids=lambda key: ApiKey(key).name)
def test_table_and_module_agree(api_key: int) -> None:
    entry = REGISTRY[api_key]
    module = importlib.import_module(entry.module)
    assert (api_key, entry.min_version, entry.max_version) == (module.API_KEY, module.MIN_VERSION, module.MAX_VERSION)
    assert issubclass(module.Request, Message)
    assert api_key == module.Request.API_KEY
    assert (entry.min_version, entry.max_version) == module.Request.VERSIONS
    if not inspect.isbuiltin(module.handle):  # a compiled one has no signature: where it is not compiled, it has
        assert len(inspect.signature(module.handle).parameters) == 3


@pytest.mark.parametrize("api_key", sorted(REGISTRY), ids=lambda key: ApiKey(key).name)
def test_an_error_can_be_answered_in_every_version(api_key: int) -> None:
    entry = REGISTRY[api_key]
    module = importlib.import_module(entry.module)
    for version in range(entry.min_version, entry.max_version + 1):
        request = module.Request.decode(memoryview(module.Request().encode(version)), version)
        response = response_of(module.error_response(request, UnknownServerError()))
        if api_key in (ApiKey.FETCH, ApiKey.SHARE_FETCH):
            assert response.encode_parts(version)
        else:
            type(response).decode(memoryview(response.encode(version)), version)


def test_the_table_is_sorted() -> None:
    assert list(REGISTRY) == sorted(REGISTRY)
