"""Numbers of ACLs on the wire and in the metadata log: operations, resource types, pattern types, permissions.

The names are Kafka's. As in Kafka, a number without a name is UNKNOWN. Source: AclOperation, ResourceType, PatternType
and AclPermissionType of Kafka 4.3.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

E = TypeVar("E", bound=IntEnum)


class AclOperation(IntEnum):
    """Operation of a client on a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """Kind of resource that an ACL names."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Comparison of an ACL's resource name with a resource. ANY and MATCH are for filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclPermissionType(IntEnum):
    """Effect of an ACL: it forbids or it allows."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME = "kafka-cluster"
"""Name of the one resource of type CLUSTER."""
WILDCARD = "*"
"""Literal resource name for every name of a type; also every host."""


def member_of(kind: type[E], number: int) -> E:
    """Return the member with this number, or UNKNOWN if there is none."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)
