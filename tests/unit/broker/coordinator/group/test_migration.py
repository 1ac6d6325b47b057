"""Groups that change their protocol with members in them, and classic members of consumer groups."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tests.support.coordinators import GroupWorld
from tests.unit.broker.coordinator.group.consumer.test_heartbeat import T, beat, group_of, join, partitions
from tests.unit.broker.stepping import response_of
from tidelog.broker.coordinator.group.classic.group import ClassicGroup, ClassicGroupState
from tidelog.broker.coordinator.group.consumer.group import (
    ClassicSpec,
    ConsumerGroup,
    ConsumerGroupState,
    Subscription,
)
from tidelog.protocol.errors import (
    NONE,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    KafkaError,
    KafkaStorageError,
    MemberIdRequiredError,
    NotCoordinatorError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from tidelog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.join_group import JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity, MemberResponse
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup

ALL = [0, 1, 2, 3]


def encode_subscription(*topics: str, owned: list[int] | None = None, version: int = 3) -> bytes:
    """Encode the metadata of a classic consumer in its JoinGroup."""
    held = [TopicPartition(topic="t", partitions=owned)] if owned else []
    subscription = ConsumerProtocolSubscription(topics=list(topics or ["t"]), owned_partitions=held)
    return subscription.encode_prefixed(version)


def encode_assignment(*indexes: int, topic: str = "t") -> bytes:
    assigned = [TopicPartition(topic=topic, partitions=list(indexes))]
    return ConsumerProtocolAssignment(assigned_partitions=assigned).encode_prefixed(1)


def decode_assignment(assignment: bytes) -> list[int]:
    topics = ConsumerProtocolAssignment.decode_prefixed_lenient(assignment).assigned_partitions
    return sorted(index for topic in topics for index in topic.partitions)


class Classic:
    """A classic consumer that rebalances cooperatively, as Kafka's does: it keeps what it is not asked to give up."""

    def __init__(self, world: GroupWorld, instance_id: str | None = None, **fields: Any) -> None:
        self.world = world
        self.fields = {"group_instance_id": instance_id, **fields}
        self.instance_id = instance_id
        self.member_id = ""
        self.generation_id = -1
        self.owned: list[int] = []

    def ask_to_join(self, **fields: Any) -> Any:
        protocols = {"cooperative-sticky": encode_subscription(owned=self.owned)}
        return self.world.join(self.member_id, **{"protocols": protocols, **self.fields, **fields})

    def join(self, **fields: Any) -> JoinGroupResponse:
        """Join until the answer is a generation or an error."""
        response: JoinGroupResponse = self.ask_to_join(**fields).result()
        if response.error_code == MemberIdRequiredError.code:
            self.member_id = response.member_id
            response = self.ask_to_join(**fields).result()
        if response.error_code == NONE:
            self.member_id, self.generation_id = response.member_id, response.generation_id
        return response

    def sync(self, assignments: dict[str, bytes] | None = None, **fields: Any) -> list[int]:
        given = {"group_instance_id": self.instance_id, **fields}
        response = self.world.sync(self.member_id, self.generation_id, assignments, **given).result()
        assert response.error_code == NONE
        self.owned = decode_assignment(bytes(response.assignment))
        return self.owned

    def heartbeat(self, **fields: Any) -> int:
        given = {"member_id": self.member_id, "generation_id": self.generation_id, **fields}
        request = HeartbeatRequest(group_id="g", group_instance_id=self.instance_id, **given)
        return self.world.coordinator.heartbeat(request).result().error_code

    def follow(self) -> bool:
        """Take one turn of its loop; returns whether it had to rejoin."""
        if self.heartbeat() != RebalanceInProgressError.code:
            return False
        assert self.join().error_code == NONE
        self.sync()
        return True


class Modern:
    """A consumer of the consumer protocol."""

    def __init__(self, world: GroupWorld, member_id: str, **fields: Any) -> None:
        self.world, self.member_id, self.fields = world, member_id, fields
        self.epoch = 0
        self.owned: list[int] = []

    def join(self) -> None:
        self._take(join(self.world, self.member_id, **self.fields))

    def follow(self) -> None:
        self._take(beat(self.world, self.member_id, self.epoch, owned={T: self.owned}))

    def _take(self, response: Any) -> None:
        self.epoch = response.member_epoch
        found = partitions(response)
        if found is not None:
            self.owned = found.get(T, [])

    def leave(self) -> None:
        beat(self.world, self.member_id, -1)


