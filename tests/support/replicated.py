"""A broker that leads partition ``t-0`` with followers 2 and 3, on an event loop that the test runs step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.leaders import EPOCH, brokers
from tests.support.slices import content_of
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tests.unit.broker.handlers.drive import handler_of
from tidelog.broker.handlers.fetch import handle as handle_fetch
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.roles import MemberRoles
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE, PartitionState
from tidelog.broker.replica.partition import Partition
from tidelog.broker.replica.replication.quotas import ReplicationQuota
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from tidelog.protocol.schema.fields import Message

LAG_MS = 30_000
VERSION = 18
LED = PartitionState((1, 2, 3), (1, 2, 3), 1, 5, 7)
"""Partition with three in-sync replicas, leader 1, leader epoch 5 and partition epoch 7."""


class ReplicatedBroker(DataBroker):
    """Broker 1, with a topic ``t`` of one partition."""

    def __init__(
        self, directory: Path, configs: Mapping[str, str] | None = None, quota: ReplicationQuota | None = None
    ) -> None:
        """``configs`` are the topic's; ``quota`` throttles its followers."""
        super().__init__(directory)
        self.thread_works: list[Callable[[], None]] | None = None
        """Jobs for threads, which the test runs itself; None: each job runs at once."""
        self.controller = RemoteController(EMPTY_IMAGE._replace(brokers=brokers()), 1)
        self.roles = MemberRoles(self.controller, self.broker.timers, LAG_MS, self.run_in_thread, quota)
        self.replica_manager.roles = self.roles
        self.topic = create_topic(self, "t", 1, configs=configs)
        self.partition.take_over(LED)

    def run_in_thread(self, work: Callable[[], None]) -> Deferred[None]:
        """Run the job at once, or keep it in ``thread_works`` for the test."""
        if self.thread_works is None:
            work()
            return deferred_value(None)
        done: Deferred[None] = Deferred()

        def do() -> None:
            work()
            done.complete(None)

        self.thread_works.append(do)
        return done

    @property
    def partition(self) -> Partition:
        """The partition ``t-0``."""
        return self.replica_manager.partition("t", 0)

    def ask(
        self,
        replica: int,
        offset: int,
        *,
        wait_ms: int = 0,
        leader_epoch: int = 5,
        last_epoch: int = -1,
        log_start: int = 0,
        session: tuple[int, int] = (0, -1),
        names_partition: bool = True,
    ) -> FetchResponse | Deferred[FetchResponse]:
        """Send a replica's fetch to the handler; return the response, or the Deferred of a later one."""
        asked = FetchPartition(
            partition=0, fetch_offset=offset, current_leader_epoch=leader_epoch, last_fetched_epoch=last_epoch,
            log_start_offset=log_start, partition_max_bytes=1 << 20,
        )  # fmt: skip
        topics = [FetchTopic(topic_id=self.partition.topic_id, partitions=[asked])] if names_partition else []
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=replica, replica_epoch=EPOCH + replica), max_wait_ms=wait_ms,
            min_bytes=1, max_bytes=1 << 20, session_id=session[0], session_epoch=session[1], topics=topics,
        )  # fmt: skip
        answer = handle_fetch(self.broker, self.context(VERSION), request)
        assert isinstance(answer, FetchResponse | Deferred)
        return answer

    def fetch(self, replica: int, offset: int, **options: Any) -> tuple[int, int, int, bytes]:
        """Fetch as a replica; return error, high watermark, log start and records of the response."""
        answer = self.ask(replica, offset, **options)
        assert isinstance(answer, FetchResponse)
        return contents_of(answer)

    def begin(self, request: Message, version: int) -> Deferred[Any]:
        """Begin a request whose handler works in steps; each step runs as soon as the wait before it is over."""
        answer: Deferred[Any] = Deferred()
        steps = handler_of(request).handle(self.broker, self.context(version), request)

        def go_on(_: object = None) -> None:
            for waiting in steps:
                if waiting is not None and not waiting.done:
                    waiting.on_done(go_on)
                    return

        def run() -> Iterator[Any]:
            answer.complete((yield from handled))

        handled, steps = steps, run()
        go_on()
        for _ in range(4):
            self.loop.run_soon()
        return answer


def contents_of(answer: FetchResponse) -> tuple[int, int, int, bytes]:
    """Return error, high watermark, log start and records of the only partition of a response."""
    (topic,) = answer.responses
    (data,) = topic.partitions
    return data.error_code, data.high_watermark, data.log_start_offset, content_of(data.records)
