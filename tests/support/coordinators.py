"""Coordinators without a broker: an internal topic in memory, a manual clock, a loop that the test runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from tidelog.broker.coordinator.config import GroupConfig, TransactionConfig
from tidelog.broker.coordinator.group.coordinator import GroupCoordinator
from tidelog.broker.coordinator.group.records import GroupRecordSerde
from tidelog.broker.coordinator.group.shard import GroupShard
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord
from tidelog.broker.coordinator.runtime.runtime import CoordinatorRuntime
from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer
from tidelog.broker.coordinator.transaction.coordinator import TransactionCoordinator
from tidelog.broker.coordinator.transaction.records import TransactionRecordSerde
from tidelog.broker.coordinator.transaction.shard import ProducerIdAndEpoch, TransactionShard
from tidelog.broker.coordinator.transaction.state import PartitionKey, Transaction
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.metadata.image import MetadataCache, TopicImage, single_replica_states
from tidelog.broker.requests.context import RequestContext
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.end_txn import EndTxnRequest
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import RecordBatch, assign_offset_and_epoch

T = TypeVar("T")


class MemoryTopicLog:
    """A ``TopicLog`` of byte strings; ``failure`` makes the next appends fail."""

    def __init__(self, partitions: int = 50) -> None:
        self.partitions = partitions
        self.batches: dict[int, list[bytes]] = {}
        self.ends: dict[int, int] = {}
        self.failure: KafkaError | None = None
        self.appends = 0
        self.syncs: dict[int, Deferred[None]] = {}
        """Partitions whose records are not committed yet, with the event of their commit."""
        self.openings: dict[int, Deferred[None]] = {}
        """Partitions whose logs are not open, with the event of their opening; the test removes entries."""

    def partition_count(self) -> int:
        return self.partitions

    def leader_epoch(self, partition: int) -> int:
        return 0

    def is_led(self, partition: int) -> bool:
        return True

    def exists(self) -> bool:
        return bool(self.batches)

    def when_open(self, partition: int) -> Deferred[None] | None:
        return self.openings.get(partition)

    def append(self, partition: int, batch: bytearray, transaction_version: int = 0) -> int:
        if self.failure is not None:
            raise self.failure
        self.appends += 1
        base_offset = self.ends.get(partition, 0)
        assign_offset_and_epoch(batch, 0, base_offset, 0)
        self.ends[partition] = base_offset + RecordBatch(batch).last_offset_delta + 1
        self.batches.setdefault(partition, []).append(bytes(batch))
        return base_offset

    def when_committed(self, partition: int) -> Deferred[None] | None:
        return self.syncs.get(partition)

    def start_offset(self, partition: int) -> int:
        return 0

    def end_offset(self, partition: int) -> int:
        return self.ends.get(partition, 0)

    def read(self, partition: int, offset: int, max_bytes: int) -> bytes:
        wanted = [batch for batch in self.batches.get(partition, []) if RecordBatch(batch).next_offset > offset]
        data: list[bytes] = []
        size = 0
        for batch in wanted:
            if data and size + len(batch) > max_bytes:
                break
            data.append(batch)
            size += len(batch)
        return b"".join(data)

    def records(self) -> list[CoordinatorRecord]:
        """Decode everything appended so far as group records, without control batches."""
        decoded = []
        for batches in self.batches.values():
            for data in batches:
                for batch in iter_batches(data):
                    if not batch.is_control:
                        decoded += [GroupRecordSerde.decode(record.key, record.value) for record in batch.records()]
        return [record for record in decoded if record is not None]


class ManualLoop:
    """An event loop with ``call_soon`` and ``call_later`` over a manual clock, which the test runs."""

    def __init__(self, time: ManualTime) -> None:
        self.time = time
        self.soon: list[Callable[[], None]] = []
        self.later: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> None:
        self._sequence += 1
        self.later.append((self.time.monotonic_ms() + delay_ms, self._sequence, callback))

    def run_soon(self) -> None:
        """Run the callbacks of the next turns until none is left."""
        while self.soon:
            self.soon.pop(0)()

    def advance(self, milliseconds: float) -> None:
        """Move the clock forward, and run the callbacks that are due at their times."""
        end = self.time.monotonic_ms() + milliseconds
        self.run_soon()
        while due := [entry for entry in self.later if entry[0] <= end]:
            entry = min(due, key=lambda item: item[:2])
            self.later.remove(entry)
            self.time.advance(max(0.0, entry[0] - self.time.monotonic_ms()))
            entry[2]()
            self.run_soon()
        self.time.advance(max(0.0, end - self.time.monotonic_ms()))


class GroupWorld:
    """A group coordinator over a topic in memory, with methods for the requests of clients."""

    def __init__(self, log: MemoryTopicLog | None = None, time: ManualTime | None = None, **config: Any) -> None:
        self.time = time or ManualTime()
        self.loop = ManualLoop(self.time)
        self.log = log or MemoryTopicLog()
        self.config = replace(GroupConfig(), **config)
        self.settings: dict[str, dict[str, str]] = {}
        self.metadata = MetadataCache()
        for index, name in enumerate(("t", "u", "v")):
            self.metadata.put(TopicImage(name, bytes([index + 1] * 16), single_replica_states(1, 4), {}, False))
        self._ids = 0
        self.runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            "__consumer_offsets",
            log=self.log,
            serde=GroupRecordSerde(),
            new_shard=self._new_shard,
            close=GroupShard.close,
            time=self.time,
            call_soon=self.loop.call_soon,
            call_later=self.loop.call_later,
        )
        self.coordinator = GroupCoordinator(self.runtime)

    def _new_shard(self, partition: int, timer: CoordinatorTimer) -> GroupShard:
        return GroupShard(
            timer,
            metadata=self.metadata,
            time=self.time,
            config=self.config,
            new_uuid=self._next_id,
            settings=lambda group_id: self.settings.get(group_id, {}),
            interval_ms=lambda protocol, group_id: int(
                self.settings.get(group_id, {}).get(f"{protocol}.assignment.interval.ms", "0")
            ),
        )

    def _next_id(self) -> str:
        self._ids += 1
        return str(self._ids)

    def restarted(self) -> GroupWorld:
        """Start another coordinator over the same log, as after a restart or kill -9."""
        world = GroupWorld(self.log, self.time)
        world.config = self.config
        world._ids = self._ids + 1000
        world.runtime.load_all()
        world.loop.run_soon()
        return world

    def context(self, version: int, client_id: str = "c") -> RequestContext:
        context = RequestContext()
        context.client_id = client_id
        context.api_version = version
        return context

    def advance(self, milliseconds: float) -> None:
        self.loop.advance(milliseconds)

    def group(self, group_id: str = "g") -> Any:
        return self.runtime.shard_for(group_id).groups.get(group_id)

    # -- clients ------------------------------------------------------------------------------------------------

    def join(self, member_id: str = "", *, version: int = 9, **fields: Any) -> Deferred[JoinGroupResponse]:
        values: dict[str, Any] = {
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": {"range": b"meta"},
            **fields,
        }
        values["protocols"] = [
            JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in values["protocols"].items()
        ]
        request = JoinGroupRequest(member_id=member_id, **values)
        return self.coordinator.join_group(self.context(version), request)

    def join_twice(self, **fields: Any) -> tuple[str, Deferred[JoinGroupResponse]]:
        """Join as a dynamic member does since KIP-394: ask for an id, then join with it."""
        member_id = self.join(**fields).result().member_id
        return member_id, self.join(member_id, **fields)

    def sync(
        self, member_id: str, generation_id: int, assignments: dict[str, bytes] | None = None, **fields: Any
    ) -> Deferred[SyncGroupResponse]:
        request = SyncGroupRequest(
            group_id="g",
            member_id=member_id,
            generation_id=generation_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in (assignments or {}).items()
            ],
            **fields,
        )
        return self.coordinator.sync_group(request)

    def stable(self, members: int = 2, **fields: Any) -> list[str]:
        """Make a stable group of dynamic members, leader first, each with its own name as assignment."""
        joined = [self.join_twice(**fields) for _ in range(members)]
        ids = [member_id for member_id, _ in joined]
        deferreds = dict(joined)
        for member_id, deferred in joined[:-1]:
            if deferred.done:  # an earlier generation began without the later members
                deferreds[member_id] = self.join(member_id, **fields)
        self.loop.run_soon()
        response = deferreds[ids[-1]].result()
        leader, generation_id = response.leader, response.generation_id
        for member_id in ids:
            if member_id != leader:
                self.sync(member_id, generation_id)
        self.sync(leader, generation_id, {member_id: member_id.encode() for member_id in ids})
        return sorted(ids, key=lambda member_id: member_id != leader)


class RecordingMarkers:
    """A ``MarkerWriter`` that records its calls; partitions in ``failures`` fail with their error."""

    def __init__(self) -> None:
        self.written: list[tuple[PartitionKey, ProducerIdAndEpoch, bool]] = []
        self.versions: list[int] = []
        self.failures: dict[PartitionKey, KafkaError] = {}
        self.syncs: dict[PartitionKey, Deferred[None]] = {}

    def when_open(self, partition: PartitionKey) -> None:
        """Return None: all logs are open."""

    def write(
        self,
        partition: PartitionKey,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Deferred[None]:
        if partition in self.failures:
            raise self.failures[partition]
        self.written.append((partition, producer, commit))
        self.versions.append(transaction_version)
        return self.syncs.get(partition, deferred_value(None))


class TransactionWorld:
    """A transaction coordinator over a topic in memory, with methods for the requests of producers."""

    def __init__(self, log: MemoryTopicLog | None = None, time: ManualTime | None = None, **config: Any) -> None:
        self.time = time or ManualTime()
        self.loop = ManualLoop(self.time)
        self.log = log or MemoryTopicLog()
        self.config = replace(TransactionConfig(), **config)
        self.markers = RecordingMarkers()
        self.next_producer_id = 1000
        self.runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            "__transaction_state",
            log=self.log,
            serde=TransactionRecordSerde(),
            new_shard=self._new_shard,
            time=self.time,
            call_soon=self.loop.call_soon,
            call_later=self.loop.call_later,
        )
        self.coordinator = TransactionCoordinator(self.runtime, markers=self.markers, config=self.config)

    def _new_shard(self, partition: int, timer: CoordinatorTimer) -> TransactionShard:
        return TransactionShard(
            timer,
            time=self.time,
            config=self.config,
            next_producer_id=self._next_id,
            finish=lambda transaction: self.coordinator.finish(transaction),
        )

    def _next_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    def restarted(self) -> TransactionWorld:
        """Start another coordinator over the same log, as after a restart or kill -9."""
        world = TransactionWorld(self.log, self.time)
        world.config = self.config
        world.next_producer_id = self.next_producer_id + 1000
        world.runtime.load_all()
        world.loop.run_soon()
        return world

    def advance(self, milliseconds: float) -> None:
        self.loop.advance(milliseconds)

    def transaction(self, transactional_id: str = "x") -> Transaction:
        found = self.coordinator.find(transactional_id)
        assert found is not None
        return found

    def init(self, producer: ProducerIdAndEpoch = (-1, -1), **fields: Any) -> ProducerIdAndEpoch:
        """Send InitProducerId; return the id and epoch of the answer."""
        values = {"transactional_id": "x", "transaction_timeout_ms": 60_000, **fields}
        request = InitProducerIdRequest(producer_id=producer[0], producer_epoch=producer[1], **values)
        response = self.coordinator.init_producer_id(request).result()
        return response.producer_id, response.producer_epoch

    def add(self, producer: ProducerIdAndEpoch, *partitions: PartitionKey, version: int = 1) -> None:
        self.coordinator.add_partitions("x", producer, partitions or (("t", 0),), version)

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool = True, version: int = 1) -> ProducerIdAndEpoch:
        request = EndTxnRequest(
            transactional_id="x", producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        return self.coordinator.end(request, version).result()
