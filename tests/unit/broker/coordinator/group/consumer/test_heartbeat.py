"""ConsumerGroupHeartbeat: joining, reconciling, patterns, static members, clocks, restarts, migration."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.coordinators import GroupWorld
from tests.unit.broker.stepping import response_of
from tidelog.broker.coordinator.group.consumer.group import ConsumerGroup, ConsumerGroupState, Subscription
from tidelog.broker.coordinator.group.consumer.records import current_of
from tidelog.broker.coordinator.group.records import GroupRecordSerde
from tidelog.broker.coordinator.runtime.replay import encode_batch
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord
from tidelog.broker.metadata.image import TopicImage, single_replica_states
from tidelog.protocol.coordinator_records.group import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from tidelog.protocol.coordinator_records.group import TopicPartitions as StoredPartitions
from tidelog.protocol.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    KafkaError,
    KafkaStorageError,
    NonEmptyGroupError,
    NotCoordinatorError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
    UnsupportedVersionError,
)
from tidelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from tidelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

T, U = bytes([1] * 16), bytes([2] * 16)


def beat(world: GroupWorld, member_id: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatResponse:
    """Send one heartbeat; ``owned`` is what the member says it holds, by topic id."""
    owned = fields.pop("owned", None)
    version = fields.pop("version", 1)
    if owned is not None:
        fields["topic_partitions"] = [TopicPartitions(topic_id=t, partitions=list(p)) for t, p in owned.items()]
    request = ConsumerGroupHeartbeatRequest(
        **{"group_id": "g", "member_id": member_id, "member_epoch": epoch, **fields}
    )
    return world.coordinator.consumer_group_heartbeat(world.context(version), request).result()


def join(world: GroupWorld, member_id: str, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatResponse:
    values = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": list(topics or ["t"]), "owned": {}, **fields}
    return beat(world, member_id, 0, **values)


def partitions(response: ConsumerGroupHeartbeatResponse) -> dict[bytes, list[int]] | None:
    if response.assignment is None:
        return None
    return {bytes(topic.topic_id): topic.partitions for topic in response.assignment.topic_partitions}


def group_of(world: GroupWorld) -> ConsumerGroup:
    group = world.group()
    assert isinstance(group, ConsumerGroup)
    return group


def settle(world: GroupWorld, *member_ids: str) -> dict[str, dict[bytes, list[int]]]:
    """Let members follow their assignments until all rest; what each has then."""
    has: dict[str, dict[bytes, list[int]]] = {}
    for _ in range(10):
        for member_id in member_ids:
            current = group_of(world).members[member_id].current
            owned = has.get(member_id, {topic: sorted(indexes) for topic, indexes in current.assigned.items()})
            answer = beat(world, member_id, current.epoch, owned=owned)
            found = partitions(answer)
            has[member_id] = owned if found is None else found
    assert group_of(world).state is ConsumerGroupState.STABLE
    return has


# -- joining --------------------------------------------------------------------------------------------------------


def test_the_first_member_gets_everything() -> None:
    world = GroupWorld()
    response = join(world, "a")
    assert (response.member_id, response.member_epoch, response.heartbeat_interval_ms) == ("a", 2, 5_000)
    assert partitions(response) == {T: [0, 1, 2, 3]}
    assert group_of(world).state is ConsumerGroupState.STABLE


def test_version_0_is_given_a_member_id() -> None:
    assert join(GroupWorld(), "", version=0).member_id == "1"


def test_a_heartbeat_that_changes_nothing_has_a_short_answer_and_writes_nothing() -> None:
    world = GroupWorld()
    join(world, "a")
    appends = world.log.appends
    assert partitions(beat(world, "a", 2)) is None
    assert world.log.appends == appends


def test_a_full_heartbeat_gets_the_assignment_again() -> None:
    world = GroupWorld()
    join(world, "a")
    fields = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": ["t"], "owned": {T: [0, 1, 2, 3]}}
    assert partitions(beat(world, "a", 2, **fields)) == {T: [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"instance_id": ""}, InvalidRequestError),
        ({"rack_id": ""}, InvalidRequestError),
        ({"rebalance_timeout_ms": -1}, InvalidRequestError),
        ({"owned": None}, InvalidRequestError),
        ({"owned": {T: [0]}}, InvalidRequestError),
        ({"subscribed_topic_names": None}, InvalidRequestError),
        ({"server_assignor": "none"}, UnsupportedAssignorError),
        ({"subscribed_topic_regex": "("}, InvalidRegularExpressionError),
        ({"group_id": ""}, InvalidRequestError),
    ],
)
def test_a_join_without_a_required_field_is_refused(fields: dict[str, Any], error: type[KafkaError]) -> None:
    with pytest.raises(error):
        join(GroupWorld(), "a", **fields)


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [("", 1, InvalidRequestError), ("a", -3, InvalidRequestError), ("a", -2, InvalidRequestError)],
)
def test_a_heartbeat_with_a_wrong_member_or_epoch_is_refused(
    member_id: str, epoch: int, error: type[KafkaError]
) -> None:
    with pytest.raises(error):
        beat(GroupWorld(), member_id, epoch)


def test_heartbeats_of_unknown_groups_and_members_are_refused() -> None:
    world = GroupWorld()
    for epoch in (1, -1):
        with pytest.raises(GroupIdNotFoundError):
            beat(world, "a", epoch)
    join(world, "a")
    for epoch in (1, -1):
        with pytest.raises(UnknownMemberIdError):
            beat(world, "stranger", epoch)


def test_a_full_group_refuses_a_new_member() -> None:
    world = GroupWorld(group_consumer_max_size=1)
    join(world, "a")
    with pytest.raises(GroupMaxSizeReachedError):
        join(world, "b")
    beat(world, "a", 2)


def test_a_topic_is_assigned_once_it_is_created() -> None:
    world = GroupWorld()
    assert partitions(join(world, "a", "later")) == {}
    world.metadata.put(TopicImage("later", b"L" * 16, single_replica_states(1, 2), {}, False))
    assert partitions(beat(world, "a", 2)) == {b"L" * 16: [0, 1]}


def test_topics_that_grow_are_noticed() -> None:
    world = GroupWorld()
    join(world, "a")
    world.metadata.put(TopicImage("t", T, single_replica_states(1, 6), {}, False))
    assert partitions(beat(world, "a", 2)) == {T: [0, 1, 2, 3, 4, 5]}


def test_other_topics_change_nothing() -> None:
    world = GroupWorld()
    join(world, "a")
    world.metadata.put(TopicImage("other", b"O" * 16, single_replica_states(1, 6), {}, False))
    assert partitions(beat(world, "a", 2)) is None
    assert group_of(world).epoch == 2


# -- reconciliation -------------------------------------------------------------------------------------------------


def test_partitions_move_only_after_they_were_given_back() -> None:
    world = GroupWorld()
    join(world, "a")
    waiting = join(world, "b")
    assert (waiting.member_epoch, partitions(waiting)) == (3, {})
    revoking = beat(world, "a", 2, owned={T: [0, 1, 2, 3]})
    assert revoking.member_epoch == 2
    kept = partitions(revoking)
    assert kept is not None
    assert partitions(beat(world, "b", 3, owned={})) is None
    released = beat(world, "a", 2, owned=kept)
    assert released.member_epoch == 3
    got = partitions(beat(world, "b", 3, owned={}))
    assert got is not None
    assert sorted(kept[T] + got[T]) == [0, 1, 2, 3]
    assert group_of(world).state is ConsumerGroupState.STABLE


def test_a_member_that_sends_no_partitions_still_owns_its_partitions() -> None:
    world = GroupWorld()
    join(world, "a")
    join(world, "b")
    for _ in range(3):
        assert beat(world, "a", 2).member_epoch == 2
    assert group_of(world).state is ConsumerGroupState.RECONCILING


def test_a_heartbeat_with_the_previous_epoch_and_the_owned_partitions_is_answered() -> None:
    world = GroupWorld()
    join(world, "a", "t")
    beat(world, "a", 2, subscribed_topic_names=["t", "u"], owned={T: [0, 1, 2, 3]})
    assert beat(world, "a", 2, owned={T: [0, 1, 2, 3]}).member_epoch == 3


@pytest.mark.parametrize(("epoch", "owned"), [(2, None), (2, {b"?" * 16: [0]}), (4, {})])
def test_wrong_member_epochs_are_fenced(epoch: int, owned: Any) -> None:
    world = GroupWorld()
    join(world, "a", "t")
    beat(world, "a", 2, subscribed_topic_names=["t", "u"], owned={T: [0, 1, 2, 3]})
    with pytest.raises(FencedMemberEpochError):
        beat(world, "a", epoch, owned=owned)


def test_a_fenced_member_joins_again_with_its_id() -> None:
    world = GroupWorld()
    join(world, "a")
    beat(world, "a", 2, subscribed_topic_names=["t", "u"], owned={T: [0, 1, 2, 3]})
    response = join(world, "a", "t", "u")
    assert response.member_epoch == 3
    assert partitions(response) == {T: [0, 1, 2, 3], U: [0, 1, 2, 3]}


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_many_members_settle_with_every_partition_owned_once(assignor: str) -> None:
    world = GroupWorld()
    names = [f"m{index}" for index in range(4)]
    for name in names:
        join(world, name, "t", "u", server_assignor=assignor)
    has = settle(world, *names)
    for topic in (T, U):
        assert sorted(index for each in has.values() for index in each.get(topic, [])) == [0, 1, 2, 3]


def test_a_subscription_that_shrinks_gives_partitions_back() -> None:
    world = GroupWorld()
    join(world, "a", "t", "u")
    answer = beat(world, "a", 2, subscribed_topic_names=["u"], owned={T: [0, 1, 2, 3], U: [0, 1, 2, 3]})
    assert partitions(answer) == {U: [0, 1, 2, 3]}
    assert beat(world, "a", 2, owned={U: [0, 1, 2, 3]}).member_epoch == 3


# -- patterns -------------------------------------------------------------------------------------------------------


def test_a_pattern_follows_the_topics() -> None:
    world = GroupWorld()
    response = join(world, "a", subscribed_topic_names=None, subscribed_topic_regex="[tu]|t-.*")
    assert partitions(response) == {T: [0, 1, 2, 3], U: [0, 1, 2, 3]}
    world.metadata.put(TopicImage("t-new", b"N" * 16, single_replica_states(1, 1), {}, False))
    world.metadata.put(TopicImage("t-hidden", b"H" * 16, single_replica_states(1, 1), {}, True))
    assert partitions(beat(world, "a", 2)) == {T: [0, 1, 2, 3], U: [0, 1, 2, 3], b"N" * 16: [0]}
    assert group_of(world).is_subscribed_to("t-new")


def test_an_empty_pattern_takes_the_pattern_away() -> None:
    world = GroupWorld()
    join(world, "a", "u", subscribed_topic_regex="t")
    beat(world, "a", 2, subscribed_topic_regex="")
    assert group_of(world).regexes == {}
    assert world.restarted().group().subscribed_topics() == {"u"}


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "x" * 2_000])
def test_invalid_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpressionError):
        join(GroupWorld(), "a", subscribed_topic_names=None, subscribed_topic_regex=pattern)


# -- leaving and static members -------------------------------------------------------------------------------------


def test_partitions_of_a_member_that_leaves_go_to_the_others() -> None:
    world = GroupWorld()
    join(world, "a")
    join(world, "b")
    settle(world, "a", "b")
    assert beat(world, "a", -1).member_epoch == -1
    assert settle(world, "b") == {"b": {T: [0, 1, 2, 3]}}


def test_the_last_to_leave_empties_the_group() -> None:
    world = GroupWorld()
    join(world, "a")
    beat(world, "a", -1)
    assert group_of(world).state is ConsumerGroupState.EMPTY
    assert world.restarted().group().state is ConsumerGroupState.EMPTY


def test_a_static_member_takes_its_place_again() -> None:
    world = GroupWorld()
    join(world, "a1", instance_id="a")
    join(world, "b")
    before = settle(world, "a1", "b")
    epoch = group_of(world).epoch
    assert beat(world, "a1", -2, instance_id="a").member_epoch == -2
    response = join(world, "a2", instance_id="a")
    assert partitions(response) == before["a1"]
    assert (response.member_epoch, group_of(world).epoch) == (epoch, epoch)
    assert set(group_of(world).members) == {"a2", "b"}
    with pytest.raises(UnknownMemberIdError):
        beat(world, "a1", epoch)


def test_a_member_in_a_state_of_a_newer_kafka_is_fenced_and_keeps_its_partitions_until_it_rejoins() -> None:
    """The partition with all its groups could not be loaded."""
    world = GroupWorld()
    join(world, "a")
    join(world, "b")
    before = settle(world, "a", "b")
    epoch = group_of(world).epoch
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="a")
    topic = StoredPartitions(topic_id=T, partitions=before["a"][T])
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=epoch, previous_member_epoch=epoch, state=9, assigned_partitions=[topic],
        partitions_pending_revocation=[],
    )  # fmt: skip
    batch = encode_batch(GroupRecordSerde(), [CoordinatorRecord(key, value)], None, 0)
    world.log.append(world.runtime.partition_for("g"), batch)
    again = world.restarted()
    assert group_of(again).owners == group_of(world).owners
    with pytest.raises(FencedMemberEpochError):
        beat(again, "a", epoch, owned=before["a"])
    response = join(again, "a")
    assert (response.member_epoch, partitions(response)) == (epoch, before["a"])


def test_subscriptions_are_collected_once_for_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expiry asks for each topic with an offset, and looked at the subscriptions of all members each time."""
    world = GroupWorld()
    for number in range(30):
        join(world, f"m{number}", "t", "u")
    group = group_of(world)
    looked_at = []
    topics_of = ConsumerGroup.topics_of

    def count(group: ConsumerGroup, subscription: Subscription) -> tuple[str, ...]:
        looked_at.append(subscription)
        return topics_of(group, subscription)

    monkeypatch.setattr(ConsumerGroup, "topics_of", count)
    assert not any(group.is_subscribed_to(f"old-{number}") for number in range(100))
    assert len(looked_at) == 30


