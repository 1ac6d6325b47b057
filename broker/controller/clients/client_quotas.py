"""Client quotas of users, client ids and IP addresses, as clients set them. ``tidelog.broker.quota.quotas`` enforces
them.

An entity is a set of (type, name); name None is the default of its type. It has values by quota key, and each value is
a record of the metadata log. Source: KIP-546, KIP-612.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.loop.steps import Steps
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.protocol.errors import InvalidRequestError, UnsupportedVersionError
from tidelog.protocol.metadata_records.records import ClientQuotaRecord, QuotaEntityData

if TYPE_CHECKING:
    from tidelog.broker.controller.metadata_controller import MetadataController

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT, ANY = 0, 1, 2
VALUE_LIMIT = 2.0**63
"""All quotas are below this value, so that whole numbers fit into 64 bits."""

# Quota key -> whether it must be a whole number.
CLIENT_QUOTAS = {
    "producer_byte_rate": True,
    "consumer_byte_rate": True,
    "request_percentage": False,
    "controller_mutation_rate": False,
}
IP_QUOTAS = {"connection_creation_rate": True}

Entity = tuple[tuple[str, str | None], ...]  # sorted by type, each type once


class FilterComponent(NamedTuple):
    """Matches entities by one type: exactly this name, the default, or any name."""

    entity_type: str
    match_type: int
    match: str | None


class QuotaChange(NamedTuple):
    """Change of one quota: its new value, or its removal if ``value`` is None."""

    key: str
    value: float | None


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Build the entity made of these parts. Raises InvalidRequestError."""
    given = list(parts)
    entity = tuple(sorted(given, key=lambda part: part[0]))
    types = [kind for kind, _ in entity]
    if not types or len(set(types)) < len(types):
        raise InvalidRequestError("Invalid empty client quota entity" if not types else "Duplicate entity type.")
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise InvalidRequestError(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise InvalidRequestError(f"Empty {kind} not supported")
    if IP in types:
        check_ip_entity(entity)
    return entity


def check_ip_entity(entity: Entity) -> None:
    """Raise InvalidRequestError unless an entity with an IP address has nothing else, and the address is valid."""
    if len(entity) > 1:
        raise InvalidRequestError("Invalid combination of entity types: an ip must be the only type")
    name = entity[0][1]
    if name is not None:
        from ipaddress import ip_address  # imported late: seldom needed, and slow to import

        try:
            ip_address(name)
        except ValueError:
            raise InvalidRequestError(f"{name} is not a valid IP address.") from None


def check_changes(entity: Entity, changes: Sequence[QuotaChange]) -> None:
    """Raise InvalidRequestError for a repeated key, a key that the entity cannot have, or an impossible value."""
    allowed = IP_QUOTAS if entity[0][0] == IP else CLIENT_QUOTAS
    seen: set[str] = set()
    for change in changes:
        if change.key in seen:
            raise InvalidRequestError(f"Duplicate quota key {change.key}")
        seen.add(change.key)
        if change.key not in allowed:
            raise InvalidRequestError(f"Invalid configuration key {change.key}")
        value = change.value
        if value is None:
            continue
        if not value > 0 or value >= VALUE_LIMIT or (allowed[change.key] and value != int(value)):
            kind = "whole number" if allowed[change.key] else "number"
            raise InvalidRequestError(f"Invalid value {value} for {change.key}: expected a positive {kind} below 2^63")


class ClientQuotas:
    """The quotas of the metadata image. Loop thread only."""

    __slots__ = ("_controller",)

    def __init__(self, controller: MetadataController) -> None:
        self._controller = controller

    def alter(self, entity: Entity, changes: Sequence[QuotaChange], validate_only: bool) -> None:
        """Change quotas of one entity. A value that is in force is not written again.

        Raises InvalidRequestError, and what ``MetadataController.commit`` raises. Source: AlterClientQuotas."""
        check_changes(entity, changes)
        if validate_only:
            return
        present = self.entities().get(entity, {})
        changed = [change for change in changes if change.value != present.get(change.key)]
        self._controller.commit([quota_record(entity, change) for change in changed])

    def entities(self) -> Mapping[Entity, Mapping[str, float]]:
        """Return all entities with their quotas."""
        return self._controller.image.quotas

    def describe(self, components: Sequence[FilterComponent], strict: bool) -> Steps[dict[Entity, Mapping[str, float]]]:
        """Find the entities that match every component; with ``strict`` only those without further types.

        Raises InvalidRequestError, UnsupportedVersionError. Source: DescribeClientQuotas.
        """
        check_filter(components)
        found = {}
        for entity, values in list(self.entities().items()):
            if matches(entity, components, strict):
                found[entity] = values
            yield None
        return found


def quota_record(entity: Entity, change: QuotaChange) -> VersionedRecord:
    """Return the record that sets or removes one quota of an entity."""
    parts = [QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    is_removal = change.value is None
    record = ClientQuotaRecord(entity=parts, key=change.key, value=change.value or 0.0, remove=is_removal)
    return VersionedRecord(record)


def check_filter(components: Sequence[FilterComponent]) -> None:
    """Raise InvalidRequestError or UnsupportedVersionError for an invalid filter."""
    types = [component.entity_type for component in components]
    for component in components:
        if component.entity_type not in (USER, CLIENT_ID, IP):
            raise UnsupportedVersionError(f"Custom entity type '{component.entity_type}' not supported")
        if types.count(component.entity_type) > 1:
            raise InvalidRequestError(
                f"Entity type {component.entity_type} cannot appear more than once in the filter."
            )
        if component.match_type not in (EXACT, DEFAULT, ANY):
            raise InvalidRequestError(f"Unknown match type {component.match_type}")
        if (component.match_type == EXACT) is (component.match is None):
            raise InvalidRequestError("Request specified MATCH_TYPE and match that do not fit together")
    if IP in types and len(types) > 1:
        raise InvalidRequestError("Invalid entity filter component combination: an ip must be the only type")


def matches(entity: Entity, components: Sequence[FilterComponent], strict: bool) -> bool:
    """Return whether an entity is one that the filter asks for."""
    names = dict(entity)
    for component in components:
        if component.entity_type not in names:
            return False
        if component.match_type != ANY and names[component.entity_type] != component.match:
            return False
    return not strict or len(components) == len(entity)
