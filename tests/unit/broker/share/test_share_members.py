"""Members of share groups, and the offsets of the groups: heartbeats and the admin APIs, through the handlers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.topics import delete_topic
from tests.unit.broker.share.share_world import ShareMember, ShareWorld, partitions
from tidelog.broker.coordinator.group.share.group import ShareGroup
from tidelog.broker.coordinator.group.share.latest_offsets import LatestOffsets
from tidelog.broker.coordinator.share_state.state import StateKey
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps
from tidelog.broker.replica.partition import Partition
from tidelog.protocol.errors import (
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidRequestError,
    KafkaError,
    KafkaStorageError,
    LeaderNotAvailableError,
    NonEmptyGroupError,
    NotLeaderOrFollowerError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from tidelog.protocol.messages import alter_share_group_offsets as alter
from tidelog.protocol.messages import delete_share_group_offsets as delete
from tidelog.protocol.messages import describe_share_group_offsets as described
from tidelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidelog.protocol.messages.delete_groups import DeleteGroupsRequest
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.protocol.messages.list_groups import ListGroupsRequest
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest
from tidelog.protocol.messages.offset_delete import OffsetDeleteRequest
from tidelog.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from tidelog.protocol.messages.share_fetch import ShareFetchRequest
from tidelog.protocol.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from tidelog.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

ACCEPT = [1]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ShareWorld]:
    made = ShareWorld(tmp_path)
    made.configure("g")
    made.topic("t", 10, 10, partitions=2)
    yield made
    made.close()


def ask(world: ShareWorld, request: Any, version: int | None = None) -> Any:
    return world.ask(world.context(1), request, request.VERSIONS.highest if version is None else version)


def assigned_partitions(answer: Any) -> list[int] | None:
    """Return the partitions of the one assigned topic."""
    if answer.assignment is None:
        return None
    return [index for topic in answer.assignment.topic_partitions for index in topic.partitions]


def group_of(world: ShareWorld, group_id: str = "g") -> ShareGroup:
    group = world.coordinators.groups.runtime.shard_for(group_id).groups[group_id]
    assert isinstance(group, ShareGroup)
    return group


# -- heartbeats -----------------------------------------------------------------------------------------------------


def test_the_first_heartbeat_brings_the_assignment(world: ShareWorld) -> None:
    answer = ShareMember(world, "g", "t", "m").beat(0, subscribed_topic_names=["t"])
    assert (answer.member_epoch, assigned_partitions(answer), answer.heartbeat_interval_ms) == (1, [0, 1], 5_000)


def test_the_states_of_many_partitions_are_made_in_steps_and_by_one_member_alone(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two members join at once. No state is initialized again after an answer: it may have changed by then."""
    world.topic("wide", partitions=100)
    made: list[int] = []
    initialize = world.coordinators.share.initialize

    def count(key: StateKey, start_offset: int, state_epoch: int) -> Deferred[None]:
        made.append(key.partition)
        return initialize(key, start_offset, state_epoch)

    monkeypatch.setattr(world.coordinators.share, "initialize", count)
    request = ShareGroupHeartbeatRequest(group_id="g", member_epoch=0, subscribed_topic_names=["wide"])
    under_way = []
    for member_id in ("m", "n"):
        request.member_id = member_id
        under_way.append(world.coordinators.share_members.heartbeat(world.context(1), copy(request)))
    slower, quicker = under_way
    while len(made) < 30:
        next(slower)
    assert len(made) < 60
    for _ in quicker:
        pass
    assert sorted(set(made)) == list(range(100))
    before = len(made)
    for _ in slower:
        pass
    assert len(made) == before
    assert group_of(world).initialized[world.broker.metadata.topics["wide"].topic_id].partitions == frozenset(
        range(100)
    )


def test_a_heartbeat_that_changes_nothing_has_no_assignment_and_writes_nothing(world: ShareWorld) -> None:
    member = world.member()
    groups = world.replica_manager.partition("__consumer_offsets", consumer_offsets_partition(world))
    end = groups.log_end_offset
    assert assigned_partitions(member.beat(1)) is None
    assert assigned_partitions(member.beat(1, subscribed_topic_names=["t"])) == [0, 1]
    assert groups.log_end_offset == end


def consumer_offsets_partition(world: ShareWorld) -> int:
    return world.coordinators.groups.runtime.partition_for("g")


