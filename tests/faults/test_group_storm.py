"""Members of groups join, leave and die every 100 ms (fault F21 of docs/internals/faults.md): fencing holds, and the
group is stable after a session timeout and 5 s."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.coordinators import GroupWorld
from tests.unit.broker.stepping import response_of
from tidelog.broker.coordinator.group.classic.group import STABLE
from tidelog.broker.coordinator.group.consumer.group import ConsumerGroup, ConsumerGroupState
from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.join_group import JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.protocol.messages.sync_group import SyncGroupResponse

MEMBERS = 50
SESSION_MS = 10_000
STEP_MS = 100
STORM_STEPS = 300


class ClassicClient:
    """A client of the classic protocol: joins, syncs, sends heartbeats, and joins again when the coordinator requires
    it."""

    def __init__(self, world: GroupWorld, instance_id: str | None) -> None:
        self.world = world
        self.instance_id = instance_id
        self.member_id = ""
        self.generation_id = -1
        self.assignment: bytes | None = None
        self.fenced = False
        self._joining: Deferred[JoinGroupResponse] | None = None
        self._syncing: Deferred[SyncGroupResponse] | None = None
        self._beat_at = 0.0

    def turn(self) -> None:
        """Do everything that is due."""
        if self.fenced:
            return
        if self._joining is not None:
            if self._joining.done:
                self._joined(self._joining.result())
        elif self._syncing is not None:
            if self._syncing.done:
                self._synced(self._syncing.result())
        elif self.assignment is None:
            self._joining = self.world.join(
                self.member_id, session_timeout_ms=SESSION_MS, group_instance_id=self.instance_id, version=7
            )
        elif self.world.time.monotonic_ms() >= self._beat_at:
            self._beat()

    def _joined(self, response: JoinGroupResponse) -> None:
        self._joining = None
        if response.error_code:
            self._refused(response.error_code, response.member_id)
            return
        self.member_id, self.generation_id = response.member_id, response.generation_id
        shares = {member.member_id: str(index).encode() for index, member in enumerate(response.members)}
        try:
            self._syncing = self.world.sync(
                self.member_id, self.generation_id, shares, group_instance_id=self.instance_id
            )
        except KafkaError as error:
            self._refused(error.code)

    def _synced(self, response: SyncGroupResponse) -> None:
        self._syncing = None
        if response.error_code:
            self._refused(response.error_code)
        else:
            self.assignment = bytes(response.assignment)

    def _beat(self) -> None:
        self._beat_at = self.world.time.monotonic_ms() + 1_000
        request = HeartbeatRequest(
            group_id="g",
            member_id=self.member_id,
            generation_id=self.generation_id,
            group_instance_id=self.instance_id,
        )
        try:
            code = self.world.coordinator.heartbeat(request).result().error_code
        except KafkaError as error:
            code = error.code
        if code:
            self._refused(code)

    def _refused(self, code: int, member_id: str = "") -> None:
        self.assignment = None
        if code == 79:  # MEMBER_ID_REQUIRED
            self.member_id = member_id
        elif code == 25:  # UNKNOWN_MEMBER_ID
            self.member_id = ""
        elif code == 82:  # FENCED_INSTANCE_ID
            self.fenced = True

    def die(self) -> None:
        """Close the connection, as a client that was killed."""
        for waiting in (self._joining, self._syncing):
            if waiting is not None:
                waiting.abandon()

    def leave(self) -> None:
        if self.member_id:
            members = [MemberIdentity(member_id=self.member_id)]
            request = LeaveGroupRequest(group_id="g", members=members)
            try:
                self.world.coordinator.leave_group(self.world.context(5), request).result()
            except KafkaError:
                return  # it had been dropped already


class ConsumerClient:
    """A client of the consumer protocol."""

    def __init__(self, world: GroupWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.epoch = 0
        self.owned: dict[bytes, list[int]] = {}

    def turn(self) -> None:
        partitions = [TopicPartitions(topic_id=topic, partitions=indexes) for topic, indexes in self.owned.items()]
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=self.name,
            member_epoch=self.epoch,
            rebalance_timeout_ms=SESSION_MS,
            subscribed_topic_names=["t", "u"],
            topic_partitions=partitions,
        )
        try:
            answer = self.world.coordinator.consumer_group_heartbeat(self.world.context(1), request).result()
        except KafkaError:
            self.epoch, self.owned = 0, {}
            return
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {bytes(t.topic_id): t.partitions for t in answer.assignment.topic_partitions}

    def die(self) -> None:
        """Send nothing any more, as a client that was killed."""

    def leave(self) -> None:
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=self.name, member_epoch=-1)
        try:
            self.world.coordinator.consumer_group_heartbeat(self.world.context(1), request).result()
        except KafkaError:
            return  # it had been dropped already


def storm(world: GroupWorld, clients: list[Any], make: Any, check: Any, seed: int) -> None:
    """Let a member leave, die or join at every step, while all others continue. Then nothing happens for a while."""
    choose = random.Random(seed)
    for _ in range(STORM_STEPS):
        victim = choose.randrange(len(clients))
        what = choose.random()
        if what < 0.3:
            clients[victim].leave()
        if what < 0.6:
            clients[victim].die()
            clients[victim] = make()
        for client in clients:
            client.turn()
        check(clients)
        world.advance(STEP_MS)
    for _ in range((SESSION_MS + 5_000) // STEP_MS):
        for client in clients:
            client.turn()
        check(clients)
        world.advance(STEP_MS)


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("seed", range(3))
def test_classic_group_settles_after_a_storm(seed: int, static: bool) -> None:
    world = GroupWorld()
    count = iter(range(10_000))

    def make() -> ClassicClient:
        return ClassicClient(world, f"i{next(count)}" if static else None)

    def check(clients: list[ClassicClient]) -> None:
        group = world.group()
        if group is None or group.state is not STABLE:
            return
        shares = [c.assignment for c in clients if c.assignment is not None and c.generation_id == group.generation_id]
        assert len(shares) == len(set(shares)), "two members of one generation have the same share"

    clients = [make() for _ in range(MEMBERS)]
    storm(world, clients, make, check, seed)
    assert world.group().state is STABLE
    assert {client.member_id for client in clients} == set(world.group().members)
    assert {client.generation_id for client in clients} == {world.group().generation_id}


def test_of_two_clients_with_one_instance_id_one_is_fenced() -> None:
    world = GroupWorld()
    first, second = ClassicClient(world, "i"), ClassicClient(world, "i")
    for _ in range(50):
        first.turn()
        world.advance(STEP_MS)
    for _ in range(50):
        first.turn()
        second.turn()
        world.advance(STEP_MS)
    assert first.fenced
    assert second.assignment is not None


@pytest.mark.parametrize("seed", range(3))
def test_consumer_group_settles_after_a_storm_and_no_partition_has_two_owners(seed: int) -> None:
    world = GroupWorld(group_consumer_session_timeout_ms=SESSION_MS)
    count = iter(range(10_000))

    def make() -> ConsumerClient:
        return ConsumerClient(world, f"m{next(count)}")

    def check(clients: list[ConsumerClient]) -> None:
        group = world.group()
        assert isinstance(group, ConsumerGroup)
        places = [
            (topic, index)
            for client in clients
            if client.name in group.members and client.epoch > 0
            for topic, indexes in client.owned.items()
            for index in indexes
        ]
        assert len(places) == len(set(places)), "a partition has two owners"

    clients = [make() for _ in range(MEMBERS)]
    storm(world, clients, make, check, seed)
    assert world.group().state is ConsumerGroupState.STABLE
    assert sum(len(indexes) for client in clients for indexes in client.owned.values()) == 8


def test_a_thousand_groups_come_back() -> None:
    world = GroupWorld()
    for index in range(1_000):
        world.join(group_id=f"group-{index}", version=3)
    again = world.restarted()
    assert len(response_of(again.coordinator.list_groups([], []))) == 1_000
