"""Header versions; the table itself is checked against Kafka in tests/contract."""

from __future__ import annotations

import pytest

from tidelog.protocol.api_keys import FIRST_FLEXIBLE_VERSION, ApiKey, request_header_version, response_header_version
from tidelog.protocol.errors import InvalidRequestError


def test_every_key_has_a_first_flexible_version() -> None:
    assert [key.value for key in ApiKey] == list(range(len(FIRST_FLEXIBLE_VERSION)))


@pytest.mark.parametrize(
    ("api_key", "version", "request_header", "response_header"),
    [
        (ApiKey.PRODUCE, 8, 1, 0),
        (ApiKey.PRODUCE, 9, 2, 1),
        (ApiKey.API_VERSIONS, 2, 1, 0),
        (ApiKey.API_VERSIONS, 3, 2, 0),
        (ApiKey.API_VERSIONS, 99, 2, 0),
        (ApiKey.CONTROLLED_SHUTDOWN, 0, 0, 0),
        (ApiKey.CONTROLLED_SHUTDOWN, 1, 1, 0),
        (ApiKey.SASL_HANDSHAKE, 1, 1, 0),
        (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 2, 1),
    ],
)
def test_each_api_version_has_its_header_versions(
    api_key: ApiKey, version: int, request_header: int, response_header: int
) -> None:
    assert request_header_version(api_key, version) == request_header
    assert response_header_version(api_key, version) == response_header


@pytest.mark.parametrize("api_key", [-1, len(FIRST_FLEXIBLE_VERSION), 0x7FFF])
def test_unknown_key_is_an_invalid_request(api_key: int) -> None:
    with pytest.raises(InvalidRequestError, match="API key"):
        request_header_version(api_key, 0)
    with pytest.raises(InvalidRequestError, match="API key"):
        response_header_version(api_key, 0)
