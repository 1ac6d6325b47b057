"""Consumer groups of the soak: members come and go; each group reads every record of its topic at least once."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from confluent_kafka import Consumer, KafkaException

from tests.support.admin import Admin
from tests.support.kafka_python import kafka, take_up_join
from tests.support.readers import Position
from tests.support.soak.party import Party, World
from tests.support.soak.patience import Patience
from tests.support.soak.reading import committed_offsets
from tests.support.soak.writers import FAST_RECONNECT

POLL_S = 0.05
CLASSIC = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500, "partition.assignment.strategy": "range"}
CONSUMER = {"group.protocol": "consumer"}

STUCK = "RebalanceInProgressError"
"""The error of each commit of a kafka-python member whose poll ended inside a rebalance.

Such a member may never go on, as it sends no more requests: the error comes from the client itself.
"""
MAX_REFUSALS = 40
"""A member with this many commits in a row that failed with ``STUCK`` is closed."""


class LibrdkafkaMember:
    """A member by librdkafka, in a group of the classic or of the consumer protocol. ``refusals``: see MAX_REFUSALS."""

    refusals = 0

    def __init__(self, world: World, group: str, topic: str, settings: dict[str, Any]) -> None:
        fixed: dict[str, Any] = {
            "bootstrap.servers": world.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 2_000,
        }
        self.consumer: Any = Consumer({**FAST_RECONNECT, **fixed, **settings})
        self.consumer.subscribe([topic])

    def poll(self) -> list[Position]:
        """Poll for records; return the positions of those that came."""
        messages = self.consumer.consume(200, timeout=POLL_S)
        return [(each.partition(), each.offset()) for each in messages if each.error() is None]

    def commit(self) -> str:
        """Commit what was read: the error's name, empty when it was acknowledged."""
        try:
            self.consumer.commit(asynchronous=False)
        except KafkaException as error:  # nothing to commit, a rebalance, or the broker is not running
            return str(error.args[0].name())
        return ""

    def close(self) -> None:
        """Leave the group."""
        self.consumer.close()


class KafkaPythonMember:
    """A member by kafka-python, in a classic group with members by librdkafka. ``refusals``: see MAX_REFUSALS."""

    refusals = 0

    def __init__(self, world: World, group: str, topic: str) -> None:
        self.consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=world.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            metadata_max_age_ms=2_000,
            partition_assignment_strategy=[kafka.coordinator.assignors.range.RangePartitionAssignor],
        )

    def poll(self) -> list[Position]:
        """Poll for records; return the positions of those that came."""
        found = self.consumer.poll(timeout_ms=int(POLL_S * 1000), max_records=200)
        take_up_join(self.consumer)
        return [(each.partition, each.offset) for records in found.values() for each in records]

    def commit(self) -> str:
        """Commit what was read: the error's name, empty when it was acknowledged."""
        try:
            self.consumer.commit(timeout_ms=5_000)
        except kafka.errors.KafkaError as error:
            return type(error).__name__
        return ""

    def close(self) -> None:
        """Leave the group."""
        self.consumer.close(autocommit=False, timeout_ms=1_000)


class Group(Party):
    """One group: up to four members, all driven by this thread. At the end it has read and committed everything."""

    max_members = 4
    pause_s = 0.02

    def __init__(self, world: World, topic: str, group: str, *, protocol: str) -> None:
        super().__init__(world, f"group {group}")
        self.topic = topic
        self.group = group
        self.protocol = protocol
        self.members: list[LibrdkafkaMember | KafkaPythonMember] = []
        self.seen: dict[int, set[int]] = defaultdict(set)

    def _join(self) -> None:
        self.counts["joined"] += 1
        if self.protocol == "classic" and self.chance.random() < 0.3:
            try:
                self.members.append(KafkaPythonMember(self.world, self.group, self.topic))
            except kafka.errors.KafkaError as error:  # the broker is not running
                self.counts[f"got {type(error).__name__}"] += 1
        else:
            settings = CLASSIC if self.protocol == "classic" else CONSUMER
            self.members.append(LibrdkafkaMember(self.world, self.group, self.topic, dict(settings)))

    def turn(self) -> None:
        if not self.members or (len(self.members) < self.max_members and self.chance.random() < 0.01):
            self._join()
        for member in list(self.members):
            self._read(member)
        if len(self.members) > 1 and self.chance.random() < 0.01:
            self.members.pop(self.chance.randrange(len(self.members))).close()
            self.counts["left"] += 1

    def _read(self, member: LibrdkafkaMember | KafkaPythonMember, commit_chance: float = 0.5) -> None:
        positions = member.poll()
        for partition, offset in positions:
            self.counts["again"] += offset in self.seen[partition]
            self.seen[partition].add(offset)
        if (positions or commit_chance == 1.0) and self.chance.random() < commit_chance:
            self._commit(member)

    def _commit(self, member: LibrdkafkaMember | KafkaPythonMember) -> None:
        error = member.commit()
        self.counts[f"commits refused with {error}" if error else "commits"] += 1
        member.refusals = member.refusals + 1 if error == STUCK else 0
        if member.refusals >= MAX_REFUSALS:
            self.members.remove(member)
            member.close()
            self.counts["replaced"] += 1

    def _ends(self) -> dict[int, int]:
        admin = Admin(self.world.bootstrap)
        return {number: admin.offset(self.topic, number, "latest") for number in range(admin.topics()[self.topic])}

    def _committed(self) -> dict[int, int]:
        return committed_offsets(self.world.bootstrap, self.group, self.topic)

    def check(self) -> None:
        ends = self._ends()
        patience = Patience()
        while not self._is_done(ends) and not patience.is_over(self._count_read()):
            if not self.members:
                self._join()
            for member in list(self.members):
                self._read(member, commit_chance=1.0)
        for member in self.members:
            member.close()
        self.counts["read"] = self._count_read()
        for partition, end in ends.items():
            if left_out := sorted(set(range(end)) - self.seen[partition]):
                self.faults.append(f"{self.topic}-{partition}: offsets {left_out[:10]} were not read by {self.group}")
        if (found := self._committed()) != ends:
            self.faults.append(f"{self.topic}: {self.group} has committed {found}, the ends are {ends}")

    def _count_read(self) -> int:
        return sum(len(seen) for seen in self.seen.values())

    def _is_done(self, ends: dict[int, int]) -> bool:
        return all(len(self.seen[partition]) >= end for partition, end in ends.items()) and self._committed() == ends