class Late(Modern):
    """A consumer that gives up partitions some turns after it was told to. Until then it takes no others."""

    told: list[int] | None = None
    turns = 0

    def follow(self) -> None:
        if self.told is not None:
            self.turns -= 1
            if self.turns == 0:
                self.owned, self.told = self.told, None
        super().follow()

    def _take(self, response: Any) -> None:
        self.epoch = response.member_epoch
        found = partitions(response)
        if found is None:
            return
        told = found.get(T, [])
        if set(self.owned) <= set(told):
            self.owned, self.told = told, None
        else:
            self.turns = self.turns if self.told is not None else 3
            self.told = told


def classic_group(world: GroupWorld, *instance_ids: str | None) -> list[Classic]:
    """Build a stable classic group of two members that share the topic."""
    members = [Classic(world, instance_id) for instance_id in instance_ids or (None, None)]
    waiting = []
    for member in members:
        first = member.ask_to_join()
        if member.instance_id is None:
            member.member_id = first.result().member_id
            first = member.ask_to_join()
        elif first.done:
            member.member_id = first.result().member_id
        waiting.append(first)
    for index, member in enumerate(members[:-1]):
        if waiting[index].done and waiting[index].result().error_code == NONE:
            member.member_id = waiting[index].result().member_id
            waiting[index] = member.ask_to_join()
    for member, deferred in zip(members, waiting, strict=True):
        response = deferred.result()
        member.member_id, member.generation_id = response.member_id, response.generation_id
    share = len(ALL) // len(members)
    given = {m.member_id: encode_assignment(*ALL[i * share : (i + 1) * share]) for i, m in enumerate(members)}
    leader = waiting[0].result().leader
    others = [m for m in members if m.member_id != leader]
    deferreds = [world.sync(m.member_id, m.generation_id, group_instance_id=m.instance_id) for m in others]
    next(m for m in members if m.member_id == leader).sync(given)
    for member, synced in zip(others, deferreds, strict=True):
        member.owned = decode_assignment(bytes(synced.result().assignment))
    return members


def settle(world: GroupWorld, *followers: Classic | Modern) -> None:
    """Let all follow until the group is stable; no member ever holds what another one holds."""
    for _ in range(20):
        for member in followers:
            member.follow()
            held = [index for follower in followers for index in follower.owned]
            assert len(held) == len(set(held)), held
    assert group_of(world).state is ConsumerGroupState.STABLE


def upgraded_group(world: GroupWorld, *instance_ids: str | None) -> tuple[list[Classic], Modern]:
    members = classic_group(world, *instance_ids)
    modern = Modern(world, "new")
    modern.join()
    return members, modern


# -- classic to consumer --------------------------------------------------------------------------------------------


def test_a_group_is_rolled_over_member_by_member() -> None:
    world = GroupWorld()
    members, modern = upgraded_group(world)
    settle(world, *members, modern)
    assert sorted([len(modern.owned), *(len(member.owned) for member in members)]) == [1, 1, 2]
    left = Modern(world, "newer")
    leave(world, members[0].member_id)
    left.join()
    settle(world, members[1], modern, left)
    leave(world, members[1].member_id)
    settle(world, modern, left)
    assert sorted(modern.owned + left.owned) == ALL


def test_a_consumer_member_gets_no_partition_before_a_classic_member_gives_it_back() -> None:
    world = GroupWorld()
    (first, second), modern = upgraded_group(world)
    modern.follow()
    assert modern.owned == []
    assert (modern.epoch, first.generation_id) == (first.generation_id + 1, second.generation_id)
    before = [*first.owned, *second.owned]
    assert first.heartbeat() == RebalanceInProgressError.code
    for member in (first, second):
        assert member.follow()
    modern.follow()
    assert modern.owned == [], "no JoinGroup has said yet that a partition was given back"
    for member in (first, second, first, second):
        member.follow()
    modern.follow()
    assert modern.owned
    assert sorted([*modern.owned, *first.owned, *second.owned]) == sorted(before)