def test_members_divide_partitions_and_share_them_when_there_are_more(world: ShareWorld) -> None:
    first = world.member()
    second = ShareMember(world, "g", "t", "n").beat(0, subscribed_topic_names=["t"])
    assert assigned_partitions(first.beat(1)) == [0]
    assert assigned_partitions(second) == [1]
    third = ShareMember(world, "g", "t", "o").beat(0, subscribed_topic_names=["t"])
    assert len(assigned_partitions(third) or []) == 1


def test_added_partitions_are_noticed(world: ShareWorld) -> None:
    member = world.member()
    wider = world.topics.changes.widen("t", 3)
    while not wider.done:
        world.loop.run_soon()
    assert assigned_partitions(member.beat(1)) == [0, 1, 2]
    assert group_of(world).initialized[member.topic_id].partitions == {0, 1, 2}


def test_a_topic_created_later_is_noticed(world: ShareWorld) -> None:
    member = ShareMember(world, "g", "later", "m")
    assert assigned_partitions(member.beat(0, subscribed_topic_names=["later"])) == []
    world.topic("later")
    assert assigned_partitions(member.beat(1)) == [0]


def test_a_deleted_topic_is_forgotten(world: ShareWorld) -> None:
    member = world.member()
    member.fetch()
    topic_id = delete_topic(world, "t").topic_id
    world.coordinators.topic_deleted("t", topic_id)
    assert group_of(world).initialized == {}
    assert world.coordinators.share.runtime.loaded[0][1].read(("g", member.topic_id, 0)) is None  # type: ignore[arg-type]
    assert assigned_partitions(member.beat(1)) == []


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": ""}, InvalidRequestError),
        ({"group_id": " "}, InvalidRequestError),
        ({"rack_id": ""}, InvalidRequestError),
        ({"subscribed_topic_names": None}, InvalidRequestError),
        ({"member_epoch": -2}, InvalidRequestError),
        ({"member_epoch": 7}, FencedMemberEpochError),
        ({"member_epoch": 7, "member_id": "x"}, UnknownMemberIdError),
        ({"member_epoch": 7, "group_id": "none"}, GroupIdNotFoundError),
        ({"member_epoch": -1, "group_id": "none"}, GroupIdNotFoundError),
        ({"member_epoch": -1, "member_id": "x"}, UnknownMemberIdError),
    ],
)
def test_wrong_heartbeats_are_refused(world: ShareWorld, fields: dict[str, Any], error: type[Any]) -> None:
    world.member()
    values = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"], **fields}
    assert ask(world, ShareGroupHeartbeatRequest(**values)).error_code == error.code


def test_an_answer_that_was_lost_is_asked_for_again(world: ShareWorld) -> None:
    member = world.member()
    world.member(member_id="n")
    assert member.beat(1).member_epoch == 2
    assert member.beat(1).member_epoch == 2
    assert member.beat(0, subscribed_topic_names=["t"]).member_epoch == 2


def test_a_full_group_refuses_a_member(tmp_path: Path) -> None:
    world = ShareWorld(tmp_path, {"group.share.max.size": "1"})
    world.topic("t")
    world.member()
    answer = ShareMember(world, "g", "t", "n").beat(0, subscribed_topic_names=["t"])
    assert answer.error_code == GroupMaxSizeReachedError.code
    world.close()


def test_a_silent_member_is_removed(world: ShareWorld) -> None:
    member = world.member()
    world.advance(44_000)
    assert member.beat(1).error_code == 0
    world.advance(44_000)
    assert "m" in group_of(world).members
    world.advance(2_000)
    assert group_of(world).is_empty
    assert member.beat(1).error_code == UnknownMemberIdError.code


def test_a_heartbeat_that_cannot_be_stored_changes_nothing(world: ShareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.member()

    def fail(*_arguments: object, **_options: object) -> None:
        raise KafkaStorageError("the disk is full")

    with monkeypatch.context() as failing:
        failing.setattr(Partition, "append_records", fail)
        answer = ShareMember(world, "g", "t", "n").beat(0, subscribed_topic_names=["t"])
        assert answer.error_code != 0
        assert ShareMember(world, "g", "t", "m").leave().error_code != 0
        world.advance(46_000)
    assert set(group_of(world).members) == {"m"}


# -- other protocols and the admin client ---------------------------------------------------------------------------


def test_a_share_group_is_no_group_of_another_protocol(world: ShareWorld) -> None:
    world.member()
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=protocols,
    )
    answer = ask(world, join, 5)
    assert answer.error_code == InconsistentGroupProtocolError.code
    beat = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="c",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    assert ask(world, beat).error_code == GroupIdNotFoundError.code
    assert ask(world, OffsetDeleteRequest(group_id="g")).error_code == GroupIdNotFoundError.code
    commit = ask(world, OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1), 9)
    assert [partition.error_code for topic in commit.topics for partition in topic.partitions] == []
    assert ask(world, DescribeGroupsRequest(groups=["g"])).groups[0].error_code == GroupIdNotFoundError.code


