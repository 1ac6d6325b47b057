from __future__ import annotations

import pytest

from tidelog.broker.controller.replica_assignment import check_replicas, check_topic_assignment
from tidelog.protocol.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError


def test_valid_assignments_are_accepted() -> None:
    check_topic_assignment({1: [1, 2], 0: [2, 1]}, [1, 2])
    check_replicas([], [1])


@pytest.mark.parametrize("replicas", [[[]], [[1, 1]], [[3]]])
def test_empty_repeated_and_unknown_replicas_are_refused(replicas: list[list[int]]) -> None:
    with pytest.raises(InvalidReplicaAssignmentError):
        check_replicas(replicas, [1, 2])


def test_replica_lists_of_different_length_are_refused() -> None:
    with pytest.raises(InvalidReplicationFactorError):
        check_replicas([[1], [1, 2]], [1, 2])


@pytest.mark.parametrize("indexes", [[1], [0, 2], [-1, 0]])
def test_partition_indexes_with_a_hole_are_refused(indexes: list[int]) -> None:
    with pytest.raises(InvalidReplicaAssignmentError):
        check_topic_assignment({index: [1] for index in indexes}, [1])
