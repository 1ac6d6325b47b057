"""Rebalances of classic groups: waiting members, timeouts, and records of the log."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.coordinators import GroupWorld
from tidelog.broker.coordinator.group.classic.group import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE
from tidelog.broker.coordinator.group.classic.rebalance import append_error_for_client
from tidelog.protocol.coordinator_records.group import GroupMetadataKey
from tidelog.protocol.errors import (
    CoordinatorNotAvailableError,
    InvalidRequestError,
    KafkaError,
    KafkaStorageError,
    MessageTooLargeError,
    NotCoordinatorError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity


def heartbeat(world: GroupWorld, member_id: str, generation_id: int) -> int:
    request = HeartbeatRequest(group_id="g", member_id=member_id, generation_id=generation_id)
    try:
        return world.coordinator.heartbeat(request).result().error_code
    except KafkaError as error:
        return error.code


def test_one_member_is_stable_after_join_and_sync() -> None:
    world = GroupWorld()
    member_id, joined = world.join_twice()
    response = joined.result()
    assert (response.generation_id, response.leader, response.protocol_name) == (1, member_id, "range")
    assert [member.metadata for member in response.members] == [b"meta"]
    assert world.sync(member_id, 1, {member_id: b"all"}).result().assignment == b"all"
    assert world.group().state is STABLE


def test_only_the_leader_gets_the_list_of_members() -> None:
    world = GroupWorld()
    leader, _ = world.join_twice()
    follower, joined = world.join_twice()
    answer = world.join(leader).result()
    assert {member.member_id for member in answer.members} == {leader, follower}
    assert joined.result().members == []
    assert joined.result().leader == leader


def test_followers_wait_for_the_leaders_assignment() -> None:
    world = GroupWorld()
    leader, _ = world.join_twice()
    follower, joined = world.join_twice()
    world.join(leader)
    waiting = world.sync(follower, joined.result().generation_id)
    assert not waiting.done
    world.sync(leader, 2, {leader: b"1", follower: b"2"})
    assert waiting.result().assignment == b"2"


def test_initial_delay_gathers_members_and_is_prolonged_by_each() -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    _, first = world.join_twice()
    world.advance(2_000)
    _, second = world.join_twice()
    world.advance(2_000)
    assert not first.done
    world.advance(2_000)
    assert first.result().generation_id == second.result().generation_id == 1


def test_initial_delay_ends_with_the_rebalance_timeout() -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    _, first = world.join_twice(rebalance_timeout_ms=7_000)
    for _ in range(3):
        world.advance(2_500)
        world.join_twice(rebalance_timeout_ms=7_000)
    assert first.done


def test_a_member_that_does_not_rejoin_is_dropped_after_the_rebalance_timeout() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    rejoined = world.join(leader)
    world.advance(9_000)
    assert heartbeat(world, follower, 2) == RebalanceInProgressError.code
    assert heartbeat(world, leader, 2) == RebalanceInProgressError.code
    for _ in range(6):
        world.advance(9_000)
        heartbeat(world, follower, 2)
    assert [member.member_id for member in rejoined.result().members] == [leader]
    assert heartbeat(world, follower, 2) == UnknownMemberIdError.code


def test_session_timeout_removes_a_silent_member_and_rebalances() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    world.advance(8_000)
    heartbeat(world, leader, 2)
    world.advance(4_000)
    assert world.group().state is PREPARING_REBALANCE
    assert follower not in world.group().members
    assert world.join(leader).result().generation_id == 3


def test_heartbeats_keep_a_session_for_ever() -> None:
    world = GroupWorld()
    (leader,) = world.stable(1)
    for _ in range(100):
        world.advance(9_000)
        assert heartbeat(world, leader, world.group().generation_id) == 0


def test_the_last_silent_member_leaves_an_empty_generation_in_the_log() -> None:
    world = GroupWorld()
    world.stable(1)
    world.advance(10_001)
    assert world.group().state is EMPTY
    value: Any = world.log.records()[-1].value
    assert (value.generation, value.members, value.protocol) == (2, [], None)


def test_members_that_never_sync_are_dropped() -> None:
    world = GroupWorld()
    leader, _ = world.join_twice(session_timeout_ms=100_000)
    follower, _ = world.join_twice(session_timeout_ms=100_000)
    world.join(leader, session_timeout_ms=100_000)
    world.sync(leader, 2, {leader: b"1", follower: b"2"})
    world.advance(60_001)
    assert follower not in world.group().members
    assert world.group().state is PREPARING_REBALANCE


def test_a_new_member_makes_members_in_sync_join_again() -> None:
    world = GroupWorld()
    leader, _ = world.join_twice()
    follower, _ = world.join_twice()
    world.join(leader)
    waiting = world.sync(follower, 2)
    world.join_twice()
    assert waiting.result().error_code == RebalanceInProgressError.code
    assert world.group().state is PREPARING_REBALANCE


def test_a_pending_member_holds_the_rebalance_until_its_session_is_over() -> None:
    world = GroupWorld()
    pending_id = world.join().result().member_id
    _, joined = world.join_twice()
    assert not joined.done
    world.advance(10_001)
    assert joined.result().generation_id == 1
    assert pending_id not in world.group().pending_join_members


def test_a_failed_append_of_the_assignment_makes_members_join_again() -> None:
    world = GroupWorld()
    member_id, _ = world.join_twice()
    world.log.failure = KafkaStorageError()
    assert world.sync(member_id, 1, {member_id: b"a"}).result().error_code == NotCoordinatorError.code
    world.log.failure = None
    assert world.group().state is PREPARING_REBALANCE
    assert world.join(member_id).result().generation_id == 2


def test_timers_of_a_deleted_group_do_nothing() -> None:
    world = GroupWorld()
    world.join_twice(version=3)
    world.runtime.shard_for("g").groups.pop("g")
    before = world.log.appends
    world.advance(1_000_000)
    assert (world.group(), world.log.appends) == (None, before)


def test_late_timers_do_not_change_a_stable_group() -> None:
    world = GroupWorld()
    (leader,) = world.stable(1)
    for _ in range(20):
        world.advance(9_000)
        heartbeat(world, leader, 1)
    assert world.group().state is STABLE


def test_static_members_that_are_late_are_kept_until_their_session_ends() -> None:
    world = GroupWorld()
    joined = world.join(group_instance_id="i", session_timeout_ms=200_000)
    static_id = joined.result().member_id
    world.sync(static_id, 1, {static_id: b"a"}, group_instance_id="i")
    dynamic_id, waiting = world.join_twice(session_timeout_ms=200_000)
    world.advance(60_001)
    assert static_id in world.group().members
    assert waiting.result().generation_id == 2
    assert waiting.result().leader == dynamic_id


def test_without_any_joined_member_the_rebalance_waits_for_sessions() -> None:
    world = GroupWorld()
    joined = world.join(group_instance_id="i", session_timeout_ms=200_000)
    static_id = joined.result().member_id
    world.sync(static_id, 1, {static_id: b"a"}, group_instance_id="i")
    dynamic_id, _ = world.join_twice()
    leaving = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=dynamic_id)])
    world.coordinator.leave_group(world.context(5), leaving).result()
    world.advance(60_001)
    assert world.group().state is PREPARING_REBALANCE
    world.advance(200_000)
    assert world.group().state is EMPTY


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UnknownTopicOrPartitionError(), CoordinatorNotAvailableError),
        (KafkaStorageError(), NotCoordinatorError),
        (MessageTooLargeError(), UnknownServerError),
        (InvalidRequestError(), InvalidRequestError),
    ],
)
def test_append_errors_in_the_codes_clients_know(error: KafkaError, expected: type[KafkaError]) -> None:
    assert type(append_error_for_client(error)) is expected


def test_groups_survive_a_restart() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    again = world.restarted()
    group = again.group()
    assert (group.state, group.generation_id, group.leader_id) == (STABLE, 2, leader)
    assert heartbeat(again, follower, 2) == 0
    assert again.sync(follower, 2).result().assignment == follower.encode()


def test_members_of_a_loaded_group_have_one_session_to_come_back() -> None:
    world = GroupWorld()
    world.stable(2)
    again = world.restarted()
    again.advance(10_001)
    assert again.group().state is EMPTY


def test_a_loaded_group_that_is_too_large_rebalances() -> None:
    world = GroupWorld()
    world.stable(3)
    shrunk = GroupWorld(world.log, world.time, group_max_size=2)
    shrunk.runtime.load_all()
    shrunk.loop.run_soon()
    assert shrunk.group().state is PREPARING_REBALANCE


def test_stopping_answers_waiting_members() -> None:
    world = GroupWorld()
    leader, _ = world.stable(2)
    waiting = world.join(leader)
    world.runtime.shard_for("g").close()
    assert waiting.result().error_code == NotCoordinatorError.code


def test_records_that_a_rebalance_writes() -> None:
    world = GroupWorld()
    world.stable(2)
    keys = [type(record.key) for record in world.log.records()]
    assert keys == [GroupMetadataKey] * 2  # the new group, then the assignment of generation 2


def test_states_pass_through_completing() -> None:
    world = GroupWorld()
    world.join_twice()
    assert world.group().state is COMPLETING_REBALANCE


@pytest.mark.parametrize("known", [True, False])
def test_a_member_that_disconnects_during_a_join_is_removed_after_its_session_timeout(known: bool) -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    stays, first = world.join_twice()
    world.advance(6_000)
    assert first.done
    gone, waiting = world.join_twice()
    if known:
        world.join(stays)
        world.sync(stays, 2, {})
        waiting = world.join(gone, protocols={"range": b"new"})
    waiting.abandon()
    for _ in range(3):
        world.advance(5_000)
        heartbeat(world, stays, world.group().generation_id)
    assert gone not in world.group().members


def test_a_connection_that_closes_later_changes_nothing() -> None:
    world = GroupWorld()
    leader, _ = world.stable(2)
    waiting = world.join(leader)
    world.runtime.shard_for("g").groups.pop("g")
    before = world.log.appends
    waiting.abandon()
    world.advance(100_000)
    assert (world.group(), world.log.appends) == (None, before)
