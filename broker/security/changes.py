"""Audit lines of changes: ACLs, passwords and configs, with who made them, never with a secret."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.broker.config.description import ResourceType as ConfigResource
from tidelog.broker.metadata.metadata_image import AccessRule
from tidelog.broker.security.audit import record
from tidelog.protocol.acl import AclOperation, AclPermissionType, PatternType, ResourceType, member_of

if TYPE_CHECKING:
    from tidelog.broker.requests.context import RequestContext


def note_acl(event: str, context: RequestContext, rule: AccessRule) -> None:
    """Write that an ACL was made or removed."""
    acl = {
        "resource": member_of(ResourceType, rule.resource_type).name,
        "name": rule.resource_name,
        "pattern": member_of(PatternType, rule.pattern_type).name,
        "principal": rule.principal,
        "host": rule.host,
        "operation": member_of(AclOperation, rule.operation).name,
        "permission": member_of(AclPermissionType, rule.permission).name,
    }
    note_change(event, context, acl=acl)


def note_configs(context: RequestContext, kind: int, name: str, keys: Iterable[str]) -> None:
    """Write which configs of a resource were changed. Their values may be secrets, and are left out."""
    note_change("config changed", context, resource=ConfigResource(kind).name, name=name, keys=sorted(set(keys)))


def note_change(event: str, context: RequestContext, **facts: object) -> None:
    """Write a change, and who made it from where."""
    record(event, user=str(context.principal), address=context.client_host, **facts)
