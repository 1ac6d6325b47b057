"""Answers of coordinators under ``flush.messages``: over real logs whose syncs end when the test turns the loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.coordinator.durability import SyncGate
from broker.deferred import Deferred
from broker.dispatch import Pending
from protocol.errors import NONE, KafkaStorageError, NotCoordinatorError, RebalanceInProgressError
from protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.unit.broker.data_broker import DataBroker
from tests.unit.broker.handlers.test_data_path import Wire

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
    assert data.broker.coordinators.gate
    data.loop.run_soon()
    (frame,) = answers
    response = client.decoded(frame, OffsetCommitResponse, 8)
    assert response.topics[0].partitions[0].error_code == NONE
    assert not data.broker.coordinators.gate


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