def test_a_group_of_another_protocol_is_no_share_group(world: ShareWorld) -> None:
    beat = ConsumerGroupHeartbeatRequest(
        group_id="c", member_id="c", rebalance_timeout_ms=1_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert ask(world, beat).error_code == 0
    answer = ShareMember(world, "c", "t", "m").beat(0, subscribed_topic_names=["t"])
    assert answer.error_code == GroupIdNotFoundError.code
    assert ask(world, ShareGroupDescribeRequest(group_ids=["c"])).groups[0].error_code == GroupIdNotFoundError.code


def test_groups_are_described(world: ShareWorld) -> None:
    member = world.member()
    asked = ShareGroupDescribeRequest(group_ids=["g", "none", "", "g", "none"], include_authorized_operations=True)
    answer: ShareGroupDescribeResponse = ask(world, asked)
    found, none, nameless = answer.groups
    assert (found.group_state, found.group_epoch, found.assignment_epoch, found.assignor_name) == (
        "Stable",
        1,
        1,
        "simple",
    )
    assert found.authorized_operations > 0
    (described_member,) = found.members
    assert (described_member.member_id, described_member.client_id) == ("m", "tester")
    assert described_member.assignment.topic_partitions[0].partitions == [0, 1]
    assert (none.error_code, nameless.error_code) == (GroupIdNotFoundError.code, InvalidGroupIdError.code)
    member.leave()
    assert ask(world, asked).groups[0].group_state == "Empty"


def test_groups_are_listed_and_deleted_with_their_states(world: ShareWorld) -> None:
    member = world.member()
    listed = ask(world, ListGroupsRequest(types_filter=["Share"])).groups
    assert [(group.group_id, group.protocol_type, group.group_type) for group in listed] == [("g", "share", "share")]
    assert ask(world, DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == NonEmptyGroupError.code
    member.leave()
    assert ask(world, DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == 0
    assert ask(world, ListGroupsRequest()).groups == []
    assert world.coordinators.share.runtime.loaded[0][1].read(("g", member.topic_id, 0)) is None  # type: ignore[arg-type]
    again = world.restarted()
    assert ask(again, ListGroupsRequest()).groups == []
    again.close()


def test_an_empty_share_group_does_not_expire(world: ShareWorld) -> None:
    world.member().leave()
    world.advance(8 * 24 * 3_600_000)
    assert group_of(world).is_empty


# -- offsets --------------------------------------------------------------------------------------------------------


def described_offsets(
    world: ShareWorld, *topics: tuple[str, list[int]], version: int = 1
) -> list[tuple[str, int, int, int]]:
    """Return topic, partition, start offset and lag of what is asked for, or of everything."""
    asked = [described.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=of) for name, of in topics]
    group = described.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=asked or None)
    answer = ask(world, described.DescribeShareGroupOffsetsRequest(groups=[group]), version)
    assert answer.groups[0].error_code == 0
    return [
        (topic.topic_name, each.partition_index, each.start_offset, each.lag)
        for topic in answer.groups[0].topics
        for each in topic.partitions
    ]


def test_start_offsets_and_lags_are_described(world: ShareWorld) -> None:
    assert described_offsets(world) == []
    member = world.member()
    assert described_offsets(world) == [("t", 0, -1, -1), ("t", 1, -1, -1)]
    member.fetch(max_records=20)
    member.acknowledge((0, 4, ACCEPT), (10, 12, ACCEPT))
    assert described_offsets(world) == [("t", 0, 5, 12), ("t", 1, -1, -1)]
    assert described_offsets(world, ("t", [0, 9]), ("none", [0])) == [
        ("t", 0, 5, 12),
        ("t", 9, -1, -1),
        ("none", 0, -1, -1),
    ]
    assert described_offsets(world, ("t", [0]), version=0)[0][:3] == ("t", 0, 5)


class Leader:
    """The other brokers of a cluster, of which one leads all partitions."""

    def __init__(self, latest: int | KafkaError) -> None:
        self.latest = latest

    def latest_offsets(self, asked: Iterable[tuple[str, int]]) -> Steps[dict[tuple[str, int], int | KafkaError]]:
        yield None
        return dict.fromkeys(asked, self.latest)


@pytest.mark.parametrize(
    ("latest", "lag", "code"), [(40, 32, 0), (LeaderNotAvailableError("gone"), -1, LeaderNotAvailableError.code)]
)
@pytest.mark.parametrize("is_follower", [False, True])
def test_the_lag_of_a_partition_comes_from_its_leader(
    world: ShareWorld, latest: int | KafkaError, lag: int, code: int, is_follower: bool
) -> None:
    """A follower's own high watermark may be far below its leader's."""
    member = world.member()
    member.fetch(max_records=20)
    member.acknowledge((0, 4, ACCEPT), (10, 12, ACCEPT))
    manager = world.broker.replica_manager

    def elsewhere(topic: str, index: int) -> Any:
        if not is_follower:
            raise NotLeaderOrFollowerError
        partition = manager.partition(topic, index)
        partition.is_leader = False
        return partition

    found = LatestOffsets(elsewhere, cast(Any, Leader(latest)))
    world.coordinators.share_members._latest_offsets = found
    asked = described.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)
    answer = ask(world, described.DescribeShareGroupOffsetsRequest(groups=[asked]), 1)
    places = [(one.start_offset, one.lag, one.error_code) for one in answer.groups[0].topics[0].partitions]
    assert places == [(5, lag, code), (-1, -1, 0)]


