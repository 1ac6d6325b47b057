"""Decision about one operation on one resource, with the rule that gave it.

    super user                                   -> allowed
    a matching rule denies                       -> denied, even if others allow
    a matching rule allows                       -> allowed
    no rule at all names the resource            -> ``allow.everyone.if.no.acl.found``
    else                                         -> denied

A rule matches a client by principal (its own or ``User:*``), host (its own or ``*``) and operation: the same one or
ALL. For ``decide`` an ALLOW implies more: READ, WRITE, DELETE and ALTER allow DESCRIBE, ALTER_CONFIGS allows
DESCRIBE_CONFIGS. There, a permission other than ALLOW denies, also one of a later version of Kafka, which has no name
here; ``is_allowed_on_any`` ignores such a one. Pure; source: StandardAuthorizerData of Kafka 4.3,
Authorizer.authorizeByResourceType.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.broker.security.authorization.acls import Acls
from tidelog.protocol.acl import WILDCARD, AclOperation, AclPermissionType, PatternType, ResourceType

ALL_PRINCIPALS = "User:*"
_ALL = int(AclOperation.ALL)
_DENY, _ALLOW = int(AclPermissionType.DENY), int(AclPermissionType.ALLOW)
_PREFIXED = int(PatternType.PREFIXED)
ANY_NAME = "hardcode"
"""Name that Kafka checks first to decide whether a client may use at least one resource of a type."""

_ALLOWING = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}),
}
"""Operation -> operations whose ALLOW allows it. Any other operation needs its own ALLOW; one of ALL allows each."""


class Decision(NamedTuple):
    """A decision, and the rule that gave it: an ACL, or the name of one of the authorizer's own rules."""

    is_allowed: bool
    rule: AccessRule | str


SUPER_USER = Decision(True, "SuperUser")
DEFAULT_ALLOW = Decision(True, "DefaultAllow")
DEFAULT_DENY = Decision(False, "DefaultDeny")


class Client(NamedTuple):
    """A client as rules name it: ``User:name`` and the text of its address."""

    principal: str
    host: str


def decide(
    acls: Acls, client: Client, operation: int, resource_type: int, name: str, without_acl: Decision
) -> Decision:
    """Decide by the ACLs alone. ``without_acl`` is the decision on a resource that no rule names."""
    allowing = _ALLOWING.get(operation)  # type: ignore[call-overload]
    allowed: AccessRule | None = None
    is_named = False
    for rules in acls.find_matching(resource_type, name):
        is_named = True
        for principal in (client.principal, ALL_PRINCIPALS):
            for rule in rules.get(principal, ()):
                if rule.host not in (WILDCARD, client.host):
                    continue
                if rule.permission != _ALLOW:
                    if rule.operation in (operation, _ALL):
                        return Decision(False, rule)
                elif rule.operation in (operation, _ALL) or (allowing is not None and rule.operation in allowing):
                    allowed = rule
    if allowed is not None:
        return Decision(True, allowed)
    return DEFAULT_DENY if is_named else without_acl


def is_allowed_on_any(acls: Acls, client: Client, operation: int, resource_type: ResourceType) -> bool:
    """Return whether rules allow an operation on at least one resource of a type, existing or not.

    A DENY of ``*`` denies, and else an ALLOW of ``*`` allows. Another ALLOW counts unless a prefixed DENY covers its
    name, or, for a literal ALLOW, a literal DENY has the same name.
    """
    literal: set[str] = set()
    prefixed: set[str] = set()
    allowing: list[AccessRule] = []
    for rule in _rules_of(acls, client, operation, resource_type):
        if rule.permission != _DENY:
            allowing += [rule] if rule.permission == _ALLOW else []
        elif rule.pattern_type == _PREFIXED:
            prefixed.add(rule.resource_name)
        elif rule.resource_name == WILDCARD:
            return False
        else:
            literal.add(rule.resource_name)
    return any(_has_effect(rule, literal, prefixed) for rule in allowing)


def _has_effect(rule: AccessRule, literal: set[str], prefixed: set[str]) -> bool:
    """Return whether an ALLOW applies to at least one name that no DENY of these literal and prefixed names covers."""
    name = rule.resource_name
    if rule.pattern_type != _PREFIXED and name == WILDCARD:
        return True
    if rule.pattern_type != _PREFIXED and name in literal:
        return False
    return not prefixed or not any(name[:length] in prefixed for length in range(1, len(name) + 1))


def _rules_of(acls: Acls, client: Client, operation: int, resource_type: ResourceType) -> Iterator[AccessRule]:
    for principal in {client.principal, ALL_PRINCIPALS}:
        for rule in acls.of_principal(resource_type, principal):
            if rule.host in (WILDCARD, client.host) and rule.operation in (operation, _ALL):
                yield rule