def test_whether_a_group_reads_a_topic_follows_its_members() -> None:
    world = GroupWorld()
    epoch = join(world, "a", "t").member_epoch
    group = group_of(world)
    assert (group.is_subscribed_to("t"), group.is_subscribed_to("u")) == (True, False)
    epoch = beat(world, "a", epoch, subscribed_topic_names=["u"]).member_epoch
    assert (group.is_subscribed_to("t"), group.is_subscribed_to("u")) == (False, True)
    beat(world, "a", epoch, subscribed_topic_names=[], subscribed_topic_regex="v")
    assert (group.is_subscribed_to("u"), group.is_subscribed_to("v")) == (False, True)
    beat(world, "a", -1)
    assert not group.is_subscribed_to("v")


def test_a_static_member_that_returns_under_its_own_id_still_times_out() -> None:
    """Kafka's consumer does so when it unsubscribes and subscribes again."""
    world = GroupWorld()
    join(world, "a1", instance_id="a")
    join(world, "b")
    beat(world, "a1", -2, instance_id="a")
    join(world, "a1", instance_id="a")
    for _ in range(4):
        world.advance(20_000)
        beat(world, "b", group_of(world).members["b"].current.epoch)
    assert set(group_of(world).members) == {"b"}


def test_an_instance_id_is_free_after_its_member_has_taken_another() -> None:
    world = GroupWorld()
    epoch = join(world, "a1", instance_id="a").member_epoch
    beat(world, "a1", epoch, instance_id="b")
    assert group_of(world.restarted()).static_members == {"b": "a1"}
    beat(world, "a1", -1, instance_id="b")
    assert join(world, "a2", instance_id="a").member_id == "a2"


