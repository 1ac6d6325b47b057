"""Members of groups join, leave, end and pause every 100 ms (fault F21 of docs/internals/faults.md).

No member gets a share of another generation or of another member. A heartbeat of an earlier generation is refused. The
group is stable after a session timeout and 5 s.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol, TypeVar

import pytest

from tests.support.coordinators import GroupWorld
from tests.unit.broker.stepping import response_of
from tidelog.broker.coordinator.group.classic.group import STABLE
from tidelog.broker.coordinator.group.consumer.group import ConsumerGroup, ConsumerGroupState
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.metadata.image import TopicImage, single_replica_states
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.join_group import JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

MEMBERS = 50
SESSION_MS = 10_000
REBALANCE_MS = 1_000
BEAT_MS = 300
STEP_MS = 100
STORM_STEPS = 300


class Storm:
    """Pauses of clients, and what the members of a classic group were told."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.is_over = False
        self.newest_generation = -1
        self.owners: dict[bytes, str] = {}
        """Member or instance id by share; a share is of one generation."""
        self.stale_requests = 0

    def pause(self, chance: float, shortest_ms: int, longest_ms: int) -> int:
        """Return how long a client does nothing now, as a process that is stopped; 0 for most."""
        is_paused = not self.is_over and self.random.random() < chance
        return self.random.randint(shortest_ms, longest_ms) if is_paused else 0


class ClassicClient:
    """A client of the classic protocol: joins, syncs, sends heartbeats, and joins again when the coordinator requires
    it. In a storm it pauses sometimes, for less than the session timeout."""

    def __init__(self, world: GroupWorld, instance_id: str | None, storm: Storm | None = None) -> None:
        self.world = world
        self.instance_id = instance_id
        self.storm = storm
        self.member_id = ""
        self.generation_id = -1
        self.assignment: bytes | None = None
        self.fenced = False
        self._shares: dict[str, bytes] | None = None
        self._paused_until = 0.0
        self._joining: Deferred[JoinGroupResponse] | None = None
        self._syncing: Deferred[SyncGroupResponse] | None = None
        self._beat_at = 0.0

    def turn(self) -> None:
        """Do everything that is due."""
        if self.fenced or self.is_paused:
            return
        if self._joining is not None:
            if self._joining.done:
                self._joined(self._joining.result())
        elif self._shares is not None:
            self._sync(self._shares)
        elif self._syncing is not None:
            if self._syncing.done:
                self._synced(self._syncing.result())
        elif self.assignment is None:
            self._joining = self.world.join(
                self.member_id, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS,
                group_instance_id=self.instance_id, version=7,
            )  # fmt: skip
        elif self.world.time.monotonic_ms() >= self._beat_at:
            self._beat()

    @property
    def is_paused(self) -> bool:
        """Return whether this client does nothing now."""
        return self.world.time.monotonic_ms() < self._paused_until

    def _pause(self, chance: float, shortest_ms: int, longest_ms: int) -> None:
        if self.storm is not None:
            pause_ms = self.storm.pause(chance, shortest_ms, longest_ms)
            self._paused_until = self.world.time.monotonic_ms() + pause_ms

    def _joined(self, response: JoinGroupResponse) -> None:
        self._joining = None
        if response.error_code:
            self._refused(response.error_code, response.member_id)
            return
        self.member_id, self.generation_id = response.member_id, response.generation_id
        if self.storm is not None:
            self.storm.newest_generation = max(self.storm.newest_generation, self.generation_id)
        self._shares = {
            member.member_id: f"{self.generation_id}:{index}".encode() for index, member in enumerate(response.members)
        }
        self._pause(0.2, STEP_MS, 3 * REBALANCE_MS)
        if not self.is_paused:
            self._sync(self._shares)

    def _sync(self, shares: dict[str, bytes]) -> None:
        self._shares = None
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
            return
        self.assignment = bytes(response.assignment)
        if self.storm is not None:
            name = self.instance_id or self.member_id
            assert self.assignment.startswith(b"%d:" % self.generation_id), "a share of another generation"
            assert self.storm.owners.setdefault(self.assignment, name) == name, "two members have the same share"

    def _beat(self) -> None:
        self._beat_at = self.world.time.monotonic_ms() + BEAT_MS
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
        elif self.storm is not None:
            assert self.generation_id >= self.storm.newest_generation, "a heartbeat of an old generation is accepted"
            self._pause(0.1, REBALANCE_MS, SESSION_MS - 2_000)

    def _refused(self, code: int, member_id: str = "") -> None:
        self.assignment = None
        if code == 22 and self.storm is not None:  # ILLEGAL_GENERATION
            self.storm.stale_requests += 1
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
    """A client of the consumer protocol. Until ``revoke_ms`` after it was told to give up partitions, it owns them
    still, says so in its heartbeats, and takes no others."""

    def __init__(self, world: GroupWorld, name: str, revoke_ms: int) -> None:
        self.world = world
        self.name = name
        self.revoke_ms = revoke_ms
        self.epoch = 0
        self.owned: dict[bytes, list[int]] = {}
        self.told: dict[bytes, list[int]] | None = None
        self._revoked_at = 0.0

    def turn(self) -> None:
        if self.told is not None and self.world.time.monotonic_ms() >= self._revoked_at:
            self.owned, self.told = self.told, None
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
            self.epoch, self.owned, self.told = 0, {}, None
            return
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self._take({bytes(t.topic_id): t.partitions for t in answer.assignment.topic_partitions})

    def _take(self, told: dict[bytes, list[int]]) -> None:
        if all(set(indexes) <= set(told.get(topic, [])) for topic, indexes in self.owned.items()):
            self.owned, self.told = told, None
        elif self.told is None:
            self.told, self._revoked_at = told, self.world.time.monotonic_ms() + self.revoke_ms
        else:
            self.told = told

    def die(self) -> None:
        """Send nothing any more, as a client that was killed."""

    def leave(self) -> None:
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=self.name, member_epoch=-1)
        try:
            self.world.coordinator.consumer_group_heartbeat(self.world.context(1), request).result()
        except KafkaError:
            return  # it had been dropped already


