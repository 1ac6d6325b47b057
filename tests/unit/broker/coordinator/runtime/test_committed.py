"""Answers of coordinators wait until the records that they depend on are committed; the logs sync."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinators import GroupWorld, MemoryTopicLog, TransactionWorld
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker, batch
from tests.unit.broker.handlers.test_data_path import Wire
from tests.unit.broker.share.share_world import ShareMember, ShareWorld, runs
from tidelog.broker.coordinator.share_state.state import StateKey
from tidelog.broker.coordinator.transaction.coordinator import RETRY_MS
from tidelog.broker.coordinator.transaction.state import PREPARED
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.loop.steps import Job, StepRunner
from tidelog.broker.requests.route import Pending
from tidelog.protocol.errors import (
    NONE,
    KafkaStorageError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    UnknownMemberIdError,
)
from tidelog.protocol.messages import alter_share_group_offsets as alter
from tidelog.protocol.messages import delete_share_group_offsets as delete
from tidelog.protocol.messages.delete_groups import DeleteGroupsRequest
from tidelog.protocol.messages.end_txn import EndTxnRequest
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from tidelog.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tidelog.protocol.record.record_batch import BatchOptions

TEXTS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path, TEXTS)
    create_topic(data, "t", 1)
    for topic in ("__consumer_offsets", "__transaction_state"):
        data.make_internal_topics(topic)
        data.topics.set_configs(topic, {"flush.messages": "1"})
    data.broker.producer_ids.when_available()
    data.loop.run_soon()
    yield data
    data.close()


class Client(Wire):
    """A client on a connection of its own."""

    def answer(self, request: Any, version: int) -> list[Any]:
        """Send a request. Returns a list that is filled when the answer comes."""
        frames: list[Any] = []
        found = self.send(request, version)
        if isinstance(found, Pending):
            found.on_answer(frames.append)
        else:
            frames.append(found)
        return frames


def commit() -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    return OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[topic])


def test_a_commit_is_answered_when_it_is_on_the_disk(data: DataBroker) -> None:
    client = Client(data)
    answers = client.answer(commit(), 8)
    assert answers == []
    while data.loop.soon:  # the sync is done, then the request's own steps go on
        data.loop.run_soon()
    (frame,) = answers
    response = client.decoded(frame, OffsetCommitResponse, 8)
    assert response.topics[0].partitions[0].error_code == NONE


def test_a_transactional_id_is_given_when_it_is_on_the_disk(data: DataBroker) -> None:
    client = Client(data)
    answers = client.answer(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 4)
    assert answers == []
    data.loop.run_soon()
    assert client.decoded(answers[0], InitProducerIdResponse, 4).error_code == NONE


def test_without_flush_messages_nothing_waits(data: DataBroker) -> None:
    data.topics.set_configs("__consumer_offsets", {})
    assert len(Client(data).answer(commit(), 8)) == 1


def join(member_id: str = "") -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"m")]
    return JoinGroupRequest(
        group_id="g",
        member_id=member_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=protocols,
    )


def sync(member_id: str, generation_id: int, *members: str) -> SyncGroupRequest:
    given = [SyncGroupRequestAssignment(member_id=member, assignment=member.encode()) for member in members]
    return SyncGroupRequest(group_id="g", member_id=member_id, generation_id=generation_id, assignments=given)


def test_no_member_gets_an_assignment_before_it_is_on_the_disk(data: DataBroker) -> None:
    leader, follower = Client(data), Client(data)
    joined = leader.answer(join(), 3)
    data.loop.run_soon()
    first = leader.decoded(joined[0], JoinGroupResponse, 3).member_id
    waiting = follower.answer(join(), 3)
    joined = leader.answer(join(first), 3)
    data.loop.run_soon()
    second = follower.decoded(waiting[0], JoinGroupResponse, 3)
    generation_id = second.generation_id
    follows = follower.answer(sync(second.member_id, generation_id), 3)
    leads = leader.answer(sync(first, generation_id, first, second.member_id), 3)
    assert (follows, leads) == ([], [])
    data.loop.run_soon()
    assert bytes(leader.decoded(leads[0], SyncGroupResponse, 3).assignment) == first.encode()
    assert bytes(follower.decoded(follows[0], SyncGroupResponse, 3).assignment) == second.member_id.encode()


def test_a_waiting_client_may_disconnect(data: DataBroker) -> None:
    client = Client(data)
    answer = client.send(commit(), 8)
    assert isinstance(answer, Pending)
    answer.abandon()
    data.loop.run_soon()
    assert client.answer(join(), 3)
    data.loop.run_soon()
    waiting = client.send(join(), 3)
    assert isinstance(waiting, Pending)
    waiting.abandon()
    data.loop.run_soon()


# -- records of a transaction that add their partition to it ---------------------------------------------------------


def produced(data: DataBroker, producer: tuple[int, int], partitions: int) -> ProduceRequest:
    options = BatchOptions(producer_id=producer[0], producer_epoch=producer[1], is_transactional=True, base_sequence=0)
    parts = [
        PartitionProduceData(index=index, records=memoryview(bytes(batch(b"v", options=options))))
        for index in range(partitions)
    ]
    topic_id = data.broker.metadata.topics["two"].topic_id
    topic = TopicProduceData(name="two", topic_id=topic_id, partition_data=parts)
    return ProduceRequest(transactional_id="x", acks=-1, timeout_ms=1000, topic_data=[topic])


@pytest.mark.parametrize("partitions", [1, 2])
def test_records_are_acknowledged_when_their_transaction_has_their_partition_on_disk(
    data: DataBroker, partitions: int
) -> None:
    create_topic(data, "two", 2)
    client = Client(data)
    begun = client.answer(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 6)
    data.loop.run_soon()
    found = client.decoded(begun[0], InitProducerIdResponse, 6)
    answers = client.answer(produced(data, (found.producer_id, found.producer_epoch), partitions), 13)
    assert answers == []
    for _ in range(partitions):
        data.loop.run_soon()
    response = client.decoded(answers[0], ProduceResponse, 13)
    assert {part.error_code for part in response.responses[0].partition_responses} == {NONE}


# -- share groups -----------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ShareWorld]:
    world = ShareWorld(tmp_path, TEXTS)
    world.configure("g")
    world.topic("t", 10)
    for topic in ("__consumer_offsets", "__share_group_state"):
        world.make_internal_topics(topic)
        world.topics.set_configs(topic, {"flush.messages": "1"})
    yield world
    world.close()


def when_synced(world: ShareWorld, answer: Any) -> Any:
    """Return the answer to a share group's client, which must not come before the syncs."""
    assert isinstance(answer, Deferred)
    assert not answer.done
    while world.loop.soon:
        world.loop.run_soon()
    return answer.result()