def test_an_instance_that_has_not_left_is_not_replaced() -> None:
    world = GroupWorld()
    join(world, "a1", instance_id="a")
    with pytest.raises(UnreleasedInstanceIdError):
        join(world, "a2", instance_id="a")


def test_an_instance_id_of_another_member_is_fenced() -> None:
    world = GroupWorld()
    join(world, "a1", instance_id="a")
    join(world, "b")
    for epoch in (2, -1):
        with pytest.raises(FencedInstanceIdError):
            beat(world, "b", epoch, instance_id="a")


# -- clocks and restarts --------------------------------------------------------------------------------------------


def test_a_silent_member_is_removed() -> None:
    world = GroupWorld()
    join(world, "a")
    join(world, "b")
    for _ in range(4):
        world.advance(15_000)
        beat(world, "b", 3, owned={})
    assert set(group_of(world).members) == {"b"}
    assert settle(world, "b") == {"b": {T: [0, 1, 2, 3]}}


def test_a_member_that_does_not_give_back_is_removed_after_its_rebalance_timeout() -> None:
    world = GroupWorld()
    join(world, "a")
    join(world, "b")
    for _ in range(3):
        beat(world, "a", 2)
        beat(world, "b", 3, owned={})
        world.advance(10_000)
    assert set(group_of(world).members) == {"b"}


