"""Minimum interval between assignments: its computation, and groups of each kind that keep it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.coordinators import GroupWorld
from tests.support.topics import create_topic
from tests.unit.broker.coordinator.group.consumer.test_heartbeat import T, beat, join, partitions
from tests.unit.broker.coordinator.streams_world import Member, StreamsWorld
from tests.unit.broker.share.share_world import ShareWorld
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.coordinator.group.assignment_interval import assign_at_once, assignment_interval_ms, may_assign
from tidelog.broker.coordinator.group.streams.topology import StatusCode

ALL = {f"{part}_{index}" for part in (0, 1) for index in range(2)}


@pytest.mark.parametrize(
    ("assigned_at_ms", "interval_ms", "now_ms", "expected"),
    [
        (1_000, 500, 1_499, False),
        (1_000, 500, 1_500, True),
        (0, 500, 1, True),
        (1_000, 0, 1, True),
        (1_000, 500, 1, True),
    ],
    ids=["young", "old enough", "unknown", "no interval", "the clock went back"],
)
def test_a_target_is_kept_for_the_interval(assigned_at_ms: int, interval_ms: int, now_ms: int, expected: bool) -> None:
    assert may_assign(assigned_at_ms, interval_ms, now_ms) is expected


@pytest.mark.parametrize(
    ("broker", "own", "expected"),
    [
        ({}, {}, 0),
        ({"group.share.assignment.interval.ms": "70"}, {}, 70),
        ({"group.share.assignment.interval.ms": "70"}, {"share.assignment.interval.ms": "80"}, 80),
        ({"group.share.min.assignment.interval.ms": "100"}, {"share.assignment.interval.ms": "80"}, 100),
        ({"group.share.max.assignment.interval.ms": "60"}, {"share.assignment.interval.ms": "80"}, 60),
    ],
)
def test_a_groups_interval_is_its_own_or_the_brokers_within_bounds(
    broker: Mapping[str, str], own: Mapping[str, str], expected: int
) -> None:
    assert assignment_interval_ms(BrokerConfig(broker), own, "share") == expected


def test_members_are_assigned_at_once_by_default() -> None:
    assert assign_at_once("consumer", "g") == 0


def test_members_of_a_consumer_group_that_come_within_the_interval_are_assigned_together() -> None:
    world = GroupWorld()
    world.settings["g"] = {"consumer.assignment.interval.ms": "1000"}
    first = join(world, "a")
    assert partitions(first) == {T: [0, 1, 2, 3]}
    second, third = join(world, "b"), join(world, "c")
    assert (second.member_epoch, partitions(second), partitions(third)) == (first.member_epoch, {}, {})
    world.advance(999)
    assert partitions(beat(world, "a", first.member_epoch, owned={T: [0, 1, 2, 3]})) is None
    world.advance(1)
    response = beat(world, "a", first.member_epoch)
    assert (response.member_epoch, partitions(response)) == (first.member_epoch, {T: [0, 1]}), "of three members"


def test_a_restart_knows_when_the_target_was_worked_out() -> None:
    world = GroupWorld()
    world.settings["g"] = {"consumer.assignment.interval.ms": "1000"}
    first = join(world, "a")
    again = world.restarted()
    again.settings = world.settings
    assert partitions(join(again, "b")) == {}
    again.advance(1000)
    assert partitions(beat(again, "a", first.member_epoch)) == {T: [0, 1]}


def test_members_of_a_share_group_wait_for_the_interval(tmp_path: Path) -> None:
    world = ShareWorld(tmp_path)
    create_topic(world, "t", 2)
    world.configure("g", share_assignment_interval_ms="1000")
    first = world.member()
    second = world.member(member_id="n")
    assert second.member_epoch == first.member_epoch
    assert second.beat(second.member_epoch).assignment is None
    world.advance(1000)
    answer = second.beat(second.member_epoch)
    assert answer.assignment is not None
    assert (answer.member_epoch > first.member_epoch, bool(answer.assignment.topic_partitions)) == (True, True)
    world.close()


def test_members_of_a_streams_group_are_told_that_they_wait(tmp_path: Path) -> None:
    world = StreamsWorld(tmp_path, {"group.streams.initial.rebalance.delay.ms": "0"})
    create_topic(world, "lines", 2)
    first, second = Member(world, "a"), Member(world, "b")
    first.join()
    first.beat()
    first.confirm_tasks()
    assert first.assigned_tasks() == (ALL, set())
    world.configure(streams_assignment_interval_ms="1000")
    answer = second.join()
    assert answer.status is not None
    assert [(status.status_code, status.status_detail) for status in answer.status] == [
        (StatusCode.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured assignment interval.")
    ]
    assert second.assigned_tasks() == (set(), set())
    world.advance(1000)
    assert second.beat().status == []
    for _ in range(3):
        first.confirm_tasks()
        second.confirm_tasks()
    assert (len(first.assigned_tasks()[0]), len(second.assigned_tasks()[0])) == (2, 2)
    world.close()