def test_an_upgraded_group_is_loaded_from_the_log() -> None:
    world = GroupWorld()
    members, modern = upgraded_group(world)
    settle(world, *members, modern)
    before, after = group_of(world), group_of(world.restarted())
    assert after.epoch == before.epoch
    assert after.target == before.target
    assert {i: m.subscription for i, m in after.members.items()} == {
        i: m.subscription for i, m in before.members.items()
    }
    assert sum(m.subscription.classic is not None for m in after.members.values()) == 2


def test_a_member_waiting_in_a_rebalance_is_told_to_rejoin_by_the_upgrade() -> None:
    world = GroupWorld()
    first, _ = classic_group(world)
    waiting = first.ask_to_join(protocols={"cooperative-sticky": encode_subscription("u")})
    assert not waiting.done
    Modern(world, "new").join()
    assert waiting.result().error_code == RebalanceInProgressError.code
    assert first.join().error_code == NONE


def test_a_member_that_rejoins_without_the_groups_protocol_hinders_no_upgrade() -> None:
    world = GroupWorld()
    both = {"range": encode_subscription(), "roundrobin": encode_subscription()}
    _, joined = world.join_twice(protocols=both)
    second, again = world.join_twice(protocols=both)
    world.join(joined.result().member_id, protocols=both)
    assert again.result().protocol_name == "range"
    waiting = world.join(second, protocols={"roundrobin": encode_subscription()})
    Modern(world, "new").join()
    assert waiting.result().error_code == RebalanceInProgressError.code
    assert len(group_of(world).members) == 3


def test_a_member_waiting_for_its_assignment_is_told_to_rejoin_by_the_upgrade() -> None:
    world = GroupWorld()
    _, joined = world.join_twice(protocols={"range": encode_subscription()})
    second, again = world.join_twice(protocols={"range": encode_subscription()})
    world.join(joined.result().member_id, protocols={"range": encode_subscription()})
    waiting = world.sync(second, again.result().generation_id)
    Modern(world, "new").join()
    assert waiting.result().error_code == RebalanceInProgressError.code


def test_a_group_in_its_first_rebalance_can_be_upgraded() -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=3000)
    waiting = Classic(world).ask_to_join(version=3)
    assert not waiting.done
    modern = Modern(world, "new")
    modern.join()
    assert waiting.result().error_code == RebalanceInProgressError.code
    world.advance(10_000)
    assert isinstance(world.group(), ConsumerGroup)


def test_very_many_members_leave_in_a_short_turn() -> None:
    world = GroupWorld()
    Modern(world, "new").join()
    spec = ClassicSpec(10_000, (("range", encode_subscription()),))
    for number in range(1_000):
        group_of(world).put_member(f"m{number}", Subscription(classic=spec))
    names = [MemberIdentity(member_id=f"m{number % 1_000}") for number in range(2_000)]
    began = time.process_time()
    response = world.coordinator.leave_group(world.context(5), LeaveGroupRequest(group_id="g", members=names)).result()
    assert time.process_time() - began < 0.5
    assert {member.error_code for member in response.members} == {NONE}
    assert set(group_of(world).members) == {"new"}


def test_members_of_very_many_protocols_join_in_a_short_turn() -> None:
    world = GroupWorld()
    Modern(world, "new").join()
    protocols = {f"protocol-{number}": encode_subscription() for number in range(3_000)}
    for _ in range(2):
        assert Classic(world, protocols=protocols).join().error_code == NONE
    third = Classic(world, protocols=protocols)
    began = time.process_time()
    assert third.join().error_code == NONE
    assert time.process_time() - began < 0.3


def test_a_rebalancing_group_whose_members_have_left_can_be_upgraded() -> None:
    world = GroupWorld(group_initial_rebalance_delay_ms=3000)
    first, waiting = world.join_twice(protocols={"range": encode_subscription()})
    world.join(protocols={"range": encode_subscription()})  # asks for a member id
    leave(world, first)
    assert waiting.result().error_code == UnknownMemberIdError.code
    Modern(world, "new").join()
    assert set(group_of(world).members) == {"new"}


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_a_policy_may_forbid_the_upgrade(policy: str) -> None:
    world = GroupWorld(group_consumer_migration_policy=policy)
    with pytest.raises(GroupIdNotFoundError):
        upgraded_group(world)
    assert isinstance(world.group(), ClassicGroup)