def test_a_removal_that_cannot_be_stored_is_tried_again() -> None:
    world = GroupWorld()
    join(world, "a")
    world.log.failure = KafkaStorageError()
    world.advance(45_001)
    assert set(group_of(world).members) == {"a"}
    world.log.failure = None
    world.advance(45_001)
    assert group_of(world).is_empty


def test_a_member_whose_leaving_cannot_be_stored_keeps_its_session() -> None:
    world = GroupWorld()
    join(world, "a")
    join(world, "b")
    world.log.failure = KafkaStorageError()
    with pytest.raises(NotCoordinatorError):
        beat(world, "a", -1)
    world.log.failure = None
    world.advance(45_001)
    assert group_of(world).is_empty


def test_a_heartbeat_that_cannot_be_stored_changes_nothing() -> None:
    world = GroupWorld()
    join(world, "a")
    world.log.failure = KafkaStorageError()
    with pytest.raises(NotCoordinatorError):
        join(world, "b")
    assert set(group_of(world).members) == {"a"}


def test_everything_survives_a_restart() -> None:
    world = GroupWorld()
    join(world, "a", instance_id="i", subscribed_topic_regex="u")
    join(world, "b")
    beat(world, "a", 2, owned={T: [0, 1, 2, 3], U: [0, 1, 2, 3]})
    before, after = group_of(world), group_of(world.restarted())
    for name in (
        "epoch",
        "metadata_hash",
        "assignment_epoch",
        "static_members",
        "target",
        "owners",
        "regexes",
        "state",
    ):
        assert getattr(before, name) == getattr(after, name), name
    for member_id, member in before.members.items():
        assert after.members[member_id].subscription == member.subscription
        assert after.members[member_id].current == member.current


