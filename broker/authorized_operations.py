"""Operations that a client may do, as the bit fields of Metadata, DescribeCluster and DescribeGroups (KIP-430).

Bit n stands for the operation with code n of Kafka's AclOperation. Without an authorizer every client may do
everything, so each resource answers all operations that apply to it.
"""

from __future__ import annotations

NOT_REQUESTED = -(2**31)  # the client did not ask
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = 3, 4, 5, 6, 7, 8, 9
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 10, 11, 12


def bit_field(*operations: int) -> int:
    """The operations as a bit field."""
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS = bit_field(READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
GROUP_OPERATIONS = bit_field(READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
CLUSTER_OPERATIONS = bit_field(
    CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE
)
