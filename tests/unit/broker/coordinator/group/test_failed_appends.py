"""Appends of a group's records that fail: what is served afterwards is what the log says."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.support.coordinators import GroupWorld, MemoryTopicLog
from tests.unit.broker.coordinator.group.consumer.test_heartbeat import beat, join
from tests.unit.broker.coordinator.group.test_migration import encode_assignment, encode_subscription
from tests.unit.broker.coordinator.group.test_offset_commits import commit, txn_commit
from tests.unit.broker.coordinator.streams_world import word_count
from tests.unit.broker.stepping import response_of
from tidelog.broker.coordinator.group.classic.group import STABLE, ClassicGroup
from tidelog.broker.coordinator.group.coordinator import GroupCoordinator
from tidelog.broker.coordinator.group.shard import GroupShard
from tidelog.broker.coordinator.group.share.assignor import assign_simple
from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.errors import KafkaError, KafkaStorageError
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidelog.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tidelog.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from tidelog.protocol.record.record_batch import EndTransactionMarker, end_transaction_marker

SEEDS = range(40)
OPERATIONS = 50
SOFT = {"metadata_version", "configured", "shutdown_member", "endpoint_epoch", "_subscribed"}
"""Attributes of groups that are not in the log."""
DAY_MS = 24 * 3600 * 1000


class FailingLog(MemoryTopicLog):
    """A log that refuses the appends that chance selects."""

    def __init__(self, chance: random.Random, failing: float) -> None:
        super().__init__(partitions=1)
        self.chance = chance
        self.failing = failing

    def append(self, partition: int, batch: bytearray, transaction_version: int = 0) -> int:
        if self.chance.random() < self.failing:
            raise KafkaStorageError
        return super().append(partition, batch, transaction_version)


class Clients:
    """Members of all kinds, and admin clients, of the one group ``g``. ``steps`` are their requests."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log = FailingLog(random.Random(seed), self.chance.choice([0.2, 0.5]))
        delay_ms = self.chance.choice([0, 3000])
        policy = self.chance.choice(["bidirectional", "disabled"])
        self.world = GroupWorld(
            self.log, group_initial_rebalance_delay_ms=delay_ms, group_consumer_migration_policy=policy
        )
        self.classic: list[str] = []
        self.steps: list[Callable[[], object]] = [
            *[self.join_classic] * 3, *[self.rebalance] * 4, *[self.restart_static] * 2, *[self.sync] * 3, self.leave,
            self.beat_classic, self.join_consumer, self.beat_consumer, *[self.leave_consumer] * 2, self.join_share,
            self.leave_share, self.join_streams, self.leave_streams, self.commit, self.commit_in_transaction,
            self.end_transaction, self.delete_offset, self.delete_group, self.delete_topic, self.expire,
            self.delete_group, *[self.wait] * 2,
        ]  # fmt: skip

    @property
    def coordinator(self) -> GroupCoordinator:
        return self.world.coordinator

    @property
    def shard(self) -> GroupShard:
        return self.world.runtime.shard_for("g")

    # -- classic ------------------------------------------------------------------------------------------------

    def join_classic(self) -> None:
        instance_id = self.chance.choice([None, None, "i", "j"])
        member_id = self.chance.choice(["", *self.classic])
        version = self.chance.choice([3, 9])
        protocols = {self.chance.choice(["range", "range", "sticky"]): encode_subscription(self.chance.choice("tu"))}
        answer = self.world.join(member_id, group_instance_id=instance_id, version=version, protocols=protocols)
        answer.on_done(lambda done: self.classic.append(done.result().member_id))

    def rebalance(self) -> None:
        """Have all members of the classic group rejoin and sync, as far as each request succeeds."""
        group = self.world.group()
        if not isinstance(group, ClassicGroup):
            return
        for member in list(group.members.values()):
            protocols = dict(member.protocols)
            self.world.join(member.member_id, group_instance_id=member.group_instance_id, protocols=protocols)
        self.world.advance(9_000)
        members = sorted(group.members, key=lambda member_id: member_id != group.leader_id)
        for member_id in members:
            instance_id = group.members[member_id].group_instance_id
            with suppress(KafkaError):
                assignments = {name: encode_assignment(number) for number, name in enumerate(members)}
                self.world.sync(member_id, group.generation_id, assignments, group_instance_id=instance_id)

    def restart_static(self) -> None:
        """Have a static member of the classic group return without its member id."""
        group = self.world.group()
        if isinstance(group, ClassicGroup) and group.static_members:
            instance_id = self.chance.choice(sorted(group.static_members))
            protocols = dict(group.members[group.static_members[instance_id]].protocols)
            self.world.join("", group_instance_id=instance_id, protocols=protocols)

    def sync(self) -> Deferred[Any]:
        member_id = self.chance.choice(["?", *self.classic])
        group = self.world.group()
        generation_id = group.generation_id if isinstance(group, ClassicGroup) else self.chance.randrange(5)
        members = group.members if isinstance(group, ClassicGroup) else self.classic
        assignments = {member: encode_assignment(number) for number, member in enumerate(members)}
        return self.world.sync(member_id, generation_id, assignments)

    def leave(self) -> object:
        members = [MemberIdentity(member_id=self.chance.choice(["?", *self.classic]))]
        return self.coordinator.leave_group(self.world.context(5), LeaveGroupRequest(group_id="g", members=members))

    def beat_classic(self) -> object:
        member_id = self.chance.choice(["?", *self.classic])
        return self.coordinator.heartbeat(HeartbeatRequest(group_id="g", member_id=member_id, generation_id=1))

    # -- the other kinds ----------------------------------------------------------------------------------------

    def epoch_of(self, member_id: str) -> int:
        members = getattr(self.world.group(), "members", {})
        member = members.get(member_id)
        return getattr(getattr(member, "current", None), "epoch", 0)

    def join_consumer(self) -> object:
        instance_id = self.chance.choice([None, None, "i"])
        return join(self.world, self.chance.choice("abc"), *self.chance.choice(["t", "u"]), instance_id=instance_id)

    def beat_consumer(self) -> object:
        member_id = self.chance.choice("abc")
        owned: dict[bytes, Any] | None = self.chance.choice([None, {}])
        return beat(self.world, member_id, self.epoch_of(member_id), owned=owned)

    def leave_consumer(self) -> object:
        members = [name for name in getattr(self.world.group(), "members", {}) if name in "abc"]
        member_id, epoch = self.chance.choice(["a", *members]), self.chance.choice([-1, -1, -2])
        return beat(self.world, member_id, epoch, instance_id="i" if epoch == -2 else None)

    def join_share(self) -> None:
        member_id = self.chance.choice("de")
        request = ShareGroupHeartbeatRequest(
            group_id="g",
            member_id=member_id,
            member_epoch=self.epoch_of(member_id),
            subscribed_topic_names=[self.chance.choice("tu")],
        )
        assigned = None
        while True:
            decision = self.shard.shares.heartbeat(self.world.context(1), request, assigned)
            if decision.unassigned is None:
                break
            assigned = response_of(assign_simple(decision.unassigned))
        self.world.runtime.execute("g", decision.result)

    def leave_share(self) -> None:
        request = ShareGroupHeartbeatRequest(group_id="g", member_id=self.chance.choice("de"), member_epoch=-1)
        self.world.runtime.execute("g", self.shard.shares.heartbeat(self.world.context(1), request).result)

    def join_streams(self) -> None:
        member_id = self.chance.choice("fh")
        epoch = self.epoch_of(member_id)
        request = StreamsGroupHeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=epoch, rebalance_timeout_ms=30_000, process_id=member_id
        )
        if not epoch:
            request.topology = word_count()
            request.active_tasks = request.standby_tasks = request.warmup_tasks = []
        self.world.runtime.execute("g", self.shard.streams.heartbeat(self.world.context(0), request).result)

    def leave_streams(self) -> None:
        request = StreamsGroupHeartbeatRequest(group_id="g", member_id=self.chance.choice("fh"), member_epoch=-1)
        self.world.runtime.execute("g", self.shard.streams.heartbeat(self.world.context(0), request).result)

    # -- offsets and administration -----------------------------------------------------------------------------

    def commit(self) -> object:
        return commit(self.world, self.chance.randrange(100), name=self.chance.choice("tu"))

    def commit_in_transaction(self) -> object:
        return txn_commit(self.world, self.chance.randrange(100), name=self.chance.choice("tu"))

    def end_transaction(self) -> object:
        commits = self.chance.random() < 0.5
        marker = end_transaction_marker(EndTransactionMarker(commits, 0), timestamp=0, producer_id=7, producer_epoch=0)
        return self.world.runtime.append_end_transaction(self.world.runtime.partition_for("g"), marker)

    def delete_offset(self) -> object:
        topic = OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        return self.coordinator.delete_offsets(OffsetDeleteRequest(group_id="g", topics=[topic]))

    def delete_group(self) -> object:
        return response_of(self.coordinator.delete_group("g"))

    def delete_topic(self) -> object:
        return self.coordinator.topic_deleted("t", bytes([1] * 16))

    def expire(self) -> None:
        self.world.advance(8 * DAY_MS)

    def wait(self) -> None:
        self.world.advance(self.chance.choice([100, 3000, 11_000, 70_000]))