def test_members_and_revocations_have_timers_after_a_restart() -> None:
    world = GroupWorld()
    join(world, "a")
    join(world, "b")
    beat(world, "a", 2, owned={T: [0, 1, 2, 3]})
    again = world.restarted()
    again.advance(30_001)
    assert set(group_of(again).members) == {"b"}
    again.advance(15_000)
    assert group_of(again).is_empty


# -- the rest of the group's life -----------------------------------------------------------------------------------


def test_a_group_may_have_its_own_session_timeout_and_interval() -> None:
    world = GroupWorld()
    world.settings["g"] = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "7000"}
    assert join(world, "a").heartbeat_interval_ms == 7000
    world.advance(49_999)
    assert not group_of(world).is_empty
    world.settings.clear()
    assert beat(world, "a", 2).heartbeat_interval_ms == 5000
    world.advance(45_001)
    assert group_of(world).is_empty


def test_the_first_assignor_of_the_configuration_is_the_default() -> None:
    world = GroupWorld(group_consumer_assignors=("range",))
    join(world, "a")
    names = world.metadata.topic_names
    assert world.coordinator.describe_consumer_group("g", names, operations=False).assignor_name == "range"
    with pytest.raises(UnsupportedAssignorError):
        join(world, "b", server_assignor="uniform")


