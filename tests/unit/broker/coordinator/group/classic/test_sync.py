"""SyncGroup, Heartbeat and LeaveGroup to classic groups."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.coordinators import GroupWorld
from tidelog.broker.coordinator.group.classic.group import DEAD, EMPTY, PREPARING_REBALANCE, STABLE
from tidelog.protocol.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity


def leave(world: GroupWorld, *members: MemberIdentity, version: int = 5) -> LeaveGroupResponse:
    return world.coordinator.leave_group(
        world.context(version), LeaveGroupRequest(group_id="g", members=list(members))
    ).result()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": "stranger"}, UnknownMemberIdError),
        ({"generation_id": 1}, IllegalGenerationError),
        ({"group_instance_id": "i"}, UnknownMemberIdError),
        ({"protocol_type": "connect"}, InconsistentGroupProtocolError),
        ({"protocol_name": "sticky"}, InconsistentGroupProtocolError),
    ],
)
def test_sync_checks_the_member(fields: dict[str, Any], error: type[KafkaError]) -> None:
    world = GroupWorld()
    leader, _ = world.stable(2)
    with pytest.raises(error):
        world.sync(**{"member_id": leader, "generation_id": 2, **fields})


def test_sync_to_no_group_is_of_an_unknown_member() -> None:
    with pytest.raises(UnknownMemberIdError):
        GroupWorld().sync("m", 1)


def test_sync_during_a_rebalance_is_told_to_join() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    world.join(leader)
    with pytest.raises(RebalanceInProgressError):
        world.sync(follower, 2)


def test_sync_with_the_right_protocol_passes() -> None:
    world = GroupWorld()
    _, follower = world.stable(2)
    answer = world.sync(follower, 2, protocol_type="consumer", protocol_name="range").result()
    assert (answer.protocol_type, answer.protocol_name, answer.assignment) == ("consumer", "range", follower.encode())


def test_members_the_leader_forgot_get_an_empty_assignment() -> None:
    world = GroupWorld()
    leader, _ = world.join_twice()
    follower, _ = world.join_twice()
    world.join(leader)
    world.sync(leader, 2, {leader: b"all"})
    assert world.sync(follower, 2).result().assignment == b""


def test_a_second_sync_replaces_the_first() -> None:
    world = GroupWorld()
    leader, _ = world.join_twice()
    follower, _ = world.join_twice()
    world.join(leader)
    first = world.sync(follower, 2)
    second = world.sync(follower, 2)
    assert first.result().error_code == RebalanceInProgressError.code
    assert not second.done


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": "none"}, UnknownMemberIdError),
        ({"member_id": "stranger"}, UnknownMemberIdError),
        ({"generation_id": 1}, IllegalGenerationError),
        ({"generation_id": 3}, IllegalGenerationError),
    ],
)
def test_heartbeat_checks_the_member(fields: dict[str, Any], error: type[KafkaError]) -> None:
    world = GroupWorld()
    leader, _ = world.stable(2)
    values: dict[str, Any] = {"group_id": "g", "member_id": leader, "generation_id": 2, **fields}
    with pytest.raises(error):
        world.coordinator.heartbeat(HeartbeatRequest(**values)).result()


def test_a_fenced_static_member_gets_the_error_in_its_heartbeat() -> None:
    world = GroupWorld()
    old = world.join(group_instance_id="i").result().member_id
    world.join(group_instance_id="i")
    with pytest.raises(FencedInstanceIdError):
        world.coordinator.heartbeat(
            HeartbeatRequest(group_id="g", member_id=old, generation_id=1, group_instance_id="i")
        ).result()


def test_a_dead_group_sends_members_to_look_for_the_coordinator() -> None:
    world = GroupWorld()
    (leader,) = world.stable(1)
    world.group().transition_to(DEAD, 0)
    with pytest.raises(CoordinatorNotAvailableError):
        world.sync(leader, 1)
    with pytest.raises(CoordinatorNotAvailableError):
        world.coordinator.heartbeat(HeartbeatRequest(group_id="g", member_id=leader, generation_id=1)).result()
    with pytest.raises(CoordinatorNotAvailableError):
        leave(world, MemberIdentity(member_id=leader))
    assert world.join().result().error_code == CoordinatorNotAvailableError.code


# -- LeaveGroup -----------------------------------------------------------------------------------------------------


def test_leaving_rebalances_the_rest() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    assert leave(world, MemberIdentity(member_id=follower)).members[0].error_code == 0
    assert world.group().state is PREPARING_REBALANCE
    assert world.join(leader).result().generation_id == 3


def test_the_last_to_leave_empties_the_group() -> None:
    world = GroupWorld()
    (leader,) = world.stable(1)
    leave(world, MemberIdentity(member_id=leader))
    assert world.group().state is EMPTY
    assert world.restarted().group().state is EMPTY


def test_several_leave_with_one_rebalance_each_with_its_own_error() -> None:
    world = GroupWorld()
    first, second, third = world.stable(3)
    response = leave(
        world, MemberIdentity(member_id=second), MemberIdentity(member_id="stranger"), MemberIdentity(member_id=third)
    )
    assert [member.error_code for member in response.members] == [0, UnknownMemberIdError.code, 0]
    assert list(world.group().members) == [first]


def test_an_unknown_member_that_leaves_changes_nothing() -> None:
    world = GroupWorld()
    world.stable(1)
    leave(world, MemberIdentity(member_id="stranger"))
    assert world.group().state is STABLE


@pytest.mark.parametrize(
    ("instance_id", "error_code"), [("i", 0), ("j", UnknownMemberIdError.code), (None, UnknownMemberIdError.code)]
)
def test_static_members_are_removed_by_instance_id(instance_id: str | None, error_code: int) -> None:
    world = GroupWorld()
    world.join(group_instance_id="i")
    response = leave(world, MemberIdentity(group_instance_id=instance_id))
    assert response.members[0].error_code == error_code
    assert response.members[0].member_id == ""
    assert bool(world.group().members) == bool(error_code)


def test_a_fenced_member_cannot_leave() -> None:
    world = GroupWorld()
    old = world.join(group_instance_id="i").result().member_id
    world.join(group_instance_id="i")
    response = leave(world, MemberIdentity(member_id=old, group_instance_id="i"))
    assert response.members[0].error_code == FencedInstanceIdError.code


def test_a_pending_member_leaves_and_others_continue() -> None:
    world = GroupWorld()
    pending_id = world.join().result().member_id
    _, waiting = world.join_twice()
    leave(world, MemberIdentity(member_id=pending_id))
    assert waiting.result().generation_id == 1


def test_leaving_while_waiting_in_join_answers_the_join() -> None:
    world = GroupWorld()
    leader, _ = world.stable(2)
    waiting = world.join(leader)
    leave(world, MemberIdentity(member_id=leader))
    assert waiting.result().error_code == UnknownMemberIdError.code


@pytest.mark.parametrize("known", [True, False])
def test_before_version_3_the_error_is_the_answers(known: bool) -> None:
    world = GroupWorld()
    (leader,) = world.stable(1)
    request = LeaveGroupRequest(group_id="g", member_id=leader if known else "stranger")
    response = world.coordinator.leave_group(world.context(2), request).result()
    assert response.error_code == (0 if known else UnknownMemberIdError.code)


def test_leaving_no_group_is_of_an_unknown_member() -> None:
    assert [gone.error_code for gone in leave(GroupWorld(), MemberIdentity(member_id="m")).members] == [
        UnknownMemberIdError.code
    ]
