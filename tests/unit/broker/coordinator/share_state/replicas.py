"""A replicated topic of one partition in memory, and the share coordinators of its brokers, for the model tests.

    append at the leader -> ``copy`` to a follower -> the high watermark is what all in-sync replicas have -> answers
    ``kill``: another in-sync replica leads, in the next epoch; what only the killed one had is gone

Tests decide when each of these happens. Leaders, epochs and in-sync replicas are known to all living brokers at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.support.coordinators import ManualLoop
from tidelog.broker.coordinator.runtime.runtime import CoordinatorRuntime
from tidelog.broker.coordinator.share_state.coordinator import ShareCoordinator, ShareStateLog
from tidelog.broker.coordinator.share_state.records import ShareStateSerde
from tidelog.broker.coordinator.share_state.state import ShareStateShard
from tidelog.broker.loop.deferred import Deferred
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import (
    CoordinatorNotAvailableError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
)
from tidelog.protocol.record.record_batch import RecordBatch, assign_offset_and_epoch

BROKERS = (1, 2, 3)
MIN_ISR = 2


class Waiting(NamedTuple):
    """An answer that waits until all records below ``end`` are committed."""

    end: int
    answer: Deferred[None]


class ReplicaLog(ShareStateLog):
    """One broker's replica of the topic; ``start`` is its log start offset."""

    def __init__(self, topic: ReplicatedTopic, node_id: int) -> None:
        self._topic = "__share_group_state"
        self._replicated = topic
        self._node_id = node_id
        self.batches: list[bytes] = []
        self.start = 0
        self.waiting: list[Waiting] = []

    @property
    def end(self) -> int:
        """The log's end offset."""
        return RecordBatch(bytearray(self.batches[-1])).next_offset if self.batches else self.start

    def partition_count(self) -> int:
        return 1

    def exists(self) -> bool:
        return True

    def is_led(self, partition: int) -> bool:
        return self._replicated.leader == self._node_id

    def leader_epoch(self, partition: int) -> int:
        return self._replicated.epoch

    def when_open(self, partition: int) -> Deferred[None] | None:
        return None

    def append(self, partition: int, batch: bytearray, transaction_version: int = 0) -> int:
        topic = self._replicated
        if not self.is_led(0):
            raise NotCoordinatorError
        if len(topic.isr) < MIN_ISR:
            raise CoordinatorNotAvailableError
        offset = self.end
        assign_offset_and_epoch(batch, 0, offset, topic.epoch)
        self.batches.append(bytes(batch))
        return offset

    def when_committed(self, partition: int) -> Deferred[None] | None:
        if self._replicated.high_watermark >= self.end:
            return None
        answer: Deferred[None] = Deferred()
        self.waiting.append(Waiting(self.end, answer))
        return answer

    def start_offset(self, partition: int) -> int:
        return self.start

    def end_offset(self, partition: int) -> int:
        return self.end

    def read(self, partition: int, offset: int, max_bytes: int) -> bytes:
        return b"".join(one for one in self.batches if RecordBatch(bytearray(one)).next_offset > offset)

    def _partition(self, partition: int) -> Any:
        return self

    def move_log_start(self, offset: int) -> None:
        """Drop the batches below an offset. Raises OffsetOutOfRangeError."""
        if offset > self._replicated.high_watermark:
            raise OffsetOutOfRangeError
        self.cut(offset)

    def cut(self, offset: int) -> None:
        """Drop the batches below an offset."""
        self.start = max(self.start, offset)
        self.batches = [one for one in self.batches if RecordBatch(bytearray(one)).next_offset > self.start]

    def fail_waiting(self) -> None:
        """Fail all waiting answers, because this broker is no longer the leader."""
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            if not one.answer.abandoned:
                one.answer.fail(NotLeaderOrFollowerError())