def test_a_group_of_another_protocol_or_that_would_be_too_large_is_not_upgraded() -> None:
    for fields in ({"protocol_type": "connect"}, {"protocols": {"range": b"meta"}}):
        world = GroupWorld()
        world.join(version=3, **fields)
        with pytest.raises(GroupIdNotFoundError):
            Modern(world, "new").join()
    world = GroupWorld(group_consumer_max_size=1)
    with pytest.raises(GroupIdNotFoundError):
        upgraded_group(world)
    world = GroupWorld(group_consumer_max_size=2)
    with pytest.raises(GroupMaxSizeReachedError):
        upgraded_group(world)
    assert isinstance(world.group(), ClassicGroup)


def test_an_upgrade_that_cannot_be_stored_changes_nothing() -> None:
    world = GroupWorld()
    first, _ = classic_group(world)
    waiting = first.ask_to_join(protocols={"cooperative-sticky": encode_subscription("u")})
    world.log.failure = KafkaStorageError()
    with pytest.raises(NotCoordinatorError):
        Modern(world, "new").join()
    world.log.failure = None
    assert isinstance(world.group(), ClassicGroup)
    assert not waiting.done


def test_deleted_topics_are_left_out_of_the_assignment() -> None:
    world = GroupWorld()
    member_id, joined = world.join_twice(protocols={"range": encode_subscription("gone", "t")})
    world.sync(member_id, joined.result().generation_id, {member_id: encode_assignment(0, topic="gone")})
    Modern(world, "new").join()
    assert group_of(world).members[member_id].current.assigned == {}


# -- consumer to classic --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["leaves", "is not heard of"])
def test_without_its_last_consumer_member_the_group_is_a_classic_one(way: str) -> None:
    world = GroupWorld()
    members, modern = upgraded_group(world)
    settle(world, *members, modern)
    if way == "leaves":
        modern.leave()
    else:
        for _ in range(10):
            world.advance(5_000)
            for member in members:
                if isinstance(world.group(), ConsumerGroup):
                    member.heartbeat()
    group = world.group()
    assert isinstance(group, ClassicGroup)
    assert (group.state, group.protocol_type) == (ClassicGroupState.PREPARING_REBALANCE, "consumer")
    assert [m.heartbeat() for m in members] == [RebalanceInProgressError.code] * 2
    waiting = [m.ask_to_join() for m in members]
    assert {w.result().generation_id for w in waiting} == {group.generation_id}
    assert world.restarted().group().group_type == "Classic"


def test_the_assignment_is_kept_over_the_downgrade() -> None:
    world = GroupWorld()
    members, modern = upgraded_group(world)
    settle(world, *members, modern)
    modern.leave()
    group = world.restarted().group()
    for member in members:
        assert decode_assignment(group.members[member.member_id].assignment) == sorted(member.owned)


@pytest.mark.parametrize("policy", ["upgrade", "disabled"])
def test_a_policy_may_forbid_the_downgrade(policy: str) -> None:
    world = GroupWorld()
    members, modern = upgraded_group(world)
    again = GroupWorld(world.log, world.time, group_consumer_migration_policy=policy)
    modern.world = again
    modern.leave()
    assert set(group_of(again).members) == {m.member_id for m in members}


def test_a_group_too_large_for_a_classic_one_stays() -> None:
    world = GroupWorld(group_max_size=2)
    _, modern = upgraded_group(world)
    third = Classic(world)
    assert third.join().error_code == NONE
    modern.leave()
    assert isinstance(world.group(), ConsumerGroup)


def test_a_downgrade_that_cannot_be_stored_is_tried_again() -> None:
    world = GroupWorld()
    _, modern = upgraded_group(world)
    world.log.failure = KafkaStorageError()
    with pytest.raises(NotCoordinatorError):
        modern.leave()
    assert isinstance(world.group(), ConsumerGroup)
    world.log.failure = None
    modern.leave()
    assert isinstance(world.group(), ClassicGroup)


