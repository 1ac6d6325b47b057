"""Operations that a client may do, as bit fields in responses that describe topics, groups or the cluster (KIP-430).

Bit n stands for the operation with code n of Kafka's AclOperation. Without an authorizer every client may do
everything, so each resource has all operations that apply to it; an authorizer removes those that it denies.
"""

from __future__ import annotations

from tidelog.protocol.acl import AclOperation

NOT_REQUESTED = -(2**31)  # the client did not ask


def bit_field(*operations: int) -> int:
    """Encode the operations as a bit field."""
    return sum(1 << operation for operation in operations)


def operations_of(bits: int) -> list[int]:
    """Decode the operations of a bit field."""
    return [operation for operation in AclOperation if bits & 1 << operation]


TOPIC_OPERATIONS = bit_field(
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
GROUP_OPERATIONS = bit_field(
    AclOperation.READ,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS = bit_field(
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)