def durable(shard: GroupShard) -> dict[str, Any]:
    """Return the parts of a shard that are in the log."""
    offsets = shard.offsets
    groups = {name: (type(group).__name__, durable_group(group)) for name, group in shard.groups.items()}
    return {
        "groups": groups,
        "share groups": sorted(shard.share_groups),
        "committed": offsets._committed,
        "pending": offsets._pending,
        "producers": offsets._producers,
        "topics": offsets.index._groups,
        "virtual topics": offsets.index._views,
    }


def durable_group(group: Any) -> dict[str, Any]:
    if isinstance(group, ClassicGroup):
        return {"members": members_of(group)}
    found = {name: value for name, value in vars(group).items() if name not in SOFT}
    members = {name: {slot: getattr(one, slot) for slot in one.__slots__} for name, one in group.members.items()}
    return {**found, "members": members}


def members_of(group: ClassicGroup) -> object:
    """Return generation and members of a classic group."""
    members = sorted((m.member_id, m.group_instance_id, m.assignment) for m in group.members.values())
    return group.generation_id, members


def check(world: GroupWorld) -> None:
    """Compare the served shard with one that is loaded from the log.

    The members of a classic group that is not stable are not in the log. Neither is an empty generation that could not
    be stored: as in Kafka, the generation before it returns with the next load, and its members time out.
    """
    served, loaded = world.runtime.shard(0), GroupWorld(world.log, world.time).runtime.shard(0)
    ours, theirs = durable(served), durable(loaded)
    group, known = served.groups.get("g"), loaded.groups.get("g")
    if isinstance(group, ClassicGroup) and isinstance(known, ClassicGroup) and group.state is not STABLE:
        assert known.generation_id <= group.generation_id
        del ours["groups"]["g"], theirs["groups"]["g"]
    assert ours == theirs


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_served_after_failed_appends_is_what_the_log_says(seed: int) -> None:
    clients = Clients(seed)
    for _ in range(OPERATIONS):
        step = clients.chance.choice(clients.steps)
        with suppress(KafkaError):
            step()
        clients.world.loop.run_soon()
        check(clients.world)
