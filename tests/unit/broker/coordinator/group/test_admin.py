"""DescribeGroups and ListGroups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.coordinators import GroupWorld
from tests.unit.broker.stepping import response_of
from tidelog.broker.loop.lazy import Lazy
from tidelog.protocol.errors import CoordinatorLoadInProgressError, GroupIdNotFoundError


def test_a_stable_group_shows_everything() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    group = world.coordinator.describe_group(world.context(6), "g", operations=True)
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    members = {member.member_id: member for member in group.members}
    assert set(members) == {leader, follower}
    assert (members[follower].member_metadata, members[follower].member_assignment) == (b"meta", follower.encode())
    assert (members[follower].client_id, members[follower].client_host) == ("c", "/127.0.0.1")
    assert group.authorized_operations > 0


def test_a_rebalancing_group_shows_no_assignments() -> None:
    world = GroupWorld()
    leader, _ = world.stable(2)
    world.join(leader)
    group = world.coordinator.describe_group(world.context(6), "g", operations=False)
    assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
    assert [member.member_assignment for member in group.members] == [b"", b""]
    assert group.authorized_operations == -(2**31)


@pytest.mark.parametrize(("version", "error_code"), [(5, 0), (6, GroupIdNotFoundError.code)])
def test_a_group_that_does_not_exist_is_dead(version: int, error_code: int) -> None:
    world = GroupWorld()
    group = world.coordinator.describe_group(world.context(version), "g", operations=False)
    assert (group.group_state, group.error_code) == ("Dead", error_code)


def test_there_is_no_group_of_the_empty_id() -> None:
    world = GroupWorld()
    group = world.coordinator.describe_group(world.context(6), "", operations=False)
    assert group.error_code == GroupIdNotFoundError.code


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], ["g", "h"]),
        (["stable"], [], ["g"]),
        (["Empty"], [], ["h"]),
        (["Dead"], [], []),
        ([], ["classic"], ["g", "h"]),
        ([], ["Consumer"], []),
    ],
)
def test_filters_compare_without_case(states: list[str], types: list[str], found: list[str]) -> None:
    world = GroupWorld()
    world.stable(1)
    world.join(group_id="h")
    assert sorted(group.group_id for group in response_of(world.coordinator.list_groups(states, types))) == found


def test_listed_groups_have_their_type() -> None:
    world = GroupWorld()
    world.stable(1)
    (listed,) = response_of(world.coordinator.list_groups([], []))
    assert (listed.group_type, listed.protocol_type, listed.group_state) == ("classic", "consumer", "Stable")


def test_heartbeats_of_a_loading_group_pass() -> None:
    from tidelog.broker.handlers import heartbeat
    from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

    class Loading:
        def heartbeat(self, request: HeartbeatRequest) -> None:
            raise CoordinatorLoadInProgressError

    coordinators = SimpleNamespace(groups=Loading())
    broker: Any = SimpleNamespace(services=SimpleNamespace(coordinators=Lazy(lambda: coordinators)))
    broker.services.coordinators.get()
    world = GroupWorld()
    answer = heartbeat.handle(broker, world.context(4), HeartbeatRequest())
    assert isinstance(answer, HeartbeatResponse)
    assert answer.error_code == 0