def test_an_empty_classic_group_becomes_a_consumer_group_and_back() -> None:
    world = GroupWorld()
    world.join()
    join(world, "a")
    assert group_of(world.restarted()).members.keys() == {"a"}
    assert world.join(version=3).result().error_code == InconsistentGroupProtocolError.code
    beat(world, "a", -1)
    assert world.join("m").result().error_code == UnknownMemberIdError.code
    assert world.join(version=3).result().generation_id == 1
    assert world.restarted().group().group_type == "Classic"


@pytest.mark.parametrize("fields", [{"protocol_type": ""}, {"protocols": {}}])
def test_a_join_that_is_refused_leaves_an_empty_consumer_group_as_it_is(fields: dict[str, Any]) -> None:
    world = GroupWorld()
    join(world, "a")
    beat(world, "a", -1)
    assert world.join(version=3, **fields).result().error_code == InconsistentGroupProtocolError.code
    assert world.group().group_type == world.restarted().group().group_type == "Consumer"


def test_an_empty_consumer_group_remains_if_the_classic_group_cannot_be_stored() -> None:
    """Else its records would stay in the log beside those of the classic group."""
    world = GroupWorld()
    join(world, "a")
    beat(world, "a", -1)
    before = group_of(world)
    world.log.failure = KafkaStorageError()
    with pytest.raises(NotCoordinatorError):
        world.join(version=3)
    world.log.failure = None
    assert group_of(world) is before
    assert join(world, "a").member_epoch == 4


def test_a_classic_group_with_members_is_not_taken_over() -> None:
    world = GroupWorld()
    world.stable(1)
    with pytest.raises(GroupIdNotFoundError):
        join(world, "a")


def test_classic_requests_to_a_consumer_group_are_of_unknown_members() -> None:
    world = GroupWorld()
    join(world, "a")
    with pytest.raises(UnknownMemberIdError):
        world.sync("a", 1)
    described = world.coordinator.describe_group(world.context(6), "g", operations=False)
    assert described.error_code == GroupIdNotFoundError.code


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [("a", 2, None), ("a", 3, StaleMemberEpochError), ("b", 2, UnknownMemberIdError), ("", -1, UnknownMemberIdError)],
)
def test_members_commit_and_fetch_with_their_epoch(member_id: str, epoch: int, error: type[KafkaError] | None) -> None:
    world = GroupWorld()
    join(world, "a")
    request = OffsetCommitRequest(group_id="g", member_id=member_id, generation_id_or_member_epoch=epoch)
    if error is None:
        world.coordinator.commit_offsets(world.context(9), request).result()
    else:
        with pytest.raises(error):
            world.coordinator.commit_offsets(world.context(9), request).result()
    group = OffsetFetchRequestGroup(group_id="g", member_id=member_id or None, member_epoch=epoch, topics=None)
    answer = response_of(world.coordinator.fetch_offsets(group, require_stable=True, by_id=False))
    assert answer.error_code == (error.code if error is not None and member_id else 0)


def test_a_consumer_group_is_described() -> None:
    world = GroupWorld()
    join(world, "a", instance_id="i", rack_id="r", server_assignor="range")
    names = world.metadata.topic_names
    group = world.coordinator.describe_consumer_group("g", names, operations=True)
    assert (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
        "Stable",
        2,
        2,
        "range",
    )
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_type) == ("a", "i", "r", 1)
    assert member.assignment == member.target_assignment
    assert [(t.topic_name, t.partitions) for t in member.assignment.topic_partitions] == [("t", [0, 1, 2, 3])]


@pytest.mark.parametrize(("group_id", "error"), [("", InvalidGroupIdError), ("none", GroupIdNotFoundError)])
def test_describing_a_missing_group_is_an_error(group_id: str, error: type[KafkaError]) -> None:
    group = GroupWorld().coordinator.describe_consumer_group(group_id, {}, operations=False)
    assert group.error_code == error.code