def test_members_of_share_groups_are_answered_after_the_sync(world: ShareWorld) -> None:
    member = ShareMember(world, "g", "t", "m")
    joins = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["t"])
    assert when_synced(world, world.ask(member.context, joins, 1)).error_code == NONE
    assert runs(member.fetch()) == [(0, 9, 1)], "what is acquired is not stored"
    fetched = when_synced(world, member.ask((0, 4, [1])))
    assert fetched.responses[0].partitions[0].acknowledge_error_code == NONE
    topics: Any = member.topics((5, 9, [1]))
    done = ShareAcknowledgeRequest(group_id="g", member_id="m", share_session_epoch=member.epoch, topics=topics)
    answer = when_synced(world, world.ask(member.context, done, 2))
    assert answer.responses[0].partitions[0].error_code == NONE
    leaves = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=-1)
    assert when_synced(world, world.ask(member.context, leaves, 1)).error_code == NONE


def test_new_start_offsets_of_share_groups_count_after_the_sync(world: ShareWorld) -> None:
    place = alter.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=3)
    topic = alter.AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=[place])
    moves = alter.AlterShareGroupOffsetsRequest(group_id="g", topics=[topic])
    answer = when_synced(world, world.ask(world.context(1), moves, 0))
    assert answer.responses[0].partitions[0].error_code == NONE
    gone = delete.DeleteShareGroupOffsetsRequestTopic(topic_name="t")
    forgets = delete.DeleteShareGroupOffsetsRequest(group_id="g", topics=[gone])
    assert when_synced(world, world.ask(world.context(1), forgets, 0)).responses[0].error_code == NONE


