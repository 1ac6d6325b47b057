"""ApiVersions: the versions of each API, as the registry of handlers has them. A cluster's member lists an API that it
forwards only in versions that the active controller serves, too.

v1 adds the throttle time; v3 flexible (its response header stays version 0, so that clients which do not know the
broker yet can read it); v4 allows features whose lowest version is 0 (KAFKA-17011). An unknown version is answered by
the dispatcher in version 0 with UNSUPPORTED_VERSION (KIP-511). Client names and versions are checked as Kafka checks
them.
"""

from __future__ import annotations

import re

from tidelog.broker.broker import Broker
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.controller.features import supported_features
from tidelog.broker.controller.metadata_controller import ForwardedVersions
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.registry import REGISTRY
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError, KafkaError, UnsupportedVersionError
from tidelog.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

API_KEY = ApiKey.API_VERSIONS
MIN_VERSION, MAX_VERSION = 0, 4
Request = ApiVersionsRequest

FIRST_VERSION_WITH_LEVEL_0 = 4
_CLIENT_METRICS_APIS = (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY)
_VALID_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(broker: Broker, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Answer with the served APIs and features. Raises InvalidRequestError for a malformed name or version of the
    client's software."""
    if context.api_version >= 3:
        software = request.client_software_name, request.client_software_version
        if not all(map(_VALID_SOFTWARE.fullmatch, software)):
            raise InvalidRequestError
        context.client_software = software
    metadata = broker.metadata
    return ApiVersionsResponse(
        api_keys=list_served_apis(broker),
        supported_features=list_supported_features(context.api_version),
        finalized_features_epoch=metadata.features_epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in metadata.features.items()
        ],
    )


def error_response(request: ApiVersionsRequest | None, error: KafkaError) -> ApiVersionsResponse:
    """Answer with the error; with UNSUPPORTED_VERSION also list the registered APIs, so that the client can choose a
    version (KIP-511).
    """
    entries = list_registered_apis() if isinstance(error, UnsupportedVersionError) else []
    return ApiVersionsResponse(error_code=error.code, api_keys=entries)


def list_supported_features(version: int) -> list[SupportedFeatureKey]:
    """List the features that this broker supports; before v4 without those whose lowest level is 0 (KAFKA-17011)."""
    return [
        SupportedFeatureKey(name=name, min_version=levels.lowest, max_version=levels.highest)
        for name, levels in supported_features().items()
        if levels.lowest > 0 or version >= FIRST_VERSION_WITH_LEVEL_0
    ]


def list_served_apis(broker: Broker) -> list[ApiVersion]:
    """Return the served APIs; those of client metrics only while there is a subscription (KIP-714).

    Clients that see these APIs ask for subscriptions on each connection, and librdkafka then prints a line.
    """
    entries = limit_versions(list_registered_apis(), broker.controller.forwarded_versions())
    if broker.configs.resource_names(ResourceType.CLIENT_METRICS):
        return entries
    return [entry for entry in entries if entry.api_key not in _CLIENT_METRICS_APIS]


def limit_versions(entries: list[ApiVersion], limits: ForwardedVersions) -> list[ApiVersion]:
    """Limit forwarded APIs to versions that the active controller serves; leave out APIs without such a version."""
    for entry in entries:
        lowest, highest = limits.get(entry.api_key, (entry.min_version, entry.max_version)) or (0, -1)
        entry.min_version, entry.max_version = max(entry.min_version, lowest), min(entry.max_version, highest)
    return [entry for entry in entries if entry.min_version <= entry.max_version]


def list_registered_apis() -> list[ApiVersion]:
    """Return each API of the registry with its versions."""
    return [
        ApiVersion(api_key=key, min_version=entry.min_version, max_version=entry.max_version)
        for key, entry in sorted(REGISTRY.items())
    ]
