"""Members of one streams group as a load: a connection each, without a client library.

Each member takes and gives back tasks at once when the coordinator says so. ``wait_until_settled`` sends rounds of
heartbeats until each task has one owner and all members are in one epoch; ``heartbeats`` measures a settled group.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.group_client import TIMEOUT_S, Wire, frame_of
from tidelog.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    Topology,
)

REBALANCE_TIMEOUT_MS = 60_000
IN_FLIGHT = 10


class TaskMember:
    """One member, as Kafka Streams has it in a process with one thread; its topology reads one topic."""

    def __init__(self, wire: Wire, group_id: str, name: str, topic: str) -> None:
        self.wire, self.group_id, self.name, self.topic = wire, group_id, name, topic
        self.epoch = 0
        self.tasks: list[int] = []

    def join(self) -> None:
        """Send the heartbeat that joins the group."""
        part = Subtopology(subtopology_id="0", source_topics=[self.topic])
        self._send(
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            process_id=self.name,
            topology=Topology(epoch=0, subtopologies=[part]),
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
        )

    def tell(self) -> None:
        """Send a heartbeat with the member's tasks."""
        held = [TaskIds(subtopology_id="0", partitions=self.tasks)] if self.tasks else []
        self._send(active_tasks=held, standby_tasks=[], warmup_tasks=[])

    def take(self) -> None:
        """Receive an answer and adopt its epoch and tasks."""
        answer = self._answer()
        self.epoch = answer.member_epoch
        if answer.active_tasks is not None:
            self.tasks = [index for each in answer.active_tasks for index in each.partitions]

    def idle_frame(self) -> bytes:
        """Encode a heartbeat that reports no change."""
        return frame_of(self._request(), 0, is_flexible=True)

    def _request(self, **fields: Any) -> StreamsGroupHeartbeatRequest:
        return StreamsGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.name, member_epoch=self.epoch, **fields
        )

    def _send(self, **fields: Any) -> None:
        self.wire.send(frame_of(self._request(**fields), 0, is_flexible=True))

    def _answer(self) -> Any:
        answer = StreamsGroupHeartbeatResponse.decode(self.wire.answer()[1:], 0)
        assert answer.error_code == 0, answer
        return answer


def wait_until_settled(members: list[TaskMember], tasks: int) -> tuple[float, int]:
    """Join all at once; return the seconds and heartbeats until `is_settled`."""
    began, rounds = time.perf_counter(), 1
    for member in members:
        member.join()
    for member in members:
        member.take()
    while not is_settled(members, tasks):
        assert time.perf_counter() - began < TIMEOUT_S, [(member.epoch, len(member.tasks)) for member in members]
        rounds += 1
        for member in members:
            member.tell()
        for member in members:
            member.take()
    return time.perf_counter() - began, rounds * len(members)


def is_settled(members: list[TaskMember], tasks: int) -> bool:
    """Return whether all are in one epoch, each task has one owner, and no member has two tasks more than another."""
    held = [task for member in members for task in member.tasks]
    sizes = [len(member.tasks) for member in members]
    is_even = max(sizes) - min(sizes) <= 1
    return is_even and len({member.epoch for member in members}) == 1 and sorted(held) == list(range(tasks))


def heartbeats(members: list[TaskMember], count: int) -> float:
    """Send ``count`` unchanged heartbeats, IN_FLIGHT at a time on each connection; return the seconds. ``count`` is a
    multiple of IN_FLIGHT times the members.
    """
    frames = [member.idle_frame() for member in members]
    began = time.perf_counter()
    for member, frame in zip(members, frames, strict=True):
        member.wire.send(frame * IN_FLIGHT)
    for _ in range(count // (len(members) * IN_FLIGHT) - 1):
        for member, frame in zip(members, frames, strict=True):
            for _ in range(IN_FLIGHT):
                member.wire.answer()
            member.wire.send(frame * IN_FLIGHT)
    for member in members:
        for _ in range(IN_FLIGHT):
            member.take()
    return time.perf_counter() - began
