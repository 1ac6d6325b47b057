"""Brokers of the cluster as they appear in a member's responses."""

from __future__ import annotations

import pytest

from tidelog.broker.cluster.quorum import Address
from tidelog.broker.coordinator.runtime.key_hash import java_string_hash
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.nodes import ClusterNodes, address_on, node_on
from tidelog.broker.metadata.image import (
    GROUP_METADATA_TOPIC,
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
)
from tidelog.broker.metadata.metadata_image import (
    EMPTY_IMAGE,
    BrokerRegistration,
    Endpoint,
    PartitionState,
    TopicState,
)
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.errors import CoordinatorNotAvailableError

GROUP_KEY = 0


def broker(number: int, *listeners: str, is_fenced: bool = False) -> BrokerRegistration:
    endpoints = tuple(Endpoint(name, f"host{number}", 9000 + number, 0) for name in listeners)
    return BrokerRegistration(number, 1, bytes(16), endpoints, {}, f"rack{number}", is_fenced, False, ())


BROKERS = {
    1: broker(1, "INSIDE", "OUTSIDE"),
    2: broker(2, "INSIDE"),
    3: broker(3, "INSIDE", "OUTSIDE", is_fenced=True),
}
OFFSETS = TopicState(
    GROUP_METADATA_TOPIC, b"o" * 16, tuple(PartitionState((1, 3), (1, 3), leader=leader) for leader in (1, 3, -1))
)


class Cluster:
    """Nodes of an image, and the internal topics that were asked for."""

    def __init__(self, *topics: TopicState) -> None:
        image = EMPTY_IMAGE._replace(
            brokers=BROKERS,
            topics={topic.topic_id: topic for topic in topics},
            topic_ids={topic.name: topic.topic_id for topic in topics},
        )
        self.created: list[str] = []
        self.nodes = ClusterNodes(RemoteController(image, 1), self.created.append)


def asking(listener: str) -> RequestContext:
    context = RequestContext()
    context.listener_name = listener
    return context


def test_brokers_are_shown_with_the_clients_listener() -> None:
    nodes = Cluster().nodes
    assert [node.node_id for node in nodes.alive_nodes(asking("OUTSIDE"))] == [1]
    assert [(node.node_id, node.host, node.port, node.rack) for node in nodes.alive_nodes(asking("INSIDE"))] == [
        (1, "host1", 9001, "rack1"),
        (2, "host2", 9002, "rack2"),
    ]
    assert [(node.node_id, node.is_fenced) for node in nodes.fenced_nodes(asking("INSIDE"))] == [(3, True)]


@pytest.mark.parametrize(("number", "listener"), [(3, "INSIDE"), (2, "OUTSIDE"), (4, "INSIDE")])
def test_a_broker_that_a_client_cannot_use_is_not_found(number: int, listener: str) -> None:
    assert Cluster().nodes.find(asking(listener), number) is None


def test_any_broker_that_is_alive_is_shown_as_the_controller() -> None:
    nodes = Cluster().nodes
    assert {nodes.controller_id for _ in range(100)} == {1, 2}


HERE, GONE = b"h" * 16, b"g" * 16


@pytest.mark.parametrize(
    ("directory", "is_offline"),
    [(HERE, False), (GONE, True), (LOST_DIRECTORY, True), (UNASSIGNED_DIRECTORY, False), (MIGRATING_DIRECTORY, False)],
)
@pytest.mark.parametrize("registered", [(HERE,), ()])
def test_a_replica_in_a_directory_that_failed_is_offline(
    directory: bytes, is_offline: bool, registered: tuple[bytes, ...]
) -> None:
    """A broker that registers no directories, before metadata.version 3.7-IV2, has only the lost ones offline."""
    cluster = Cluster()
    cluster.nodes._controller.image = cluster.nodes._controller.image._replace(
        brokers={1: BROKERS[1]._replace(directories=registered), 2: BROKERS[2]._replace(directories=(GONE,))}
    )
    state = PartitionState((2, 1), (2,), directories=(GONE, directory))
    is_offline = is_offline and (bool(registered) or directory == LOST_DIRECTORY)
    assert list(cluster.nodes.offline_replicas([state])) == [[1] if is_offline else []]


def test_replicas_on_fenced_and_unknown_brokers_are_offline() -> None:
    states = [PartitionState((1, 2), (1,)), PartitionState((3, 1, 7), (1,))]
    assert list(Cluster().nodes.offline_replicas(states)) == [[], [3, 7]]


def keys_of(partition: int) -> str:
    """Find a group id that belongs to this partition of the offsets topic."""
    return next(key for key in map(str, range(1000)) if java_string_hash(key) % 3 == partition)


def test_a_coordinator_is_the_leader_of_its_partition() -> None:
    found = Cluster(OFFSETS).nodes.coordinator(asking("OUTSIDE"), GROUP_KEY, keys_of(0))
    assert (found.node_id, found.host) == (1, "host1")


@pytest.mark.parametrize("partition", [1, 2])
def test_a_fenced_leader_or_none_is_no_coordinator(partition: int) -> None:
    cluster = Cluster(OFFSETS)
    with pytest.raises(CoordinatorNotAvailableError):
        cluster.nodes.coordinator(asking("INSIDE"), GROUP_KEY, keys_of(partition))
    assert cluster.created == []


def test_an_internal_topic_that_is_missing_is_asked_for() -> None:
    cluster = Cluster()
    with pytest.raises(CoordinatorNotAvailableError):
        cluster.nodes.coordinator(asking("INSIDE"), GROUP_KEY, "group")
    assert cluster.created == [GROUP_METADATA_TOPIC]


def test_a_broker_has_an_address_on_its_own_listeners_only() -> None:
    assert node_on(BROKERS[2], "OUTSIDE") is None
    assert address_on(BROKERS[2], "INSIDE") == Address("host2", 9002)
    assert address_on(BROKERS[2], "OUTSIDE") is None
    assert address_on(None, "INSIDE") is None