class Node:
    """A running broker: its log, and its share coordinator."""

    def __init__(self, topic: ReplicatedTopic, log: ReplicaLog) -> None:
        self.log = log
        self.time = ManualTime()
        self.loop = ManualLoop(self.time)
        self.runtime: CoordinatorRuntime[ShareStateShard] = CoordinatorRuntime(
            "__share_group_state",
            log=log,
            serde=ShareStateSerde(),
            new_shard=lambda partition, timer: ShareStateShard(
                timer,
                time=self.time,
                updates_per_snapshot=3,
                delete_before=lambda offset: log.delete_before(partition, offset),
            ),
            time=self.time,
            call_soon=self.loop.call_soon,
            call_later=self.loop.call_later,
        )
        self.share = ShareCoordinator(self.runtime)
        self.take_role()

    def take_role(self) -> None:
        """Unload the shard if another broker leads now; load it if this one does."""
        self.runtime.resign_lost()
        self.runtime.load_all()
        self.loop.run_soon()


class ReplicatedTopic:
    """The partition over all brokers."""

    def __init__(self) -> None:
        self.leader, self.epoch = BROKERS[0], 0
        self.isr = set(BROKERS)
        self.high_watermark = 0
        self.logs = {one: ReplicaLog(self, one) for one in BROKERS}
        self.nodes = {one: Node(self, self.logs[one]) for one in BROKERS}

    def copy(self, follower: int) -> None:
        """Have a living follower fetch from the leader all that it lacks."""
        if self.leader not in self.nodes or follower not in self.nodes or follower == self.leader:
            return
        source, copied = self.logs[self.leader], self.logs[follower]
        copied.batches, copied.start = list(source.batches), source.start
        self.isr.add(follower)
        self._commit()

    def starve(self, follower: int) -> None:
        """Let a follower learn the log start, but give it no records: other partitions took all bytes of the
        response."""
        start = self.logs[self.leader].start if self.leader in self.nodes else 0
        if follower in self.nodes and follower in self.isr and start <= self.logs[follower].end:
            self.logs[follower].cut(start)

    def kill(self, node_id: int) -> None:
        """Kill a broker; another in-sync replica leads, if there is one."""
        if self.nodes.pop(node_id, None) is None:
            return
        self.logs[node_id].waiting.clear()
        if len(self.isr) > 1:
            self.isr.discard(node_id)
        self._elect()

    def start(self, node_id: int) -> None:
        """Start a broker that was killed. It is in sync again with its next copy."""
        if node_id not in self.nodes:
            self.nodes[node_id] = Node(self, self.logs[node_id])
            self._elect()

    def move(self, node_id: int) -> None:
        """Let another in-sync replica lead although the leader is alive."""
        if node_id in self.isr and node_id in self.nodes and node_id != self.leader:
            self._lead(node_id)

    def _elect(self) -> None:
        if self.leader not in self.nodes:
            self._lead(min((one for one in self.isr if one in self.nodes), default=-1))
        self._commit()

    def _lead(self, node_id: int) -> None:
        former, self.leader = self.leader, node_id
        self.epoch += 1
        if former in self.logs:
            self.logs[former].fail_waiting()
        for node in self.nodes.values():
            node.take_role()

    def _commit(self) -> None:
        """Move the high watermark to the smallest log end of the in-sync replicas."""
        if self.leader not in self.nodes:
            return
        log = self.logs[self.leader]
        shared = min(common_end(log, self.logs[one]) for one in self.isr)
        self.high_watermark = max(self.high_watermark, shared)
        done = [one for one in log.waiting if one.end <= self.high_watermark]
        log.waiting = [one for one in log.waiting if one.end > self.high_watermark]
        for one in done:
            if not one.answer.abandoned:
                one.answer.complete(None)


def common_end(leader: ReplicaLog, follower: ReplicaLog) -> int:
    """Return the offset up to which a follower's records equal the leader's."""
    known = set(follower.batches)
    end = leader.start
    for batch in leader.batches:
        if batch not in known:
            return end
        end = RecordBatch(bytearray(batch)).next_offset
    return end
