"""JoinGroup to classic groups: ids, refusals, static members."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.coordinators import GroupWorld
from tidelog.broker.coordinator.group.classic.group import PREPARING_REBALANCE, STABLE
from tidelog.broker.coordinator.group.classic.join import NEW_MEMBER_JOIN_TIMEOUT_MS
from tidelog.protocol.errors import (
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    KafkaStorageError,
    MemberIdRequiredError,
    NotCoordinatorError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol


def test_member_id_begins_with_the_client_id() -> None:
    assert GroupWorld().join(version=3).result().member_id == "c-1"


def test_static_member_id_begins_with_the_instance_id() -> None:
    assert GroupWorld().join(group_instance_id="i").result().member_id == "i-1"


@pytest.mark.parametrize("version", [3, 9])
def test_a_name_of_which_no_member_id_can_be_made_is_refused(version: int) -> None:
    """A group with such an id could not be stored: each assignment of its leader unloaded the shard."""
    world = GroupWorld()
    context = world.context(version, "c" * 32_767)
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"meta")]
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=60_000, protocol_type="consumer",
        protocols=protocols,
    )  # fmt: skip
    with pytest.raises(InvalidRequestError):
        world.coordinator.join_group(context, request)
    with pytest.raises(InvalidRequestError):
        world.join(group_instance_id="i" * 32_767, version=version)
    assert world.group() is None


@pytest.mark.parametrize(("version", "required"), [(0, False), (3, False), (4, True), (9, True)])
def test_new_dynamic_members_ask_twice_from_version_4(version: int, required: bool) -> None:
    response = GroupWorld().join(version=version).result()
    assert (response.error_code == MemberIdRequiredError.code) == required


def test_version_0_uses_the_session_timeout_for_the_rebalance() -> None:
    world = GroupWorld()
    world.join(version=0, rebalance_timeout_ms=-1)
    assert world.group().rebalance_timeout_ms == 10_000


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001])
def test_session_timeouts_have_bounds(timeout_ms: int) -> None:
    with pytest.raises(InvalidSessionTimeoutError):
        GroupWorld().join(session_timeout_ms=timeout_ms)


def test_the_empty_group_id_is_refused() -> None:
    with pytest.raises(InvalidGroupIdError):
        GroupWorld().join(group_id="")


def test_a_member_id_without_a_group_is_unknown() -> None:
    world = GroupWorld()
    response = world.join("m").result()
    assert (response.error_code, response.member_id) == (UnknownMemberIdError.code, "m")
    assert world.group() is None


def test_an_unknown_member_id_in_an_empty_group_is_refused() -> None:
    world = GroupWorld()
    world.join()
    assert world.join("m").result().error_code == UnknownMemberIdError.code


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol_type": "connect"},
        {"protocols": {"other": b""}},
        {"protocols": {}},
    ],
)
def test_protocols_must_be_shared(fields: dict[str, Any]) -> None:
    world = GroupWorld()
    world.stable(1)
    assert world.join(**fields).result().error_code == InconsistentGroupProtocolError.code


@pytest.mark.parametrize("fields", [{"protocol_type": ""}, {"protocols": {}}])
def test_the_first_member_must_have_a_protocol(fields: dict[str, Any]) -> None:
    assert GroupWorld().join(**fields).result().error_code == InconsistentGroupProtocolError.code


def test_the_protocol_most_members_prefer_wins() -> None:
    world = GroupWorld()
    first, _ = world.join_twice(protocols={"a": b"1", "b": b"2"})
    world.join_twice(protocols={"b": b"3", "a": b"4"})
    _, third = world.join_twice(protocols={"b": b"5", "a": b"6", "c": b"7"})
    world.join(first, protocols={"a": b"1", "b": b"2"})
    assert third.result().protocol_name == "b"


def test_group_max_size_turns_new_members_away() -> None:
    world = GroupWorld(group_max_size=1)
    (leader,) = world.stable(1)
    assert world.join(version=3).result().error_code == GroupMaxSizeReachedError.code
    world.join(leader)
    assert world.group().generation_id == 2


def test_the_last_to_rejoin_a_group_that_was_made_smaller_are_turned_away() -> None:
    world = GroupWorld()
    world.stable(2)
    shrunk = GroupWorld(world.log, world.time, group_max_size=1)
    first, second = list(shrunk.group().members)
    shrunk.join(first)
    assert shrunk.join(second).result().error_code == GroupMaxSizeReachedError.code
    assert list(shrunk.group().members) == [first]


def test_a_follower_that_asks_again_gets_the_same_generation() -> None:
    world = GroupWorld()
    _, follower = world.stable(2)
    assert world.join(follower).result().generation_id == 2
    assert world.group().state is STABLE


def test_a_lost_answer_in_completing_rebalance_is_repeated_to_the_leader_too() -> None:
    world = GroupWorld()
    leader, _ = world.join_twice()
    response = world.join(leader).result()
    assert (response.generation_id, len(response.members)) == (1, 1)


@pytest.mark.parametrize("who", ["leader", "changed follower"])
def test_joins_that_rebalance_a_stable_group(who: str) -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    waiting = world.join(leader) if who == "leader" else world.join(follower, protocols={"range": b"new"})
    assert not waiting.done
    assert world.group().state is PREPARING_REBALANCE


def test_a_second_join_of_the_same_member_replaces_the_first() -> None:
    world = GroupWorld()
    leader, _ = world.stable(2)
    first = world.join(leader)
    second = world.join(leader)
    assert first.result().error_code == RebalanceInProgressError.code
    assert not second.done


def test_an_unknown_member_of_a_group_with_members_is_refused() -> None:
    world = GroupWorld()
    world.stable(1)
    assert world.join("m").result().error_code == UnknownMemberIdError.code


# -- static members -------------------------------------------------------------------------------------------------


def static_pair() -> tuple[GroupWorld, str, str]:
    """Build a stable group of the static members a (the leader) and b."""
    world = GroupWorld()
    first = world.join(group_instance_id="a").result().member_id
    second = world.join(group_instance_id="b")
    world.join(first, group_instance_id="a")
    assignments = {first: b"A", second.result().member_id: b"B"}
    world.sync(second.result().member_id, 2, group_instance_id="b")
    world.sync(first, 2, assignments, group_instance_id="a")
    return world, first, second.result().member_id


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    world, _, old = static_pair()
    response = world.join(group_instance_id="b").result()
    assert response.generation_id == 2
    assert response.member_id != old
    assert world.group().state is STABLE
    assert world.sync(response.member_id, 2, group_instance_id="b").result().assignment == b"B"


def test_the_old_incarnation_is_fenced() -> None:
    world, _, old = static_pair()
    world.join(group_instance_id="b")
    with pytest.raises(FencedInstanceIdError):
        world.sync(old, 2, group_instance_id="b")
    assert world.join(old, group_instance_id="b").result().error_code == FencedInstanceIdError.code


def test_an_instance_that_was_never_here_is_unknown() -> None:
    world, first, _ = static_pair()
    assert world.join(first, group_instance_id="z").result().error_code == UnknownMemberIdError.code


@pytest.mark.parametrize(("version", "skip", "members", "leads"), [(9, True, 2, True), (8, False, 0, False)])
def test_a_returning_static_leader_does_not_assign(version: int, skip: bool, members: int, leads: bool) -> None:
    world, _, _ = static_pair()
    response = world.join(group_instance_id="a", version=version).result()
    assert response.skip_assignment is skip
    assert len(response.members) == members
    assert (response.leader == response.member_id) is leads


def test_a_returning_static_member_that_changes_the_protocol_rebalances() -> None:
    world = GroupWorld()
    both = {"x": b"", "y": b""}
    member_id = world.join(group_instance_id="a", protocols=both).result().member_id
    world.sync(member_id, 1, {member_id: b"A"}, group_instance_id="a")
    waiting = world.join(group_instance_id="a", protocols={"y": b""})
    assert waiting.result().generation_id == 2
    assert waiting.result().protocol_name == "y"


def test_a_static_member_that_returns_before_the_assignment_rebalances() -> None:
    world = GroupWorld()
    first = world.join(group_instance_id="a").result().member_id
    world.join(group_instance_id="b")
    world.join(first, group_instance_id="a")
    waiting = world.join(group_instance_id="b")
    assert not waiting.done
    assert world.group().state is PREPARING_REBALANCE
    world.join(first, group_instance_id="a")
    assert waiting.result().generation_id == 3


def test_a_static_member_that_returns_during_the_rebalance_fences_the_waiting_one() -> None:
    world, _, old = static_pair()
    waiting = world.join(old, group_instance_id="b", protocols={"range": b"new"})
    again = world.join(group_instance_id="b", protocols={"range": b"new"})
    assert waiting.result().error_code == FencedInstanceIdError.code
    assert not again.done


def test_a_static_return_fences_a_waiting_sync() -> None:
    world = GroupWorld()
    first = world.join(group_instance_id="a").result().member_id
    second = world.join(group_instance_id="b")
    world.join(first, group_instance_id="a")
    waiting = world.sync(second.result().member_id, 2, group_instance_id="b")
    world.join(group_instance_id="b")
    assert waiting.result().error_code == FencedInstanceIdError.code


def test_a_static_return_that_cannot_be_stored_changes_nothing() -> None:
    world, first, old = static_pair()
    world.log.failure = KafkaStorageError()
    assert world.join(group_instance_id="b").result().error_code == NotCoordinatorError.code
    world.log.failure = None
    assert set(world.group().members) == {first, old}
    assert world.sync(old, 2, group_instance_id="b").result().assignment == b"B"


@pytest.mark.parametrize("version", [3, 9])
def test_a_new_group_that_cannot_be_stored_is_forgotten(version: int) -> None:
    """Else its first member, whose client got an error, stays in it and gets partitions that it does not read."""
    world = GroupWorld()
    world.log.failure = KafkaStorageError()
    with pytest.raises(NotCoordinatorError):
        world.join(version=version)
    world.log.failure = None
    assert world.group() is None
    assert len(world.stable(1)) == 1
    world.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert world.group().generation_id == 2, "its own member has timed out, and no other"


def test_the_new_id_of_a_static_member_survives_a_restart() -> None:
    world, first, _ = static_pair()
    new = world.join(group_instance_id="b").result().member_id
    assert set(world.restarted().group().members) == {first, new}