def test_a_group_whose_only_member_leaves_stays_a_consumer_group() -> None:
    world = GroupWorld()
    Modern(world, "a").join()
    beat(world, "a", -1)
    assert isinstance(world.group(), ConsumerGroup)


# -- static members -------------------------------------------------------------------------------------------------


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions() -> None:
    world = GroupWorld()
    members = classic_group(world, "i", "j")
    modern = Modern(world, "new", instance_id="i")
    modern.join()
    assert modern.owned == members[0].owned
    assert group_of(world).members.keys() == {"new", members[1].member_id}
    with pytest.raises(FencedInstanceIdError):
        members[0].heartbeat()
    settle(world, members[1], modern)
    back = Classic(world, "i")
    response = back.join()
    group = world.group()
    assert isinstance(group, ClassicGroup)
    assert (group.state, response.generation_id) == (ClassicGroupState.STABLE, group.generation_id)
    assert back.sync() == modern.owned
    assert members[1].heartbeat() == NONE
    assert world.restarted().group().static_members == group.static_members


def test_a_static_downgrade_that_cannot_be_stored_is_refused() -> None:
    world = GroupWorld()
    classic_group(world, "i", "j")
    Modern(world, "new", instance_id="i").join()
    world.log.failure = KafkaStorageError()
    assert Classic(world, "i").join().error_code == NotCoordinatorError.code
    assert isinstance(world.group(), ConsumerGroup)


def test_a_static_classic_member_takes_the_place_of_another_one() -> None:
    world = GroupWorld()
    members, modern = upgraded_group(world, "i", "j")
    settle(world, *members, modern)
    again = Classic(world, "i")
    assert again.join().error_code == NONE
    assert again.sync() == members[0].owned
    with pytest.raises(FencedInstanceIdError):
        members[0].heartbeat()
    third = Modern(world, "x", instance_id="k")
    third.join()
    with pytest.raises(UnreleasedInstanceIdError):
        Modern(world, "y", instance_id="k").join()


def test_a_static_member_that_names_an_id_must_have_it() -> None:
    world = GroupWorld()
    (first, _), _ = upgraded_group(world, "i", "j")
    member = Classic(world, "i")
    member.member_id = "other"
    assert member.join().error_code == FencedInstanceIdError.code
    member = Classic(world, "nobody")
    member.member_id = "other"
    assert member.join().error_code == UnknownMemberIdError.code
    assert first.join().error_code == NONE


# -- classic members of a consumer group ----------------------------------------------------------------------------


def test_a_classic_member_joins_a_consumer_group() -> None:
    world = GroupWorld()
    modern = Modern(world, "a")
    modern.join()
    classic = Classic(world)
    response = classic.join()
    assert (response.leader, response.members, response.protocol_name) == ("", [], "cooperative-sticky")
    classic.sync()
    settle(world, modern, classic)
    assert sorted(modern.owned + classic.owned) == ALL
    names = world.metadata.topic_names
    described = world.coordinator.describe_consumer_group("g", names, operations=False)
    assert {m.member_id: m.member_type for m in described.members} == {"a": 1, classic.member_id: 0}


def test_an_old_client_is_admitted_at_once() -> None:
    world = GroupWorld()
    Modern(world, "a").join()
    assert world.join(version=3, protocols={"range": encode_subscription(version=0)}).result().error_code == NONE


@pytest.mark.parametrize(
    "fields",
    [{"protocol_type": "connect"}, {"protocols": {}}, {"protocols": {"range": b"\0"}}],
    ids=["type", "no protocol", "malformed"],
)
def test_a_join_of_another_protocol_type_is_refused(fields: dict[str, Any]) -> None:
    world = GroupWorld()
    Modern(world, "a").join()
    assert world.join(version=3, **fields).result().error_code == InconsistentGroupProtocolError.code


def test_classic_members_must_have_a_protocol_in_common() -> None:
    world = GroupWorld()
    upgraded_group(world)
    assert (
        world.join(version=3, protocols={"range": encode_subscription()}).result().error_code
        == InconsistentGroupProtocolError.code
    )


def test_a_full_group_accepts_no_classic_member() -> None:
    world = GroupWorld(group_consumer_max_size=1)
    Modern(world, "a").join()
    assert Classic(world).join().error_code == GroupMaxSizeReachedError.code