def test_a_share_group_knows_of_states_that_are_on_the_disk(world: ShareWorld) -> None:
    """After a power loss no group may count on states that are lost."""
    groups = world.coordinators.groups.runtime.shard_for("g").groups
    member = ShareMember(world, "g", "t", "m")
    joins = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["t"])
    answer = world.ask(member.context, joins, 1)
    assert "g" not in groups, "no state is on the disk yet"
    when_synced(world, answer)
    assert "g" in groups
    place = alter.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=3)
    topic = alter.AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=[place])
    world.configure("h")
    answer = world.ask(world.context(1), alter.AlterShareGroupOffsetsRequest(group_id="h", topics=[topic]), 0)
    assert "h" not in groups, "its state is not on the disk yet"
    when_synced(world, answer)
    assert "h" in groups


@pytest.mark.parametrize("of_group", [False, True])
def test_a_share_groups_states_go_when_that_it_forgot_them_is_on_the_disk(world: ShareWorld, *, of_group: bool) -> None:
    """After a power loss there may be no group whose states are lost, and no states whose group is lost."""
    key = StateKey("g", world.broker.metadata.topics["t"].topic_id, 0)
    groups = world.coordinators.groups.runtime.shard_for("g").groups
    joins = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["t"])
    leaves = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=-1)
    for beat in (joins, leaves):
        when_synced(world, world.ask(world.context(1), beat, 1))
    gone = delete.DeleteShareGroupOffsetsRequestTopic(topic_name="t")
    if of_group:
        answer = world.ask(world.context(1), DeleteGroupsRequest(groups_names=["g"]), 2)
    else:
        answer = world.ask(world.context(1), delete.DeleteShareGroupOffsetsRequest(group_id="g", topics=[gone]), 0)
    assert world.coordinators.share.read(key) is not None, "the group's record is not on the disk yet"
    seen = []
    while not answer.done:
        world.loop.run_soon()
        seen.append((world.coordinators.share.read(key) is not None, "g" in groups))
    assert (False, True) in seen, "the states' records are not on the disk yet"
    assert seen[-1] == (False, not of_group)


def test_a_share_fetch_whose_client_has_gone_acquires_nothing(world: ShareWorld) -> None:
    """A request that waits for the disk holds no slices and no records."""
    member = ShareMember(world, "g", "t", "m")
    joins = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["t"])
    when_synced(world, world.ask(member.context, joins, 1))
    assert runs(member.fetch()) == [(0, 9, 1)]
    world.append("t", b"more")
    waiting = member.ask((0, 4, [1]))
    assert isinstance(waiting, Deferred)
    waiting.abandon()
    world.loop.run_soon()
    assert runs(member.fetch()) == [(10, 10, 1)]


# -- every answer, changes and reads, in seeded order -----------------------------------------------------------------


class SyncedLog(MemoryTopicLog):
    """A topic whose syncs end when the test says so."""

    def append(self, partition: int, batch: bytearray, transaction_version: int = 0) -> int:
        offset = super().append(partition, batch, transaction_version)
        self.syncs.setdefault(partition, Deferred())
        return offset

    def sync(self, error: KafkaStorageError | None = None) -> None:
        for partition in list(self.syncs):
            waiting = self.syncs.pop(partition)
            if error is None:
                waiting.complete(None)
            else:
                waiting.fail(error)


def offset_fetch(world: GroupWorld) -> Deferred[Any]:
    request = OffsetFetchRequestGroup(group_id="g", topics=None)
    runner = StepRunner(world.loop.call_soon, lambda: 0.0)
    found = runner.run(world.coordinator.fetch_offsets(request, require_stable=False, by_id=False))
    return found.done if isinstance(found, Job) else deferred_value(found)


ASKED: dict[str, Callable[[GroupWorld], Deferred[Any]]] = {
    "commit": lambda world: world.coordinator.commit_offsets(world.context(8), commit()),
    "empty commit": lambda world: world.coordinator.commit_offsets(world.context(8), OffsetCommitRequest(group_id="g")),
    "fetch": offset_fetch,
    "heartbeat": lambda world: world.coordinator.heartbeat(HeartbeatRequest(group_id="g", member_id="m")),
    "leave": lambda world: world.coordinator.leave_group(
        world.context(5), LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])
    ),
    "describe": lambda world: world.runtime.when_committed("g", None),
    "list": lambda world: world.runtime.when_all_committed(None),
}


