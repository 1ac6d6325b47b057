"""The partitions that each fetch loop gets when a new metadata image is published."""

from __future__ import annotations

from tidelog.broker.cluster.fetching.fetchers import FetcherId, Fetchers, FollowedEpoch, loop_number
from tidelog.broker.cluster.fetching.session import FetchKey
from tidelog.broker.metadata.metadata_image import NO_LEADER, PartitionState

NODE, ID = 7, b"t" * 16


def state(leader: int, *, epoch: int = 0, replicas: tuple[int, ...] = (1, 2, NODE)) -> PartitionState:
    return PartitionState(replicas, replicas, leader, epoch)


def test_partitions_go_to_the_loop_of_their_leader() -> None:
    fetchers = Fetchers(NODE, 1)
    states = [state(1), state(2, epoch=4), state(NODE), state(NO_LEADER), state(1, replicas=(1, 2))]
    assert fetchers.take_topic("a", ID, states) == {FetcherId(1, 0), FetcherId(2, 0)}
    assert fetchers.partitions_of(FetcherId(1, 0)) == {FetchKey(ID, 0): FollowedEpoch("a", 0)}
    assert fetchers.partitions_of(FetcherId(2, 0)) == {FetchKey(ID, 1): FollowedEpoch("a", 4)}


def test_an_image_without_a_change_touches_no_loop() -> None:
    fetchers = Fetchers(NODE, 1)
    fetchers.take_topic("a", ID, [state(1)])
    assert fetchers.take_topic("a", ID, [state(1)]) == set()


def test_a_new_leader_takes_a_partition_over() -> None:
    fetchers = Fetchers(NODE, 1)
    fetchers.take_topic("a", ID, [state(1)])
    assert fetchers.take_topic("a", ID, [state(2, epoch=1)]) == {FetcherId(1, 0), FetcherId(2, 0)}
    assert set(fetchers.ids) == {FetcherId(2, 0)}


def test_a_new_epoch_of_the_same_leader_touches_its_loop() -> None:
    fetchers = Fetchers(NODE, 1)
    fetchers.take_topic("a", ID, [state(1)])
    assert fetchers.take_topic("a", ID, [state(1, epoch=1)]) == {FetcherId(1, 0)}


def test_partitions_that_are_led_here_or_gone_leave_their_loop() -> None:
    fetchers = Fetchers(NODE, 1)
    fetchers.take_topic("a", ID, [state(1), state(1)])
    assert fetchers.take_topic("a", ID, [state(NODE, epoch=1), state(1)]) == {FetcherId(1, 0)}
    assert fetchers.take_topic("a", ID, []) == {FetcherId(1, 0)}
    assert not fetchers.partitions_of(FetcherId(1, 0))
    assert fetchers.take_topic("a", ID, []) == set()


def test_a_topics_partitions_are_spread_over_the_loops() -> None:
    assert {loop_number("orders", index, 4) for index in range(4)} == {0, 1, 2, 3}
    assert loop_number("orders", 5, 1) == 0
