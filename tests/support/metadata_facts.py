"""Metadata of a broker according to its responses to clients: topics, configs, quotas, users, offsets of groups."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.support.share_client import until_ready
from tidelog.client import Client
from tidelog.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from tidelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from tidelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse

TOPIC, BROKER, GROUP = 2, 4, 32
_SET_BY_CLIENTS = {1, 2, 3, 7, 8}
"""Sources of a config's value: topic, broker, cluster-wide, client metrics, group; not the file and not defaults."""


class Facts(NamedTuple):
    """The metadata at one time, in forms that can be compared."""

    cluster_id: str | None
    topics: dict[str, tuple[bytes, int]]
    configs: dict[tuple[int, str], dict[str, str | None]]
    quotas: dict[tuple[tuple[str, str | None], ...], dict[str, float]]
    users: dict[str, set[tuple[int, int]]]
    offsets: dict[str, dict[tuple[str, int], int]]
    share_offsets: dict[tuple[str, str, int], int]


def facts(bootstrap: str, groups: list[str], share_groups: list[str], resources: list[tuple[int, str]]) -> Facts:
    """Read from a broker what Facts holds; ``resources`` are those, beside topics, whose configs are read."""
    with Client(bootstrap, timeout_s=30) as client:
        described = client.send(MetadataRequest(topics=None), MetadataResponse, 12)
        topics = {str(topic.name): (topic.topic_id, len(topic.partitions)) for topic in described.topics}
        listed = [(TOPIC, name) for name in sorted(topics)] + resources
        return Facts(
            described.cluster_id,
            topics,
            _configs(client, listed),
            _quotas(client),
            _users(client),
            {group: _offsets(client, group) for group in groups},
            _share_offsets(client, share_groups),
        )


def _configs(client: Client, resources: list[tuple[int, str]]) -> dict[tuple[int, str], dict[str, str | None]]:
    asked = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in resources
    ]
    answer = client.send(DescribeConfigsRequest(resources=asked, include_synonyms=True), DescribeConfigsResponse, 4)
    assert not any(result.error_code for result in answer.results), answer
    return {
        (result.resource_type, result.resource_name): {
            one.name: one.value for one in result.configs if one.config_source in _SET_BY_CLIENTS
        }
        for result in answer.results
    }


def _quotas(client: Client) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    answer = client.send(DescribeClientQuotasRequest(components=[], strict=False), DescribeClientQuotasResponse, 1)
    assert answer.error_code == 0, answer
    return {
        tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)): {
            one.key: one.value for one in entry.values
        }
        for entry in answer.entries or []
    }


def _users(client: Client) -> dict[str, set[tuple[int, int]]]:
    request = DescribeUserScramCredentialsRequest(users=None)
    answer = client.send(request, DescribeUserScramCredentialsResponse, 0)
    assert answer.error_code == 0, answer
    return {one.user: {(info.mechanism, info.iterations) for info in one.credential_infos} for one in answer.results}


def _offsets(client: Client, group: str) -> dict[tuple[str, int], int]:
    def ask() -> tuple[int, Any]:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
        answer = client.send(request, OffsetFetchResponse, 8).groups[0]
        return answer.error_code, answer

    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in until_ready(ask).topics
        for partition in topic.partitions
    }


def _share_offsets(client: Client, groups: list[str]) -> dict[tuple[str, str, int], int]:
    def ask() -> tuple[int, Any]:
        asked = [DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None) for group in groups]
        answer = client.send(DescribeShareGroupOffsetsRequest(groups=asked), DescribeShareGroupOffsetsResponse, 0)
        return next((group.error_code for group in answer.groups if group.error_code), 0), answer

    return {
        (group.group_id, topic.topic_name, partition.partition_index): partition.start_offset
        for group in (until_ready(ask).groups if groups else [])
        for topic in group.topics
        for partition in topic.partitions
    }
