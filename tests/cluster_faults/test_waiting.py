"""The functions by which tests of clusters under faults wait for a state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from tests.support.faulty_cluster.cluster import FaultyCluster


def test_a_leader_is_returned_as_it_was_found() -> None:
    """A broker that is asked later may know less: a test had killed the same broker twice."""
    told = iter([2, -1, 3, 2])
    cluster = cast("FaultyCluster", SimpleNamespace(leader=lambda topic, *without: next(told)))
    assert FaultyCluster.wait_leader(cluster, "topic", 2) == 3
