"""Requests that list, create and delete ACLs, and the protocol's numbers of their types, operations and permissions."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidelog.client.cluster import Cluster, raise_for_code
from tidelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from tidelog.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from tidelog.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

RESOURCE_TYPES = {
    "topic": 2,
    "group": 3,
    "cluster": 4,
    "transactional-id": 5,
    "delegation-token": 6,
    "user": 7,
}
CLUSTER_NAME = "kafka-cluster"
"""The only name of a resource of type cluster."""
PATTERN_TYPES = {"literal": 3, "prefixed": 4}
OPERATIONS = {
    "all": 2,
    "read": 3,
    "write": 4,
    "create": 5,
    "delete": 6,
    "alter": 7,
    "describe": 8,
    "cluster-action": 9,
    "describe-configs": 10,
    "alter-configs": 11,
    "idempotent-write": 12,
    "create-tokens": 13,
    "describe-tokens": 14,
    "two-phase-commit": 15,
}
PERMISSIONS = {"deny": 2, "allow": 3}
_ANY = 1
"""The number in a filter that matches any type, pattern, operation or permission."""


class Acl(NamedTuple):
    """An ACL; its types, operation and permission are names in the tables above. In a filter, None matches anything."""

    resource_type: str | None = None
    resource_name: str | None = None
    pattern_type: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: str | None = None
    permission: str | None = None


def list_acls(cluster: Cluster, wanted: Acl) -> list[Acl]:
    """Return the ACLs that a filter matches. Raises ClientError, KafkaError."""
    answer = cluster.ask(DescribeAclsRequest(**_filter_fields(wanted)), DescribeAclsResponse)
    raise_for_code(answer.error_code, "acls", answer.error_message)
    return sorted(_acl_of(resource, rule) for resource in answer.resources for rule in resource.acls)


def create_acls(cluster: Cluster, acls: list[Acl]) -> None:
    """Create ACLs, in which no field is None. Raises ClientError, KafkaError."""
    creations = [
        AclCreation(
            resource_type=RESOURCE_TYPES[acl.resource_type or ""],
            resource_name=acl.resource_name or "",
            resource_pattern_type=PATTERN_TYPES[acl.pattern_type or ""],
            principal=acl.principal or "",
            host=acl.host or "",
            operation=OPERATIONS[acl.operation or ""],
            permission_type=PERMISSIONS[acl.permission or ""],
        )
        for acl in acls
    ]
    for result in cluster.ask(CreateAclsRequest(creations=creations), CreateAclsResponse).results:
        raise_for_code(result.error_code, "acl", result.error_message)


def delete_acls(cluster: Cluster, wanted: Acl) -> list[Acl]:
    """Delete the ACLs that a filter matches, and return them. Raises ClientError, KafkaError."""
    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_filter_fields(wanted))])
    (answer,) = cluster.ask(request, DeleteAclsResponse).filter_results
    raise_for_code(answer.error_code, "acls", answer.error_message)
    for one in answer.matching_acls:
        raise_for_code(one.error_code, f"acl of {one.principal}", one.error_message)
    return sorted(_acl_of(one, one) for one in answer.matching_acls)


def _filter_fields(wanted: Acl) -> dict[str, Any]:
    """Return the fields of a filter, which have the same names in DescribeAclsRequest and DeleteAclsFilter."""
    return {
        "resource_type_filter": RESOURCE_TYPES.get(wanted.resource_type or "", _ANY),
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": PATTERN_TYPES.get(wanted.pattern_type or "", _ANY),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": OPERATIONS.get(wanted.operation or "", _ANY),
        "permission_type": PERMISSIONS.get(wanted.permission or "", _ANY),
    }


def _acl_of(
    resource: DescribeAclsResource | DeleteAclsMatchingAcl, rule: AclDescription | DeleteAclsMatchingAcl
) -> Acl:
    return Acl(
        _name(RESOURCE_TYPES, resource.resource_type),
        resource.resource_name,
        _name(PATTERN_TYPES, resource.pattern_type),
        rule.principal,
        rule.host,
        _name(OPERATIONS, rule.operation),
        _name(PERMISSIONS, rule.permission_type),
    )


def _name(names: dict[str, int], number: int) -> str:
    return next((name for name, one in names.items() if one == number), f"unknown ({number})")