class Client(Protocol):
    """A client of a storm."""

    def turn(self) -> None:
        """Do everything that is due."""

    def die(self) -> None:
        """End without leaving."""

    def leave(self) -> None:
        """Leave the group."""


C = TypeVar("C", bound=Client)


def run_storm(
    world: GroupWorld, storm: Storm, clients: list[C], replace: Callable[[C], C], check: Callable[[], None]
) -> None:
    """Replace a random client in each step: 30 % leave before they end, 30 % end without leaving; in 40 % none is
    replaced. Then no member changes for a session timeout and 5 s."""
    for step in range(STORM_STEPS + (SESSION_MS + 5_000) // STEP_MS):
        storm.is_over = step >= STORM_STEPS
        victim, what = storm.random.randrange(len(clients)), storm.random.random()
        if not storm.is_over and what < 0.6:
            if what < 0.3:
                clients[victim].leave()
            clients[victim] = replace(clients[victim])
        for client in clients:
            client.turn()
        check()
        world.advance(STEP_MS)


@pytest.mark.parametrize("seed", range(3))
def test_classic_group_settles_after_a_storm(seed: int) -> None:
    world, storm = GroupWorld(), Storm(seed)

    def replace(client: ClassicClient) -> ClassicClient:
        client.die()
        return ClassicClient(world, None, storm)

    clients = [ClassicClient(world, None, storm) for _ in range(MEMBERS)]
    run_storm(world, storm, clients, replace, lambda: None)
    assert_settled(world, clients)
    assert len(storm.owners) > 10 * MEMBERS


@pytest.mark.parametrize("seed", range(3))
def test_group_of_static_members_settles_after_a_storm(seed: int) -> None:
    """Half of the new clients have the instance ids of those that they replace. A paused client that is replaced does
    not end; it is fenced when it goes on."""
    world, storm, count = GroupWorld(), Storm(seed), iter(range(10_000))
    replaced: list[ClassicClient] = []

    def replace(client: ClassicClient) -> ClassicClient:
        is_same = storm.random.random() < 0.5
        if is_same and client.is_paused:
            replaced.append(client)
        else:
            client.die()
        return ClassicClient(world, client.instance_id if is_same else f"i{next(count)}", storm)

    def go_on() -> None:
        for client in replaced:
            client.turn()

    clients = [ClassicClient(world, f"i{next(count)}", storm) for _ in range(MEMBERS)]
    run_storm(world, storm, clients, replace, go_on)
    assert_settled(world, [client for client in (*clients, *replaced) if not client.fenced])
    assert len(storm.owners) > 10 * MEMBERS
    assert storm.stale_requests > 10
    assert any(client.fenced for client in replaced)


def assert_settled(world: GroupWorld, clients: list[ClassicClient]) -> None:
    group = world.group()
    assert group.state is STABLE
    assert {client.member_id for client in clients} == set(group.members)
    assert {client.generation_id for client in clients} == {group.generation_id}
    assert len({client.assignment for client in clients}) == len(clients)


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
    world, storm, count = GroupWorld(group_consumer_session_timeout_ms=SESSION_MS), Storm(seed), iter(range(10_000))
    late = 0
    for index, name in enumerate(("t", "u")):
        world.metadata.put(TopicImage(name, bytes([index + 1] * 16), single_replica_states(1, MEMBERS), {}, False))

    def make() -> ConsumerClient:
        return ConsumerClient(world, f"m{next(count)}", storm.pause(0.5, STEP_MS, 1_000))

    def replace(client: ConsumerClient) -> ConsumerClient:
        client.die()
        return make()

    def check() -> None:
        nonlocal late
        group = world.group()
        assert isinstance(group, ConsumerGroup)
        members = [client for client in clients if client.name in group.members and client.epoch > 0]
        late += any(client.told is not None for client in members)
        places = [(topic, index) for client in members for topic, found in client.owned.items() for index in found]
        assert len(places) == len(set(places)), "a partition has two owners"

    clients = [make() for _ in range(MEMBERS)]
    run_storm(world, storm, clients, replace, check)
    assert world.group().state is ConsumerGroupState.STABLE
    assert sum(len(indexes) for client in clients for indexes in client.owned.values()) == 2 * MEMBERS
    assert late > 20, "few clients were told to give up partitions"


def test_a_thousand_groups_come_back() -> None:
    world = GroupWorld()
    members = {}
    for group_id in (f"group-{index}" for index in range(1_000)):
        joined = world.join(group_id=group_id, version=3).result()
        share = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=group_id.encode())
        request = SyncGroupRequest(
            group_id=group_id, member_id=joined.member_id, generation_id=joined.generation_id, assignments=[share]
        )
        assert world.coordinator.sync_group(request).result().error_code == 0
        members[group_id] = joined.member_id
    again = world.restarted()
    listed = response_of(again.coordinator.list_groups([], []))
    assert {one.group_id: one.group_state for one in listed} == dict.fromkeys(members, "Stable")
    for group_id, member_id in members.items():
        group = again.group(group_id)
        assert group.generation_id == 1
        assert {one.member_id: one.assignment for one in group.members.values()} == {member_id: group_id.encode()}
