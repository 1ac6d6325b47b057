"""Answers of coordinators under ``flush.messages``: over real logs whose syncs end when the test turns the loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.data_broker import DataBroker, batch
from tests.unit.broker.handlers.test_data_path import Wire
from tests.unit.broker.share.share_world import ShareMember, ShareWorld, runs
from tidelog.broker.coordinator.runtime.durability import SyncGate
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.requests.route import Pending
from tidelog.protocol.errors import (
    NONE,
    KafkaStorageError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    RebalanceInProgressError,
)
from tidelog.protocol.messages import alter_share_group_offsets as alter
from tidelog.protocol.messages import delete_share_group_offsets as delete
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from tidelog.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tidelog.protocol.record.record_batch import BatchOptions
from tidelog.protocol.transferable import TransferableRecords

TEXTS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path, TEXTS)
    data.topics.create_topic("t", 1)
    for topic in ("__consumer_offsets", "__transaction_state"):
        data.topics.ensure_internal_topic(topic)
        data.topics.set_configs(topic, {"flush.messages": "1"})
    yield data
    data.close()


class Client(Wire):
    """A client on a connection of its own."""

    def answer(self, request: Any, version: int) -> list[Any]:
        """Filled when the answer comes."""
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
    assert data.broker.services.coordinators.get().gate
    while data.loop.soon:  # the sync is done, then the request's own steps go on
        data.loop.run_soon()
    (frame,) = answers
    response = client.decoded(frame, OffsetCommitResponse, 8)
    assert response.topics[0].partitions[0].error_code == NONE
    assert not data.broker.services.coordinators.get().gate


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


def test_nobody_hears_of_an_assignment_before_it_is_on_the_disk(data: DataBroker) -> None:
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


def test_who_waits_may_go(data: DataBroker) -> None:
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


def held(gate: SyncGate, response: Any) -> tuple[list[int], Deferred[int]]:
    found: list[int] = []
    deferred: Deferred[int] = gate.hold(response)
    deferred.on_done(lambda done: found.append(done.result()))
    return found, deferred


def test_all_syncs_are_waited_for() -> None:
    gate = SyncGate()
    syncs: list[Deferred[None]] = [Deferred(), Deferred()]
    for one in syncs:
        gate.add(one)
    found, _ = held(gate, 7)
    syncs[1].complete(None)
    assert found == []
    syncs[0].complete(None)
    assert found == [7]
    assert not gate


def test_a_sync_that_is_done_holds_up_nothing() -> None:
    gate = SyncGate()
    done: Deferred[None] = Deferred()
    done.complete(None)
    gate.add(done)
    assert held(gate, 7)[0] == [7]


def test_a_sync_that_fails_is_told() -> None:
    gate = SyncGate()
    sync_: Deferred[None] = Deferred()
    gate.add(sync_)
    deferred: Deferred[int] = gate.hold(7)
    sync_.fail(KafkaStorageError())
    with pytest.raises(NotCoordinatorError):
        deferred.result()


def test_an_error_comes_through() -> None:
    waiting: Deferred[int] = Deferred()
    deferred = SyncGate().hold(waiting)
    waiting.fail(RebalanceInProgressError())
    with pytest.raises(RebalanceInProgressError):
        deferred.result()


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
    data.topics.create_topic("two", 2)
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


def test_a_refusal_is_what_its_client_understands() -> None:
    gate = SyncGate()
    sync_: Deferred[None] = Deferred()
    gate.add(sync_)
    dropped: list[int] = []
    deferred: Deferred[int] = gate.hold(7, dropped.append, NotEnoughReplicasError)
    sync_.fail(KafkaStorageError())
    with pytest.raises(NotEnoughReplicasError):
        deferred.result()
    assert dropped == [7]


# -- share groups -----------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ShareWorld]:
    world = ShareWorld(tmp_path, TEXTS)
    world.configure("g")
    world.topic("t", 10)
    for topic in ("__consumer_offsets", "__share_group_state"):
        world.topics.ensure_internal_topic(topic)
        world.topics.set_configs(topic, {"flush.messages": "1"})
    yield world
    world.close()


def when_synced(world: ShareWorld, answer: Any) -> Any:
    """Answer to a share group's member, which must not come before the sync."""
    assert isinstance(answer, Deferred)
    assert not answer.done
    world.loop.run_soon()
    return answer.result()


def test_members_of_share_groups_hear_what_is_on_the_disk(world: ShareWorld) -> None:
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


def test_places_of_share_groups_are_moved_when_that_is_on_the_disk(world: ShareWorld) -> None:
    place = alter.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=3)
    topic = alter.AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=[place])
    moves = alter.AlterShareGroupOffsetsRequest(group_id="g", topics=[topic])
    answer = when_synced(world, world.ask(world.context(1), moves, 0))
    assert answer.responses[0].partitions[0].error_code == NONE
    gone = delete.DeleteShareGroupOffsetsRequestTopic(topic_name="t")
    forgets = delete.DeleteShareGroupOffsetsRequest(group_id="g", topics=[gone])
    assert when_synced(world, world.ask(world.context(1), forgets, 0)).responses[0].error_code == NONE


def test_slices_of_a_share_fetch_that_nobody_waits_for_are_let_go(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = ShareMember(world, "g", "t", "m")
    joins = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["t"])
    when_synced(world, world.ask(member.context, joins, 1))
    member.fetch()
    world.append("t", b"more")
    released: list[int] = []
    monkeypatch.setattr(TransferableRecords, "release", lambda part: released.append(part.size))
    waiting = member.ask((0, 4, [1]))
    assert isinstance(waiting, Deferred)
    waiting.abandon()
    world.loop.run_soon()
    assert len(released) == 1
