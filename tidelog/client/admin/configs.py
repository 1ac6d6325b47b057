"""Requests that describe and change configurations of topics, brokers, groups and client metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.client.cluster import Address, Cluster, ask, raise_for_code
from tidelog.client.connection import ClientError
from tidelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from tidelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

RESOURCE_TYPES = {"topic": 2, "broker": 4, "broker-logger": 8, "client-metrics": 16, "group": 32}
"""Names of resource types and their numbers in the protocol."""
SOURCES = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "file",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}
"""Number of a source in the protocol (KIP-226) -> its name here."""
OWN_SOURCES = {
    "topic": ("topic",),
    "broker": ("broker", "all brokers"),
    "broker-logger": ("broker logger",),
    "client-metrics": ("client metrics",),
    "group": ("group",),
}
"""Resource type -> sources of values that were set for the resource or, for a broker, for all brokers."""
_NODE_RESOURCES = ("broker", "broker-logger")
_SET, _DELETE = 0, 1
_EMPTY_NAME = ""


class Resource(NamedTuple):
    """A resource that has a configuration; a broker with an empty name means all brokers."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name or '(all)'}"


class ConfigEntry(NamedTuple):
    """One key with its value, which is None if the key is sensitive or has neither a value nor a default."""

    key: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    documentation: str | None


def describe_configs(
    cluster: Cluster, resource: Resource, keys: Sequence[str] | None = None, *, documentation: bool = False
) -> list[ConfigEntry]:
    """Return these keys of a resource, or all keys, sorted. Raises ClientError, KafkaError."""
    asked = DescribeConfigsResource(
        resource_type=RESOURCE_TYPES[resource.kind],
        resource_name=resource.name,
        configuration_keys=None if keys is None else list(keys),
    )
    request = DescribeConfigsRequest(resources=[asked], include_documentation=documentation)
    client = cluster.client_for(address_for(cluster, resource)) if is_of_one_node(resource) else None
    if client is None:
        (answer,) = cluster.ask(request, DescribeConfigsResponse).results
    else:
        (answer,) = ask(client, request, DescribeConfigsResponse, DescribeConfigsResponse.VERSIONS.highest).results
    raise_for_code(answer.error_code, f"configuration of {resource}", answer.error_message)
    return sorted(map(_entry_of, answer.configs))


def check_known(resource: Resource, keys: Iterable[str], entries: Iterable[ConfigEntry]) -> None:
    """Raise ClientError for keys that a described resource does not have."""
    unknown = sorted(set(keys) - {entry.key for entry in entries})
    if unknown:
        raise ClientError(f"{resource} has no configuration {', '.join(unknown)}")


def alter_configs(
    cluster: Cluster, resource: Resource, values: Mapping[str, str | None], *, validate_only: bool = False
) -> None:
    """Set keys, or unset those whose value is None; the others stay.

    A broker ignores an unknown key that is unset, so these are checked first, as Kafka's tool does. Raises ClientError,
    KafkaError.
    """
    unset = [key for key, value in values.items() if value is None]
    if unset:
        check_known(resource, unset, describe_configs(cluster, resource))
    changes = [
        AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in values.items()
    ]
    altered = AlterConfigsResource(
        resource_type=RESOURCE_TYPES[resource.kind], resource_name=resource.name, configs=changes
    )
    request = IncrementalAlterConfigsRequest(resources=[altered], validate_only=validate_only)
    if is_of_one_node(resource):
        client = cluster.client_for(address_for(cluster, resource))
        highest = IncrementalAlterConfigsResponse.VERSIONS.highest
        (answer,) = ask(client, request, IncrementalAlterConfigsResponse, highest).responses
    else:
        (answer,) = cluster.ask(request, IncrementalAlterConfigsResponse).responses
    raise_for_code(answer.error_code, f"configuration of {resource}", answer.error_message)


def is_of_one_node(resource: Resource) -> bool:
    """Return whether only one broker has the resource's configuration."""
    return resource.kind in _NODE_RESOURCES and resource.name != _EMPTY_NAME


def address_for(cluster: Cluster, resource: Resource) -> Address:
    """Return the address of the broker that has the resource's configuration. Raises ClientError, KafkaError."""
    brokers = cluster.brokers()
    numbers = {str(number): number for number in brokers}
    if resource.name not in numbers:
        raise ClientError(f"no broker {resource.name!r}; the brokers' ids are {', '.join(map(str, sorted(brokers)))}")
    return brokers[numbers[resource.name]]


def _entry_of(entry: DescribeConfigsResourceResult) -> ConfigEntry:
    source = SOURCES.get(entry.config_source, "default" if entry.is_default else "unknown")
    return ConfigEntry(
        entry.name, entry.value, source, entry.read_only, entry.is_sensitive, entry.documentation or None
    )
