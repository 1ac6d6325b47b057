"""ACLs as the admin API sets them: validated, filtered, and turned into records of the metadata log.

Creating an ACL that exists succeeds without a record. A request's records are one batch: all of them take effect, or
none. Bounds: ``MAX_ACLS`` in all, ``MAX_CHANGED`` created or deleted by one request. Loop thread only.

Source: AclControlManager and AclApis of Kafka 4.3, KIP-290.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps
from tidelog.broker.metadata.image_records import VersionedRecord, acl_record
from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.protocol.acl import (
    CLUSTER_NAME,
    WILDCARD,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
    member_of,
)
from tidelog.protocol.errors import InvalidRequestError, PolicyViolationError
from tidelog.protocol.metadata_records.records import RemoveAccessControlEntryRecord

MAX_ACLS = 100_000
"""Largest number of ACLs in all. That many add half a second to a start."""
MAX_CHANGED = 10_000
"""Largest number of ACLs that one request creates or deletes, as in Kafka (MAX_RECORDS_PER_USER_OP)."""
MAX_NAME = 4_096
"""Largest length of a resource's name, a principal or a host, in characters."""

_CONCRETE_TYPES = frozenset(ResourceType) - {ResourceType.UNKNOWN, ResourceType.ANY}
_CONCRETE_PATTERNS = frozenset({PatternType.LITERAL, PatternType.PREFIXED})
_CONCRETE_OPERATIONS = frozenset(AclOperation) - {AclOperation.UNKNOWN, AclOperation.ANY}
_CONCRETE_PERMISSIONS = frozenset({AclPermissionType.DENY, AclPermissionType.ALLOW})


class AclFilter(NamedTuple):
    """Filter of ACLs. None matches any text, ANY any number; pattern type MATCH finds rules that apply to the name."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, rule: AccessRule) -> bool:
        """Return whether this filter finds a rule."""
        return (
            self.resource_type in (ResourceType.ANY, rule.resource_type)
            and self.operation in (AclOperation.ANY, rule.operation)
            and self.permission in (AclPermissionType.ANY, rule.permission)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self._matches_name(rule)
        )

    def _matches_name(self, rule: AccessRule) -> bool:
        if self.resource_name is None or self.pattern_type != PatternType.MATCH:
            is_kind = self.pattern_type in (PatternType.ANY, PatternType.MATCH, rule.pattern_type)
            return is_kind and self.resource_name in (None, rule.resource_name)
        if rule.pattern_type == PatternType.PREFIXED:
            return self.resource_name.startswith(rule.resource_name)
        return rule.resource_name in (self.resource_name, WILDCARD)

    @property
    def exact(self) -> AccessRule | None:
        """The one rule that this filter can find, None where there may be several."""
        if self.resource_name is None or self.principal is None or self.host is None:
            return None
        rule = AccessRule(*self)  # type: ignore[arg-type]
        concrete = (
            rule.resource_type in _CONCRETE_TYPES
            and rule.pattern_type in _CONCRETE_PATTERNS
            and rule.operation in _CONCRETE_OPERATIONS
            and rule.permission in _CONCRETE_PERMISSIONS
        )
        return rule if concrete else None


def check_acl(rule: AccessRule) -> None:
    """Raise InvalidRequestError for an invalid rule. The messages are Kafka's, except that about MAX_NAME."""
    if rule.resource_type == ResourceType.CLUSTER and rule.resource_name != CLUSTER_NAME:
        raise InvalidRequestError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not rule.resource_name:
        raise InvalidRequestError("Invalid empty resource name")
    if rule.resource_type not in _CONCRETE_TYPES:
        raise InvalidRequestError(f"Invalid resourceType {member_of(ResourceType, rule.resource_type).name}")
    if rule.pattern_type not in _CONCRETE_PATTERNS:
        raise InvalidRequestError(f"Invalid patternType {member_of(PatternType, rule.pattern_type).name}")
    if rule.operation not in _CONCRETE_OPERATIONS:
        raise InvalidRequestError(f"Invalid operation {member_of(AclOperation, rule.operation).name}")
    if rule.permission not in _CONCRETE_PERMISSIONS:
        raise InvalidRequestError(f"Invalid permissionType {member_of(AclPermissionType, rule.permission).name}")
    if ":" not in rule.principal:
        raise InvalidRequestError(
            f"Could not parse principal from `{rule.principal}` (no colon is present separating the principal type "
            "from the principal name)"
        )
    if max(len(rule.resource_name), len(rule.principal), len(rule.host)) > MAX_NAME:
        raise InvalidRequestError(f"A name of an ACL has more than {MAX_NAME} characters")


def check_filter(wanted: AclFilter) -> None:
    """Raise InvalidRequestError for a filter with an unknown resource type, pattern type, operation or permission."""
    if ResourceType.UNKNOWN in (
        member_of(ResourceType, wanted.resource_type),
        member_of(PatternType, wanted.pattern_type),
    ):
        raise InvalidRequestError("Unknown patternFilter.")
    if AclOperation.UNKNOWN in (
        member_of(AclOperation, wanted.operation),
        member_of(AclPermissionType, wanted.permission),
    ):
        raise InvalidRequestError("Unknown entryFilter.")


def new_rules(wanted: Collection[AccessRule], present: Collection[AccessRule]) -> list[AccessRule]:
    """Return those of ``wanted`` that are not present, each once."""
    return [rule for rule in dict.fromkeys(wanted) if rule not in present]


def plan_creation(
    new: Collection[AccessRule], present: Collection[AccessRule], new_id: Callable[[], bytes]
) -> list[VersionedRecord]:
    """Return the records that create new rules beside those present. Raises PolicyViolationError."""
    if len(new) > MAX_CHANGED:
        raise PolicyViolationError("Unable to perform excessively large batch operation.")
    if new and len(present) + len(new) > MAX_ACLS:
        raise PolicyViolationError(f"There are {len(present)} ACLs, and there may be {MAX_ACLS}.")
    return [VersionedRecord(acl_record(new_id(), rule)) for rule in new]


class FoundAcls(NamedTuple):
    """Rules that each filter of a request has found, and the ids of all these rules."""

    by_filter: list[list[AccessRule]]
    ids: set[bytes]

    def removal_records(self, present: Mapping[bytes, AccessRule]) -> list[VersionedRecord]:
        """Return the records that remove what was found and is still there. Raises PolicyViolationError."""
        if len(self.ids) > MAX_CHANGED:
            raise PolicyViolationError(f"Cannot remove more than {MAX_CHANGED} acls in a single delete operation.")
        return [VersionedRecord(RemoveAccessControlEntryRecord(id=one)) for one in self.ids if one in present]


def find_acls(acls: Mapping[bytes, AccessRule], filters: Sequence[AclFilter]) -> Steps[FoundAcls]:
    """Find the rules of each filter, in steps. A filter that can match only one rule is looked up by that rule; each
    other filter is compared with every rule.
    """
    found = FoundAcls([[] for _ in filters], set())
    exact: dict[AccessRule, list[int]] = {}
    wide: list[int] = []
    for number, wanted in enumerate(filters):
        rule = wanted.exact
        if rule is None:
            wide.append(number)
        else:
            exact.setdefault(rule, []).append(number)
    for count, (acl_id, rule) in enumerate(list(acls.items())):
        for number in exact.get(rule, ()):
            found.by_filter[number].append(rule)
            found.ids.add(acl_id)
        for number in wide:
            if filters[number].matches(rule):
                found.by_filter[number].append(rule)
                found.ids.add(acl_id)
        if not count % ITEMS_PER_STEP or len(wide) > ITEMS_PER_STEP:
            yield None
    return found
