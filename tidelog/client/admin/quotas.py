"""Requests that describe and change client quotas: limits of users, client ids and addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.client.cluster import Cluster, raise_for_code
from tidelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from tidelog.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

ENTITY_TYPES = ("user", "client-id", "ip")
_MATCH_EXACT, _MATCH_DEFAULT = 0, 1

Entity = Mapping[str, str | None]
"""Type of an entity -> its name; None means the default of that type."""


class Quota(NamedTuple):
    """The limits of one entity."""

    entity: dict[str, str | None]
    limits: dict[str, float]


def list_quotas(cluster: Cluster, entity: Entity) -> list[Quota]:
    """Return the quotas of all entities that include ``entity``, such as those of a user with any client id; all quotas
    if it is empty. Raises ClientError, KafkaError.
    """
    components = [
        ComponentData(entity_type=kind, match_type=_MATCH_DEFAULT if name is None else _MATCH_EXACT, match=name)
        for kind, name in entity.items()
    ]
    answer = cluster.ask(DescribeClientQuotasRequest(components=components, strict=False), DescribeClientQuotasResponse)
    raise_for_code(answer.error_code, "quotas", answer.error_message)
    found = [
        Quota(
            {one.entity_type: one.entity_name for one in entry.entity},
            {one.key: one.value for one in sorted(entry.values, key=lambda one: one.key)},
        )
        for entry in answer.entries or []
    ]
    return sorted(found, key=lambda quota: sorted((kind, name or "") for kind, name in quota.entity.items()))


def alter_quota(cluster: Cluster, entity: Entity, limits: Mapping[str, float | None]) -> None:
    """Set limits of an entity, or remove those that are None. Raises ClientError, KafkaError."""
    operations = [
        OpData(key=key, value=0.0 if value is None else value, remove=value is None) for key, value in limits.items()
    ]
    named = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    request = AlterClientQuotasRequest(entries=[EntryData(entity=named, ops=operations)], validate_only=False)
    (answer,) = cluster.ask(request, AlterClientQuotasResponse).entries
    what = ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in entity.items())
    raise_for_code(answer.error_code, f"quota of {what}", answer.error_message)