def alter_offsets(world: ShareWorld, group: str, *topics: tuple[str, dict[int, int]]) -> Any:
    asked = [
        alter.AlterShareGroupOffsetsRequestTopic(
            topic_name=name,
            partitions=[
                alter.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
                for index, offset in to.items()
            ],
        )
        for name, to in topics
    ]
    return ask(world, alter.AlterShareGroupOffsetsRequest(group_id=group, topics=asked))


def test_start_offsets_of_a_group_without_members_can_be_changed(world: ShareWorld) -> None:
    member = world.member()
    member.fetch()
    assert alter_offsets(world, "g", ("t", {0: 15})).error_code == NonEmptyGroupError.code
    member.leave()
    answer = alter_offsets(world, "g", ("t", {0: 15, 9: 0}), ("none", {0: 0}))
    codes = [each.error_code for topic in answer.responses for each in topic.partitions]
    assert codes == [0, UnknownTopicOrPartitionError.code, UnknownTopicOrPartitionError.code]
    assert described_offsets(world) == [("t", 0, 15, 5), ("t", 1, -1, -1)]
    assert world.member(member_id="n").acquired() == [(15, 19, 1)]


def test_start_offsets_can_be_set_before_a_group_has_members(world: ShareWorld) -> None:
    assert alter_offsets(world, "", ("t", {0: 0})).error_code == InvalidGroupIdError.code
    assert alter_offsets(world, "new", ("t", {0: 7})).error_code == 0
    again = world.restarted()
    assert group_of(again, "new").initialized[again.broker.metadata.topics["t"].topic_id].partitions == {0}
    assert again.member("new").acquired() == [(7, 19, 1)]
    again.close()


def test_start_offsets_can_be_deleted(world: ShareWorld) -> None:
    member = world.member()
    member.fetch()
    asked = delete.DeleteShareGroupOffsetsRequest(
        group_id="g",
        topics=[delete.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in ("t", "none")],
    )
    assert ask(world, asked).error_code == NonEmptyGroupError.code
    member.acknowledge((0, 19, ACCEPT))
    member.leave()
    answer = ask(world, asked)
    assert [topic.error_code for topic in answer.responses] == [0, UnknownTopicOrPartitionError.code]
    assert described_offsets(world) == []
    assert ask(world, asked).responses[0].error_code == UnknownTopicOrPartitionError.code
    assert partitions(world.member(member_id="n").fetch())[0].acquired_records[0].first_offset == 0
    unknown = delete.DeleteShareGroupOffsetsRequest(group_id="none")
    assert ask(world, unknown).error_code == GroupIdNotFoundError.code


@pytest.mark.parametrize(
    "request_class",
    [
        ShareGroupHeartbeatRequest,
        ShareGroupDescribeRequest,
        ShareFetchRequest,
        ShareAcknowledgeRequest,
        described.DescribeShareGroupOffsetsRequest,
        alter.AlterShareGroupOffsetsRequest,
        delete.DeleteShareGroupOffsetsRequest,
    ],
)
def test_without_the_feature_nothing_is_served(world: ShareWorld, request_class: type[Any]) -> None:
    world.broker.metadata.features.pop("share.version")
    answer = ask(world, request_class(**({"group_ids": ["g"]} if request_class is ShareGroupDescribeRequest else {})))
    codes = [answer.error_code] if hasattr(answer, "error_code") else [group.error_code for group in answer.groups]
    assert all(code == UnsupportedVersionError.code for code in codes)