def test_a_join_that_cannot_be_stored_is_refused() -> None:
    world = GroupWorld()
    (first, _), _ = upgraded_group(world)
    world.log.failure = KafkaStorageError()
    assert first.join(protocols={"cooperative-sticky": encode_subscription("u")}).error_code == NotCoordinatorError.code


def test_a_sync_after_another_member_joined_is_refused() -> None:
    world = GroupWorld()
    (first, second), modern = upgraded_group(world)
    settle(world, first, second, modern)
    Modern(world, "newer").join()
    with pytest.raises(RebalanceInProgressError):
        first.sync()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"protocol_type": "connect"}, InconsistentGroupProtocolError),
        ({"protocol_type": "consumer", "protocol_name": "range"}, InconsistentGroupProtocolError),
    ],
)
def test_a_sync_with_another_protocol_is_refused(fields: dict[str, Any], error: type[KafkaError]) -> None:
    world = GroupWorld()
    (first, second), modern = upgraded_group(world)
    settle(world, first, second, modern)
    with pytest.raises(error):
        first.sync(**fields)
    assert first.sync(protocol_type="consumer", protocol_name="cooperative-sticky") == first.owned


def test_requests_with_a_wrong_generation_or_member_id_are_refused() -> None:
    world = GroupWorld()
    (first, second), modern = upgraded_group(world)
    settle(world, first, second, modern)
    for generation_id in (first.generation_id - 1, first.generation_id + 1):
        with pytest.raises(IllegalGenerationError):
            first.heartbeat(generation_id=generation_id)
        with pytest.raises(IllegalGenerationError):
            world.sync(first.member_id, generation_id)
    for member_id in ("nobody", "new"):
        with pytest.raises(UnknownMemberIdError):
            first.heartbeat(member_id=member_id)


def test_a_classic_member_that_does_not_rejoin_is_removed() -> None:
    world = GroupWorld()
    (first, second), modern = upgraded_group(world)
    for _ in range(13):
        world.advance(5_000)
        modern.follow()
        for member in (first, second):
            if member.member_id in group_of(world).members:
                member.heartbeat()
    assert set(group_of(world).members) == {"new"}
    modern.follow()
    assert modern.owned == ALL


def test_a_timer_of_a_consumer_group_does_not_outlive_its_downgrade() -> None:
    """Else a member of the next consumer group has less time to rejoin."""
    world = GroupWorld(group_initial_rebalance_delay_ms=0)
    (member,) = classic_group(world, None)
    modern = Modern(world, "new")
    modern.join()
    assert member.heartbeat() == RebalanceInProgressError.code
    modern.leave()
    assert isinstance(world.group(), ClassicGroup)
    member.join()
    member.sync({member.member_id: encode_assignment(*ALL)})
    for _ in range(11):
        world.advance(5_000)
        assert member.heartbeat() == NONE
    modern.join()
    assert member.heartbeat() == RebalanceInProgressError.code
    world.advance(6_000)
    assert member.heartbeat() == RebalanceInProgressError.code
    assert member.follow()


def test_a_classic_member_that_does_not_sync_is_removed() -> None:
    world = GroupWorld()
    (first, second), modern = upgraded_group(world)
    assert first.join().error_code == NONE
    assert second.join().error_code == NONE
    for _ in range(13):
        world.advance(5_000)
        modern.follow()
        for member in (first, second):
            if member.member_id in group_of(world).members:
                member.heartbeat()
    assert set(group_of(world).members) == {"new"}


def test_a_classic_member_has_its_own_session() -> None:
    world = GroupWorld()
    upgraded_group(world)
    again = world.restarted()
    again.advance(10_001)
    assert set(group_of(again).members) == {"new"}


def test_a_classic_member_whose_leaving_cannot_be_stored_keeps_its_session() -> None:
    world = GroupWorld()
    members, _ = upgraded_group(world)
    world.log.failure = KafkaStorageError()
    with pytest.raises(NotCoordinatorError):
        leave(world, members[0].member_id)
    world.log.failure = None
    world.advance(10_001)
    assert set(group_of(world).members) == {"new"}


