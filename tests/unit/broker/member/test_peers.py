"""A member's requests to verify partitions of transactions and to write markers: to itself, and to other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.broker import Broker
from tidelog.broker.cluster.txn_markers import Marker
from tidelog.broker.loop.deferred import Deferred, NotReadyError, deferred_value
from tidelog.broker.member import peers as module
from tidelog.broker.member.connections.security import PeerSecurity
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.peers import MemberPeers
from tidelog.broker.metadata.image import TRANSACTION_STATE_TOPIC
from tidelog.broker.metadata.metadata_image import MetadataImage, PartitionState, TopicState
from tidelog.protocol import errors
from tidelog.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

NODE, OTHER = 1, 2
PARTITION, PRODUCER = ("t", 0), (7, 3)


def image(coordinator: int) -> MetadataImage:
    states = {"t": (PartitionState((NODE,), (NODE,), NODE),)}
    states[TRANSACTION_STATE_TOPIC] = (PartitionState((coordinator,), (coordinator,), coordinator),)
    topics = {name.encode().ljust(16)[:16]: (name, found) for name, found in states.items()}
    return MetadataImage(
        topics={key: TopicState(name, key, found) for key, (name, found) in topics.items()},
        topic_ids={name: key for key, (name, _) in topics.items()},
    )


class World:
    """A member that leads ``t``-0; ``answers`` are those of its own coordinator."""

    def __init__(self, coordinator: int = NODE, *answers: Deferred[None] | errors.KafkaError) -> None:
        self.partition = SimpleNamespace(is_leader=True, leader_epoch=5, append_records=self.refuse_marker)
        self.answers = list(answers)
        self.added: list[tuple[str, tuple[int, int], Any]] = []
        self.started: list[Coroutine[Any, Any, None]] = []
        self.refusal: errors.KafkaError = errors.InvalidProducerEpochError()
        transactions = SimpleNamespace(add_partitions=self.add_partitions)
        coordinators = SimpleNamespace(transactions=transactions)
        broker = SimpleNamespace(
            replica_manager=SimpleNamespace(partition=lambda *_: self.partition),
            services=SimpleNamespace(coordinators=SimpleNamespace(get=lambda: coordinators)),
            time=SimpleNamespace(milliseconds=lambda: 0),
        )
        self.peers = MemberPeers(
            lambda: cast("Broker", broker),
            RemoteController(image(coordinator), NODE),
            cast("PeerSecurity", SimpleNamespace(listener_name="PLAINTEXT")),
            self.started.append,
        )

    def refuse_marker(self, *_: object, **__: object) -> None:
        raise self.refusal

    def add_partitions(self, transactional_id: str, producer: tuple[int, int], partitions: Any, version: int) -> Any:
        assert version == 2
        self.added.append((transactional_id, producer, partitions))
        answer = self.answers.pop(0)
        if isinstance(answer, errors.KafkaError):
            raise answer
        return answer

    def ask(self, *, is_adding: bool = True) -> Deferred[None] | None:
        return self.peers.ask_coordinator("id", PARTITION, PRODUCER, is_adding=is_adding)

    def close(self) -> None:
        for one in self.started:
            one.close()


def is_settled(waiting: Deferred[None] | None) -> bool:
    """Return whether there is something to wait for, and it is over."""
    assert waiting is not None
    return waiting.done


def test_a_partition_is_added_here_and_committed_before_anything_is_appended() -> None:
    """Otherwise there could be records of a transaction that its coordinator does not know and never ends."""
    added: Deferred[None] = Deferred()
    world = World(NODE, added)
    waiting = world.ask()
    assert not is_settled(waiting)
    assert world.added == [("id", PRODUCER, (PARTITION,))]
    added.complete(None)
    assert is_settled(waiting)
    world.peers.check_batch(PARTITION, PRODUCER)
    assert world.ask() is None, "the marker ends it"
    world.peers.note_marker(PARTITION, PRODUCER[0])
    world.answers.append(deferred_value(None))
    assert world.ask() is None, "committed at once"
    assert len(world.added) == 2


def test_a_refusal_of_the_local_coordinator_is_not_remembered() -> None:
    for answer in (errors.ProducerFencedError(), errors.NotCoordinatorError()):
        world = World(NODE, answer, answer)
        assert world.ask() is None
        assert world.ask() is None
        assert len(world.added) == 2, "nothing is kept of a refusal"


def test_a_coordinator_whose_log_is_opened_is_asked_once_more() -> None:
    opened: Deferred[None] = Deferred()
    added: Deferred[None] = Deferred()
    world = World(NODE, NotReadyError(opened), added)
    waiting = world.ask()
    opened.complete(None)
    assert not is_settled(waiting)
    added.complete(None)
    assert is_settled(waiting)
    world = World(NODE, NotReadyError(deferred_value(None)), NotReadyError(deferred_value(None)))
    assert world.ask() is None


def test_partitions_that_a_client_added_itself_are_not_added_again() -> None:
    world = World(NODE)
    assert world.ask(is_adding=False) is None
    assert world.added == []


def test_leave_to_write_ends_with_the_leader_epoch() -> None:
    """While another broker leads, markers come to that one: a late batch would begin a transaction that never ends."""
    world = World(NODE, deferred_value(None), deferred_value(None))
    assert world.ask() is None
    world.peers.check_batch(PARTITION, PRODUCER)
    world.partition.leader_epoch = 7
    with pytest.raises(errors.CoordinatorLoadInProgressError):
        world.peers.check_batch(PARTITION, PRODUCER)
    assert world.ask() is None
    world.peers.check_batch(PARTITION, PRODUCER)
    assert len(world.added) == 2


@pytest.mark.parametrize("coordinator", [NODE, OTHER])
def test_nothing_is_asked_for_a_partition_that_another_broker_leads(coordinator: int) -> None:
    world = World(coordinator)
    world.partition.is_leader = False
    assert world.ask() is None
    with pytest.raises(errors.NotLeaderOrFollowerError):
        world.peers.check_batch(PARTITION, PRODUCER)
    assert world.started == []
    world.partition.is_leader = True
    waiting = world.ask() if coordinator == OTHER else None
    assert len(world.started) == (coordinator == OTHER) == (waiting is not None)
    world.close()


@pytest.mark.parametrize(
    ("refusal", "is_done"),
    [
        (errors.InvalidProducerEpochError(), True),
        (errors.TransactionCoordinatorFencedError(), True),
        (errors.NotEnoughReplicasError(), False),
        (errors.NotLeaderOrFollowerError(), False),
    ],
)
async def test_a_marker_whose_partition_came_here_is_done_as_at_another_leader(
    refusal: errors.KafkaError, is_done: bool
) -> None:
    """It was once repeated without end when the producer or its coordinator had moved."""
    await asyncio.sleep(0)
    world = World(OTHER)
    world.refusal = refusal
    done = world.peers.write_marker(Marker(*PARTITION, *PRODUCER, True, 4, 2))
    assert done.done is is_done
    assert len(world.started) == (not is_done)
    world.close()


async def test_many_markers_go_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one may be more than their leader takes: it closed the connection, and they came again, all in one."""
    monkeypatch.setattr(module, "MAX_MARKERS", 2)
    world, sizes = World(OTHER), list[int]()

    async def ask(_node: int, request: WriteTxnMarkersRequest, _kind: object) -> WriteTxnMarkersResponse:
        sizes.append(len(request.markers))
        await asyncio.sleep(0)
        results = [WritableTxnMarkerPartitionResult(partition_index=0, error_code=0)]
        topics = [WritableTxnMarkerTopicResult(name=TRANSACTION_STATE_TOPIC, partitions=results)]
        return WriteTxnMarkersResponse(
            markers=[WritableTxnMarkerResult(producer_id=one.producer_id, topics=topics) for one in request.markers]
        )

    monkeypatch.setattr(world.peers, "_ask", ask)
    markers = [Marker(TRANSACTION_STATE_TOPIC, 0, number, 0, True, 4, 2) for number in range(5)]
    waits = [world.peers.write_marker(marker) for marker in markers]
    (sending,) = world.started
    await sending
    assert sizes == [2, 2, 1]
    assert all(map(is_settled, waits))