def test_a_classic_group_is_not_described_as_a_consumer_group() -> None:
    world = GroupWorld()
    world.stable(1)
    group = world.coordinator.describe_consumer_group("g", {}, operations=False)
    assert group.error_code == GroupIdNotFoundError.code


def test_only_an_empty_consumer_group_is_deleted() -> None:
    world = GroupWorld()
    join(world, "a", subscribed_topic_regex="u")
    assert response_of(world.coordinator.delete_group("g")).error_code == NonEmptyGroupError.code
    beat(world, "a", -1)
    assert response_of(world.coordinator.delete_group("g")).error_code == 0
    assert world.group() is None
    assert world.restarted().group() is None


def test_an_empty_consumer_group_without_offsets_is_dropped() -> None:
    world = GroupWorld()
    join(world, "a")
    beat(world, "a", -1)
    world.advance(700_000)
    assert world.group() is None


# -- commits of a member that has not heard of its newest epoch yet (KIP-1251) ---------------------------------------


def commit(world: GroupWorld, member_id: str, epoch: int, *indexes: int, version: int = 9) -> list[int]:
    """Commit. Returns error codes, one for each partition. Raises KafkaErrors of the whole request."""
    asked = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=7, committed_metadata="")
        for index in indexes
    ]
    request = OffsetCommitRequest(
        group_id="g",
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        topics=[OffsetCommitRequestTopic(name="t", partitions=asked)],
    )
    response = world.coordinator.commit_offsets(world.context(version), request).result()
    return [partition.error_code for partition in response.topics[0].partitions]


def half_given_up(world: GroupWorld) -> list[int]:
    """Put member "a" into a newer epoch than it knows of. Returns what it keeps, in front of what it loses."""
    join(world, "a")
    join(world, "b")
    kept = partitions(beat(world, "a", 2)) or {}
    beat(world, "a", 2, owned={T: kept[T]})
    settle(world, "a", "b")
    assert group_of(world).members["a"].current.epoch > 2
    return kept[T]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_partitions_assigned_in_an_older_epoch_may_be_committed_with_that_epoch(is_restarted: bool) -> None:
    world = GroupWorld()
    kept = half_given_up(world)
    if is_restarted:
        world = world.restarted()
    assert commit(world, "a", 2, *kept) == [0] * len(kept)
    lost = next(index for index in range(4) if index not in kept)
    with pytest.raises(StaleMemberEpochError):
        commit(world, "a", 2, kept[0], lost)
    epoch = group_of(world).members["b"].current.epoch
    with pytest.raises(StaleMemberEpochError):
        commit(world, "b", epoch - 1, lost)
    with pytest.raises(StaleMemberEpochError):
        commit(world, "b", epoch + 1, lost)


def test_partitions_that_are_still_to_be_revoked_may_be_committed() -> None:
    world = GroupWorld()
    join(world, "a")
    join(world, "b")
    beat(world, "a", 2)
    assert group_of(world).members["a"].current.pending_revocation
    assert commit(world, "a", 2, 0, 1, 2, 3) == [0, 0, 0, 0]


def test_members_of_the_new_protocol_commit_with_a_version_that_has_their_epoch() -> None:
    world = GroupWorld()
    join(world, "a")
    with pytest.raises(UnsupportedVersionError):
        commit(world, "a", 2, 0, version=8)


def test_a_transaction_without_a_member_commits_to_any_group() -> None:
    world = GroupWorld()
    join(world, "a")
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
    topic = TxnOffsetCommitRequestTopic(name="t", partitions=[partition])
    request = TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", producer_id=1, producer_epoch=0, topics=[topic]
    )
    response = world.coordinator.commit_offsets_in_transaction(request).result()
    assert response.topics[0].partitions[0].error_code == 0


def test_partitions_of_a_record_without_assignment_epochs_have_the_member_epoch() -> None:
    topic = StoredPartitions(topic_id=T, partitions=[0, 1])
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=5,
        previous_member_epoch=4,
        state=0,
        assigned_partitions=[topic],
        partitions_pending_revocation=[],
    )
    assert current_of(value).epochs == {(T, 0): 5, (T, 1): 5}