def test_a_group_whose_downgrade_cannot_be_stored_keeps_the_leaving_members_session() -> None:
    world = GroupWorld()
    members, modern = upgraded_group(world)
    settle(world, *members, modern)
    world.log.failure = KafkaStorageError()
    with pytest.raises(NotCoordinatorError):
        modern.leave()
    world.log.failure = None
    for _ in range(5):
        assert isinstance(world.group(), ConsumerGroup)
        for member in members:
            member.follow()
        world.advance(9_001)
    assert isinstance(world.group(), ClassicGroup)


def leave(world: GroupWorld, *member_ids: str, instance_id: str | None = None) -> list[MemberResponse]:
    members = [MemberIdentity(member_id=member_id, group_instance_id=instance_id) for member_id in member_ids]
    request = LeaveGroupRequest(group_id="g", members=members)
    return world.coordinator.leave_group(world.context(5), request).result().members


def test_classic_members_leave_by_id_or_instance_id() -> None:
    world = GroupWorld()
    (first, second), _ = upgraded_group(world, "i", None)
    epoch = group_of(world).epoch
    codes = [answer.error_code for answer in leave(world, second.member_id, "new", "nobody", second.member_id)]
    assert codes == [NONE, UnknownMemberIdError.code, UnknownMemberIdError.code, NONE]
    assert group_of(world).epoch == epoch + 1
    assert leave(world, "other", instance_id="i")[0].error_code == FencedInstanceIdError.code
    assert leave(world, "", instance_id="k")[0].error_code == UnknownMemberIdError.code
    (answer,) = leave(world, "", instance_id="i")
    assert (answer.member_id, answer.error_code) == (first.member_id, NONE)
    assert set(group_of(world).members) == {"new"}
    assert set(group_of(world.restarted()).members) == {"new"}


def test_classic_members_commit_and_fetch_with_their_generation() -> None:
    world = GroupWorld()
    (first, _), modern = upgraded_group(world)

    def commit(member_id: str, epoch: int) -> None:
        request = OffsetCommitRequest(group_id="g", member_id=member_id, generation_id_or_member_epoch=epoch)
        world.coordinator.commit_offsets(world.context(9), request).result()

    commit(first.member_id, first.generation_id)
    with pytest.raises(IllegalGenerationError):
        commit(first.member_id, first.generation_id + 1)
    with pytest.raises(StaleMemberEpochError):
        commit("new", modern.epoch + 1)
    asked = OffsetFetchRequestGroup(group_id="g", member_id=first.member_id, member_epoch=99, topics=None)
    answer = response_of(world.coordinator.fetch_offsets(asked, require_stable=True, by_id=False))
    assert answer.error_code == IllegalGenerationError.code


@pytest.mark.parametrize("seed", range(10))
def test_a_group_of_both_protocols_settles_after_a_storm(seed: int) -> None:
    """Fault F21 of docs/internals/faults.md with classic members and those of the consumer protocol in one group. One
    of the latter stays throughout. They give up partitions late."""
    choose, world = random.Random(seed), GroupWorld()
    modern = Late(world, "stays")
    modern.join()
    alive: list[Classic | Modern] = [modern]
    for step in range(150):
        world.advance(100)
        action = choose.random()
        if action < 0.15 and len(alive) < 8:
            joining = Classic(world) if choose.random() < 0.6 else Late(world, f"m{step}")
            joining.join()
            if isinstance(joining, Classic) and not joining.heartbeat():
                joining.sync()
            alive.append(joining)
        elif action < 0.25 and len(alive) > 1:
            gone = alive.pop(choose.randrange(1, len(alive)))
            if choose.random() < 0.5:
                leave(world, gone.member_id) if isinstance(gone, Classic) else beat(world, gone.member_id, -1)
        for follower in alive:
            follower.follow()
        held = [index for follower in alive for index in follower.owned]
        assert len(held) == len(set(held)), (step, held)
    for _ in range(12):  # the sessions of those that died run out
        world.advance(5_000)
        for follower in alive:
            follower.follow()
    settle(world, *alive)
    assert sorted(index for follower in alive for index in follower.owned) == ALL
    assert set(group_of(world).members) == {follower.member_id for follower in alive}
    assert set(group_of(world.restarted()).members) == {follower.member_id for follower in alive}
