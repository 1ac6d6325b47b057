"""Members of streams groups over the handlers: joining, tasks, internal topics, statuses, offsets, restart."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.topics import create_topic, delete_topic
from tests.unit.broker.coordinator.streams_world import Member, StreamsWorld, word_count
from tidelog.broker.coordinator.group.streams.checks import check_epoch
from tidelog.broker.coordinator.group.streams.group import StreamsGroup, StreamsMember, StreamsMemberSpec
from tidelog.broker.coordinator.group.streams.records import replay_streams
from tidelog.broker.coordinator.group.streams.topology import StatusCode
from tidelog.protocol.coordinator_records.streams import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
)
from tidelog.protocol.coordinator_records.streams import TaskIds as StoredTaskIds
from tidelog.protocol.errors import (
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    InvalidRequestError,
    KafkaError,
    NonEmptyGroupError,
    StaleMemberEpochError,
    StreamsInvalidTopologyError,
    UnknownMemberIdError,
    UnsupportedVersionError,
)
from tidelog.protocol.messages.delete_groups import DeleteGroupsRequest
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.protocol.messages.list_groups import ListGroupsRequest
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tidelog.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from tidelog.protocol.messages.streams_group_heartbeat import (
    KeyValue,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)

ALL = {f"{part}_{index}" for part in (0, 1) for index in range(2)}
COPIES = {"1_0", "1_1"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[StreamsWorld]:
    made = StreamsWorld(tmp_path, {"group.streams.initial.rebalance.delay.ms": "0"})
    create_topic(made, "lines", 2)
    yield made
    made.broker.controller.close()


def codes(answer: Any) -> list[int]:
    return [status.status_code for status in answer.status]


def details(answer: Any) -> list[str]:
    return [status.status_detail for status in answer.status]


def joined_member(world: StreamsWorld, name: str = "a", **fields: Any) -> Member:
    """Return a member that has joined, and has its tasks."""
    member = Member(world, name, **fields)
    assert member.join().error_code == 0
    member.confirm_tasks()
    return member


def settle(*members: Member) -> None:
    for _ in range(4):
        for member in members:
            assert member.confirm_tasks().error_code == 0


def test_internal_topics_have_audit_lines(world: StreamsWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tidelog.audit")
    Member(world, "a").join()
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "tidelog.audit"]
    assert sorted((line["event"], line["name"], line["group"]) for line in lines) == [
        ("topic created", "counts-changelog", "g"),
        ("topic created", "words", "g"),
    ]


def test_internal_topics_are_made_and_then_tasks_are_given(world: StreamsWorld) -> None:
    member = Member(world, "a")
    first = member.join()
    assert codes(first) == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert details(first)[0] == "Internal topics are missing: counts-changelog, words"
    assert (member.assigned_tasks(), world.group.state.value) == ((set(), set()), "NotReady")
    made = world.broker.metadata.topics
    assert made["words"].partition_count == made["counts-changelog"].partition_count == 2
    assert made["counts-changelog"].configs == {"cleanup.policy": "compact"}
    assert codes(member.beat()) == []
    assert (member.assigned_tasks(), world.group.state.value) == ((ALL, set()), "Stable")


def test_a_member_in_a_state_of_a_newer_kafka_is_fenced_and_keeps_its_tasks_until_it_rejoins() -> None:
    """The partition with all its groups could not be loaded."""
    group = StreamsGroup("g")
    group.members["a"] = StreamsMember("a", StreamsMemberSpec())
    key = StreamsGroupCurrentMemberAssignmentKey(group_id="g", member_id="a")
    given = StoredTaskIds(subtopology_id="0", partitions=[0, 1], assignment_epochs=[5])
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=5, previous_member_epoch=4, state=9, active_tasks=[given], standby_tasks=[], warmup_tasks=[],
        active_tasks_pending_revocation=[], standby_tasks_pending_revocation=[], warmup_tasks_pending_revocation=[],
    )  # fmt: skip
    replay_streams({"g": group}, key, value)
    current = group.members["a"].current
    assert current.assigned.active == {"0": {0, 1}}
    with pytest.raises(FencedMemberEpochError):
        check_epoch(current, StreamsGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=5))
    check_epoch(current, StreamsGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=0))
    value.state = 0
    replay_streams({"g": group}, key, value)
    assert group.members["a"].current.epochs == {("0", 0): 5, ("0", 1): 5}, "an epoch for each task, or that of all"


def test_a_heartbeat_that_changes_nothing_writes_nothing(world: StreamsWorld) -> None:
    member = joined_member(world)
    log = world.replica_manager.partition("__consumer_offsets", 0).local_log
    end = log.log_end_offset
    answer = member.beat()
    assert (answer.active_tasks, answer.standby_tasks, log.log_end_offset) == (None, None, end)


def test_a_second_member_gets_tasks_when_the_first_has_given_them_back(world: StreamsWorld) -> None:
    first = joined_member(world)
    second = Member(world, "b")
    second.join()
    assert second.assigned_tasks() == (set(), set())
    answer = first.beat()
    assert len(first.assigned_tasks()[0]) == 2
    assert answer.member_epoch < world.group.epoch, "it stays in its epoch while it has something to give back"
    second.beat()
    assert second.assigned_tasks() == (set(), set()), "the first has not said that they are gone"
    first.confirm_tasks()
    second.beat()
    assert first.assigned_tasks()[0] | second.assigned_tasks()[0] == ALL
    assert not first.assigned_tasks()[0] & second.assigned_tasks()[0]
    settle(first, second)
    assert world.group.state.value == "Stable"


def test_a_member_that_gives_nothing_back_is_removed(world: StreamsWorld) -> None:
    first = Member(world, "a")
    first.join(rebalance_timeout_ms=10_000)
    first.confirm_tasks()
    second = joined_member(world, "b")
    first.beat()
    world.advance(9_000)
    first.beat()
    world.advance(1_000)
    assert list(world.group.members) == ["b"]
    settle(second)
    assert second.assigned_tasks() == (ALL, set())
    assert first.beat().error_code == UnknownMemberIdError.code


def test_a_silent_member_is_removed(world: StreamsWorld) -> None:
    joined_member(world)
    world.advance(45_000)
    assert world.group.state.value == "Empty"


def test_copies_of_states_are_on_other_processes(world: StreamsWorld) -> None:
    world.configure(streams_num_standby_replicas="1")
    first = joined_member(world)
    assert first.assigned_tasks() == (ALL, set()), "there is no other process"
    second = joined_member(world, "b")
    settle(first, second)
    assert first.assigned_tasks()[1] | second.assigned_tasks()[1] == COPIES
    for member in (first, second):
        assert not member.assigned_tasks()[0] & member.assigned_tasks()[1]


class Owner(Member):
    """A member that goes on working on what it lost until its next full heartbeat."""

    def __init__(self, world: StreamsWorld, name: str, process: str) -> None:
        super().__init__(world, name, process)
        self.active: set[str] = set()
        self.all: set[str] = set()

    def take_response(self) -> None:
        """Take over the last answer: begin the new tasks, and do not give up the revoked ones yet."""
        active, standby = self.assigned_tasks()
        self.active |= active
        self.all |= active | standby

    def give_up_revoked(self) -> None:
        self.active, standby = self.assigned_tasks()
        self.all = self.active | standby


@pytest.mark.parametrize("seed", range(8))
def test_no_task_has_two_owners(world: StreamsWorld, seed: int) -> None:
    world.configure(streams_num_standby_replicas="1")
    draw = random.Random(seed)
    members: list[Owner] = []
    for number in range(60):
        choice = draw.random()
        if not members or (choice < 0.15 and len(members) < 5):
            members.append(Owner(world, f"m{number}", draw.choice("xy")))
            assert members[-1].join().error_code == 0
        elif choice < 0.25 and len(members) > 1:
            members.pop(draw.randrange(len(members))).beat(-1)
            continue
        else:
            member = draw.choice(members)
            if draw.random() < 0.5:
                member.give_up_revoked()
                member.confirm_tasks()
            else:
                member.beat()
        for member in members:
            member.take_response()
        active = Counter(task for member in members for task in member.active)
        copies = Counter((member.process, task) for member in members for task in member.all)
        assert all(count == 1 for count in (*active.values(), *copies.values()))
    for _ in range(8):
        for member in members:
            member.confirm_tasks()
    assert world.group.state.value == "Stable"
    assert sorted(task for member in members for task in member.assigned_tasks()[0]) == sorted(ALL)


def test_a_changed_setting_starts_a_new_assignment(world: StreamsWorld) -> None:
    first, second = joined_member(world), joined_member(world, "b")
    settle(first, second)
    assert first.assigned_tasks()[1] | second.assigned_tasks()[1] == set()
    world.configure(streams_num_standby_replicas="1")
    settle(first, second)
    assert first.assigned_tasks()[1] | second.assigned_tasks()[1] == COPIES


def test_settings_of_a_group_have_bounds(world: StreamsWorld) -> None:
    with pytest.raises(InvalidConfigError, match=r"group\.streams\.max\.standby\.replicas is 2"):
        world.configure(streams_num_standby_replicas="3")
    with pytest.raises(InvalidConfigError, match=r"group\.streams\.min\.session\.timeout\.ms is 45000"):
        world.configure(streams_session_timeout_ms="1000")
    world.configure(streams_heartbeat_interval_ms="6000", streams_session_timeout_ms="50000")
    assert Member(world, "a").join().heartbeat_interval_ms == 6_000
    world.advance(49_000)
    assert len(world.group.members) == 1
    world.advance(1_000)
    assert not world.group.members


def test_a_standby_takes_over(world: StreamsWorld) -> None:
    world.configure(streams_num_standby_replicas="1")
    members = [joined_member(world, name) for name in "abc"]
    settle(*members)
    gone, *left = members
    lost = gone.assigned_tasks()[0] & COPIES
    owners = {task: member for member in left for task in member.assigned_tasks()[1] & lost}
    gone.beat(-1)
    settle(*left)
    assert {task for task, member in owners.items() if task in member.assigned_tasks()[0]} == lost == set(owners)


def test_a_new_group_waits_for_more_members(tmp_path: Path) -> None:
    world = StreamsWorld(tmp_path)
    create_topic(world, "lines", 2)
    first = Member(world, "a")
    answer = first.join()
    assert codes(answer) == [StatusCode.ASSIGNMENT_DELAYED, StatusCode.MISSING_INTERNAL_TOPICS]
    assert answer.member_epoch == 1
    second = Member(world, "b")
    assert codes(second.join()) == [StatusCode.ASSIGNMENT_DELAYED]
    assert second.assigned_tasks() == (set(), set())
    world.advance(3_000)
    for member in (first, second):
        assert codes(member.beat()) == []
        assert len(member.assigned_tasks()[0]) == 2
    world.broker.controller.close()


def test_missing_source_topics_are_reported(world: StreamsWorld) -> None:
    delete_topic(world, "lines")
    member = Member(world, "a")
    answer = member.join()
    assert codes(answer) == [StatusCode.MISSING_SOURCE_TOPICS]
    assert details(answer)[0] == "Source topics lines are missing."
    create_topic(world, "lines", 2)
    member.beat()
    member.beat()
    assert member.assigned_tasks() == (ALL, set())


def test_a_topic_that_does_not_fit_is_reported(world: StreamsWorld) -> None:
    create_topic(world, "counts-changelog", 5)
    answer = Member(world, "a").join()
    assert codes(answer) == [StatusCode.INCORRECTLY_PARTITIONED_TOPICS]
    assert details(answer)[0] == (
        "Existing topic counts-changelog has different number of partitions: expected 2, found 5"
    )


def test_a_topic_that_cannot_be_made_is_reported(world: StreamsWorld) -> None:
    topology = word_count()
    topology.subtopologies[1].state_changelog_topics[0].topic_configs = [KeyValue(key="cleanup.policy", value="none")]
    answer = Member(world, "a").join(topology)
    assert codes(answer) == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert "; Creation failed: counts-changelog (" in details(answer)[0]


def test_a_member_with_an_older_topology_is_reported(world: StreamsWorld) -> None:
    Member(world, "a").join(word_count(epoch=1))
    answer = Member(world, "b").join(word_count(epoch=0))
    assert codes(answer) == [StatusCode.STALE_TOPOLOGY]


def test_another_topology_is_refused(world: StreamsWorld) -> None:
    joined_member(world)
    answer = Member(world, "b").join(word_count(epoch=1))
    assert (answer.error_code, answer.error_message) == (
        InvalidRequestError.code,
        "Topology updates are not supported yet.",
    )


def test_a_shutdown_of_the_application_is_sent_to_all_members(world: StreamsWorld) -> None:
    first, second = joined_member(world), joined_member(world, "b")
    assert codes(first.beat(shutdown_application=True)) == [StatusCode.SHUTDOWN_APPLICATION]
    assert codes(second.beat()) == [StatusCode.SHUTDOWN_APPLICATION]
    first.beat(-1)
    second.beat(-1)
    assert codes(Member(world, "c").join()) == []


def test_a_leaving_member_may_shut_down_the_application(world: StreamsWorld) -> None:
    first, second = joined_member(world), joined_member(world, "b")
    first.beat(-1, shutdown_application=True)
    assert codes(second.beat()) == [StatusCode.SHUTDOWN_APPLICATION]


def test_responses_have_endpoints_with_their_partitions(world: StreamsWorld) -> None:
    first = joined_member(world, port=1_001)
    second = joined_member(world, "b", port=1_002)
    settle(first, second)
    answer = second.beat(endpoint_information_epoch=-1)
    assert answer.endpoint_information_epoch == world.group.endpoint_epoch > 0
    endpoints = {
        end.user_endpoint.port: {(t.topic, index) for t in end.active_partitions for index in t.partitions}
        for end in answer.partitions_by_user_endpoint or ()
    }
    assert set(endpoints) == {1_001, 1_002}
    assert endpoints[1_001] | endpoints[1_002] == {(topic, index) for topic in ("lines", "words") for index in (0, 1)}
    known = second.beat(endpoint_information_epoch=answer.endpoint_information_epoch)
    assert known.partitions_by_user_endpoint is None


def test_a_restart_changes_nothing(world: StreamsWorld) -> None:
    first, second = joined_member(world, port=1_001), joined_member(world, "b")
    settle(first, second)
    before = (world.group.topology, world.group.epoch, {n: m.current for n, m in world.group.members.items()})
    world = world.restarted()
    assert before == (world.group.topology, world.group.epoch, {n: m.current for n, m in world.group.members.items()})
    for member in (first, second):
        member.world = world
        answer = member.beat()
        assert (answer.error_code, answer.active_tasks, codes(answer)) == (0, None, [])
    world.advance(45_000)
    assert world.group.state.value == "Empty"
    world.broker.controller.close()


def test_added_partitions_of_a_source_are_noticed(world: StreamsWorld) -> None:
    topology = Topology(subtopologies=[Subtopology(subtopology_id="0", source_topics=["lines"])])
    member = Member(world, "a")
    member.join(topology)
    assert member.assigned_tasks()[0] == {"0_0", "0_1"}
    wider = world.topics.changes.widen("lines", 3)
    while not wider.done:
        world.loop.run_soon()
    member.beat()
    assert member.assigned_tasks()[0] == {"0_0", "0_1", "0_2"}


JOIN: dict[str, Any] = {
    "member_id": "a",
    "member_epoch": 0,
    "rebalance_timeout_ms": 1,
    "active_tasks": [],
    "standby_tasks": [],
    "warmup_tasks": [],
}
PATTERN = Topology(subtopologies=[Subtopology(subtopology_id="0", source_topic_regex=["l.*"])])


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"instance_id": "i"}, InvalidRequestError, "Static membership is not yet supported."),
        ({"task_offsets": [TaskOffset()]}, InvalidRequestError, "TaskOffsets are not supported yet."),
        ({"task_end_offsets": []}, InvalidRequestError, "TaskEndOffsets are not supported yet."),
        ({"warmup_tasks": [TaskIds()]}, InvalidRequestError, "WarmupTasks are not supported yet."),
        ({"topology": PATTERN}, InvalidRequestError, "Regular expressions for source topics are not supported yet."),
        ({"member_id": " "}, InvalidRequestError, "MemberId can't be empty."),
        ({"rack_id": ""}, InvalidRequestError, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, InvalidRequestError, "RebalanceTimeoutMs must be provided in first request."),
        ({"active_tasks": None}, InvalidRequestError, "ActiveTasks must be empty when (re-)joining."),
        ({"topology": None}, InvalidRequestError, "Topology must be non-null when (re-)joining."),
        ({"member_epoch": -2}, InvalidRequestError, "InstanceId can't be null."),
        ({"member_epoch": -3}, InvalidRequestError, "MemberEpoch is -3, but must be greater than or equal to -2."),
        ({"member_epoch": 1}, InvalidRequestError, "Topology can only be provided when (re-)joining."),
        (
            {"member_epoch": 1, "topology": None, "active_tasks": None},
            InvalidRequestError,
            "If one task-type is non-null, all must be non-null.",
        ),
        ({"member_epoch": 1, "topology": None}, GroupIdNotFoundError, "Streams group g not found."),
    ],
)
def test_a_request_with_wrong_fields_is_refused(
    world: StreamsWorld, fields: dict[str, Any], error: type[KafkaError], text: str
) -> None:
    values = {**JOIN, "topology": word_count(), **fields}
    answer = world.ask(StreamsGroupHeartbeatRequest(group_id="g", **values))
    assert (answer.error_code, answer.error_message) == (error.code, text)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (
            Subtopology(subtopology_id="0", source_topics=["__consumer_offsets"]),
            "Use of Kafka internal topics __consumer_offsets in a Kafka Streams topology is prohibited.",
        ),
        (Subtopology(subtopology_id="0", source_topics=["a b"]), "Topic names a b are not valid topic names."),
        (Subtopology(subtopology_id="0"), "No source topics found for subtopology 0"),
        (
            Subtopology(
                subtopology_id="0", source_topics=["t"], state_changelog_topics=[TopicInfo(name="c", partitions=3)]
            ),
            "Changelog topic c must have an undefined partition count, but it is set to 3.",
        ),
    ],
)
def test_impossible_topologies_are_refused(world: StreamsWorld, part: Subtopology, text: str) -> None:
    answer = Member(world, "a").join(Topology(subtopologies=[part]))
    assert (answer.error_code, answer.error_message) == (StreamsInvalidTopologyError.code, text)


def test_epochs_are_checked(world: StreamsWorld) -> None:
    member = joined_member(world)
    assert member.beat(member.epoch + 1).error_code == FencedMemberEpochError.code
    assert member.beat(member.epoch - 1).error_code == FencedMemberEpochError.code
    previous = world.group.members["a"].current.previous_epoch
    answer = member.beat(previous, active_tasks=[], standby_tasks=[], warmup_tasks=[])
    assert answer.error_code == 0, "the answer that raised it may have been lost"
    unheard = [TaskIds(subtopology_id="0", partitions=[7])]
    answer = member.beat(active_tasks=unheard, standby_tasks=[], warmup_tasks=[])
    assert answer.error_message == "Task 7 for subtopology 0 is invalid. Number of tasks for this subtopology: 2"
    unheard = [TaskIds(subtopology_id="x", partitions=[0])]
    answer = member.beat(active_tasks=unheard, standby_tasks=[], warmup_tasks=[])
    assert answer.error_message == "Subtopology x does not exist in the topology."


def test_a_full_group_accepts_no_member(tmp_path: Path) -> None:
    world = StreamsWorld(tmp_path, {"group.streams.max.size": "1"})
    create_topic(world, "lines", 2)
    joined_member(world)
    assert Member(world, "b").join().error_code == GroupMaxSizeReachedError.code
    assert Member(world, "a").join().error_code == 0
    world.broker.controller.close()


def test_without_the_feature_requests_are_refused(world: StreamsWorld) -> None:
    world.broker.metadata.features.pop("streams.version")
    assert Member(world, "a").join().error_code == UnsupportedVersionError.code
    (described,) = world.ask(StreamsGroupDescribeRequest(group_ids=["g"])).groups
    assert described.error_code == UnsupportedVersionError.code


# -- offsets and administration -------------------------------------------------------------------------------------


def commit(world: StreamsWorld, member_id: str, epoch: int, topic: str = "lines", version: int = 9) -> int:
    asked = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
    request = OffsetCommitRequest(
        group_id="g",
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[asked])],
    )
    answer = world.ask(request, version)
    code: int = answer.topics[0].partitions[0].error_code
    return code


def test_members_commit_with_their_epoch(world: StreamsWorld) -> None:
    member = joined_member(world)
    given = member.epoch
    assert commit(world, "a", given) == 0
    assert commit(world, "a", given + 1) == StaleMemberEpochError.code
    assert commit(world, "x", given) == UnknownMemberIdError.code
    assert commit(world, "a", given, version=8) == UnsupportedVersionError.code
    joined_member(world, "b", process="p-a")
    settle(member)
    assert member.epoch > given
    kept = "0_0" in member.assigned_tasks()[0]
    assert commit(world, "a", given) == (0 if kept else StaleMemberEpochError.code)
    assert commit(world, "a", given - 1) == StaleMemberEpochError.code
    create_topic(world, "other")
    assert commit(world, "a", given, topic="other") == StaleMemberEpochError.code


def test_offsets_are_fetched_with_the_epoch(world: StreamsWorld) -> None:
    member = joined_member(world)
    commit(world, "a", member.epoch)

    def fetched(member_id: str, epoch: int) -> int:
        group = OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=epoch, topics=None)
        code: int = world.ask(OffsetFetchRequest(groups=[group]), 9).groups[0].error_code
        return code

    assert fetched("a", member.epoch) == 0
    assert fetched("a", member.epoch + 1) == StaleMemberEpochError.code
    assert fetched("x", member.epoch) == UnknownMemberIdError.code


def test_groups_are_listed_described_and_deleted(world: StreamsWorld) -> None:
    member = joined_member(world, port=1_001)
    (listed,) = world.ask(ListGroupsRequest(types_filter=["streams"])).groups
    found = (listed.group_id, listed.protocol_type, listed.group_type, listed.group_state)
    assert found == ("g", "streams", "streams", "Stable")
    (described,) = world.ask(StreamsGroupDescribeRequest(group_ids=["g"])).groups
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Stable", 3, 3)
    counts = described.topology.subtopologies[1]
    assert [(t.name, t.partitions) for t in counts.state_changelog_topics] == [("counts-changelog", 2)]
    (one,) = described.members
    assert (one.member_id, one.process_id, one.user_endpoint.port, one.topology_epoch) == ("a", "p-a", 1_001, 0)
    assert one.assignment == one.target_assignment
    assert {f"{t.subtopology_id}_{i}" for t in one.assignment.active_tasks for i in t.partitions} == ALL
    (unknown,) = world.ask(StreamsGroupDescribeRequest(group_ids=["none"] * 9)).groups
    assert unknown.error_code == GroupIdNotFoundError.code
    assert world.ask(DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == NonEmptyGroupError.code
    member.beat(-1)
    assert world.ask(DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == 0
    assert world.restarted().ask(ListGroupsRequest()).groups == []


def test_requests_of_another_group_type_are_refused(world: StreamsWorld) -> None:
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    join = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=1, protocol_type="consumer", protocols=[protocol]
    )
    member = joined_member(world)
    assert world.ask(join, 3).error_code == InconsistentGroupProtocolError.code
    commit(world, "a", member.epoch)
    member.beat(-1)
    world.ask(join, 3)
    (listed,) = world.ask(ListGroupsRequest()).groups
    assert listed.group_type == "classic"
    assert Member(world, "b").join().error_code == GroupIdNotFoundError.code


def test_a_group_with_only_offsets_becomes_a_streams_group(world: StreamsWorld) -> None:
    commit(world, "", -1)
    joined_member(world)
    (listed,) = world.restarted().ask(ListGroupsRequest()).groups
    assert listed.group_type == "streams"