@pytest.mark.parametrize("seed", range(20))
def test_no_answer_comes_before_the_high_watermark(seed: int) -> None:
    chance = random.Random(seed)
    log = SyncedLog()
    world = GroupWorld(log)
    answers: list[Deferred[Any]] = [world.coordinator.commit_offsets(world.context(8), commit())]
    for _ in range(60):
        if chance.random() < 0.3:
            log.sync()
            world.loop.run_soon()
            assert all(answer.done for answer in answers)
            continue
        try:
            answer = ASKED[chance.choice(sorted(ASKED))](world)
        except UnknownMemberIdError:  # raised before anything was appended: it tells nothing
            continue
        assert answer.done == (not log.syncs), "an answer waits if, and only if, something is not committed"
        answers.append(answer)


@pytest.mark.parametrize("asked", [name for name in ASKED if name not in ("heartbeat", "fetch")])
def test_an_answer_that_depends_on_a_lost_record_is_refused(asked: str) -> None:
    log = SyncedLog()
    world = GroupWorld(log)
    world.coordinator.commit_offsets(world.context(8), commit())
    answer = ASKED[asked](world)
    log.sync(KafkaStorageError())
    with pytest.raises(NotCoordinatorError):
        answer.result()


def test_offsets_that_may_be_lost_are_not_shown() -> None:
    log = SyncedLog()
    world = GroupWorld(log)
    world.coordinator.commit_offsets(world.context(8), commit())
    answer = offset_fetch(world)
    log.sync(KafkaStorageError())
    world.loop.run_soon()
    assert answer.result().error_code == NotCoordinatorError.code


# -- the steps of a transaction's end ---------------------------------------------------------------------------------


def begin(world: TransactionWorld, log: SyncedLog) -> tuple[int, int]:
    """Begin transaction x with partition t-0, whose record is not synced yet; return the producer id and epoch."""
    answer = world.coordinator.init_producer_id(
        InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000)
    )
    log.sync()
    producer = (answer.result().producer_id, answer.result().producer_epoch)
    world.coordinator.add_partitions("x", producer, [("t", 0)], 1)
    return producer


def test_each_step_of_a_transactions_end_waits_for_the_one_before() -> None:
    log = SyncedLog()
    world = TransactionWorld(log)
    producer = begin(world, log)
    log.sync()
    marker: Deferred[None] = Deferred()
    world.markers.syncs["t", 0] = marker
    request = EndTxnRequest(transactional_id="x", producer_id=producer[0], producer_epoch=producer[1], committed=True)
    ended = world.coordinator.end(request, 1)
    assert (ended.done, world.markers.written) == (False, [])
    log.sync()
    assert ended.done
    assert [partition for partition, _, _ in world.markers.written] == [("t", 0)]
    appends = log.appends
    marker.complete(None)
    assert log.appends == appends + 1, "the complete record follows the markers"


def test_a_marker_that_may_be_lost_leaves_the_transaction_open() -> None:
    log = SyncedLog()
    world = TransactionWorld(log)
    producer = begin(world, log)
    marker: Deferred[None] = Deferred()
    world.markers.syncs["t", 0] = marker
    log.sync()
    request = EndTxnRequest(transactional_id="x", producer_id=producer[0], producer_epoch=producer[1], committed=True)
    world.coordinator.end(request, 1)
    log.sync()
    appends = log.appends
    marker.fail(KafkaStorageError())
    assert log.appends == appends
    assert world.transaction().state in PREPARED


@pytest.mark.parametrize("lost", ["decision", "marker"])
def test_a_transaction_ends_although_a_record_of_its_end_is_lost_once(lost: str) -> None:
    """Its partition may have got another leader, or its disk was full: the coordinator would never be loaded again."""
    log = SyncedLog()
    world = TransactionWorld(log)
    producer = begin(world, log)
    log.sync()
    marker: Deferred[None] = Deferred()
    world.markers.syncs["t", 0] = marker
    request = EndTxnRequest(transactional_id="x", producer_id=producer[0], producer_epoch=producer[1], committed=True)
    world.coordinator.end(request, 1)
    if lost == "decision":
        for partition in list(log.syncs):
            log.syncs.pop(partition).fail(NotLeaderOrFollowerError())
    else:
        log.sync()
        marker.fail(NotLeaderOrFollowerError())
    del world.markers.syncs["t", 0]
    world.advance(RETRY_MS)
    log.sync()
    assert world.markers.written[-1] == (("t", 0), producer, True)
    assert world.transaction().state not in PREPARED
