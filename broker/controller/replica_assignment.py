"""Checks assignments of replicas to brokers that a client wrote by hand. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tidelog.protocol.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError


def check_topic_assignment(assignment: Mapping[int, Sequence[int]], node_ids: Collection[int]) -> None:
    """Check a whole topic's assignment, partition index -> replicas.

    Raises InvalidReplicaAssignmentError, InvalidReplicationFactorError.
    """
    if sorted(assignment) != list(range(len(assignment))):
        raise InvalidReplicaAssignmentError("partitions should be a consecutive 0-based integer sequence")
    check_replicas(list(assignment.values()), node_ids)


def check_replicas(replica_lists: Sequence[Sequence[int]], node_ids: Collection[int]) -> None:
    """Check the replica lists of partitions of one topic.

    Raises InvalidReplicaAssignmentError, InvalidReplicationFactorError when the lists differ in length.
    """
    for replicas in replica_lists:
        if not replicas:
            raise InvalidReplicaAssignmentError("The manual partition assignment includes an empty replica list.")
        for node_id in replicas:
            if replicas.count(node_id) > 1:
                raise InvalidReplicaAssignmentError(
                    f"The manual partition assignment includes the broker {node_id} more than once."
                )
            if node_id not in node_ids:
                raise InvalidReplicaAssignmentError(
                    f"The manual partition assignment includes broker {node_id}, but no such broker is registered."
                )
        if len(replicas) != len(replica_lists[0]):
            raise InvalidReplicationFactorError(
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is "
                f"not consistent with previous partitions, which have {len(replica_lists[0])} replica(s)."
            )
