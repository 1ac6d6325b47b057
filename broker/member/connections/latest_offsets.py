"""High watermarks of partitions that other brokers lead, fetched from those leaders by ListOffsets.

Each broker gets one connection, with one request at a time; a broker that does not answer delays no other broker.
Errors of partitions are returned as the leader sent them. Loop thread only.

Source: NetworkPartitionMetadataClient of Kafka 4.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps, wait_for_all
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.broker.member.connections.security import PeerSecurity
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.nodes import peer_address
from tidelog.broker.metadata.metadata_image import NO_LEADER
from tidelog.broker.replica.offsets import LATEST
from tidelog.protocol.errors import (
    NONE,
    KafkaError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
    error_for_code,
)
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

MAX_PARTITIONS = 1000
"""Largest number of partitions in one request: a request or an answer is encoded or decoded in one turn of the loop."""
REQUEST_TIMEOUT_S = 5.0
LIMIT_S = 10.0
"""Limit of one request in s: all its attempts, and its wait for earlier ones. Clients wait 30 s in all."""
ATTEMPTS = 3
RETRY_S = 0.1
"""Pause in s before the second attempt; twice as long before the third. The first attempt may meet a connection that
the leader's restart has closed.
"""
CONSUMER = -1
"""Replica id in the requests of consumers."""
FoundOffsets = dict[tuple[str, int], int | KafkaError]


class PeerOffsets:
    """Source of high watermarks that other brokers have. ``start`` runs a task until this broker stops."""

    def __init__(
        self,
        controller: RemoteController,
        security: PeerSecurity,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._controller = controller
        self._security = security
        self._start = start
        self._channels: dict[int, tuple[Channel, asyncio.Lock]] = {}

    def find(self, asked: Iterable[tuple[str, int]]) -> Steps[FoundOffsets]:
        """Return the high watermark of each partition, or the KafkaError because of which it is not known."""
        by_leader: dict[int, list[tuple[str, int]]] = {}
        for number, one in enumerate(asked):
            by_leader.setdefault(self._leader(*one), []).append(one)
            if not number % ITEMS_PER_STEP:
                yield None
        found: FoundOffsets = dict.fromkeys(by_leader.pop(NO_LEADER, ()), LeaderNotAvailableError())
        waits = [
            self._begin(leader, led[first : first + MAX_PARTITIONS])
            for leader, led in by_leader.items()
            for first in range(0, len(led), MAX_PARTITIONS)
        ]
        for answer in (yield from wait_for_all(waits)):
            found.update(answer)
        return found

    def _leader(self, name: str, index: int) -> int:
        topic = self._controller.image.topic_by_name(name)
        return topic.partitions[index].leader if topic is not None and index < len(topic.partitions) else NO_LEADER

    def _begin(self, leader: int, asked: Sequence[tuple[str, int]]) -> Deferred[FoundOffsets]:
        done: Deferred[FoundOffsets] = Deferred()

        async def ask() -> None:
            found = await self._ask(leader, asked)
            if not done.abandoned:
                done.complete(found)

        self._start(ask())
        return done

    async def _ask(self, leader: int, asked: Sequence[tuple[str, int]]) -> FoundOffsets:
        """Ask one leader, for LIMIT_S at most."""
        try:
            async with asyncio.timeout(LIMIT_S):
                return await self._attempt(leader, asked)
        except TimeoutError:
            return dict.fromkeys(asked, LeaderNotAvailableError(f"broker {leader} does not answer in time"))

    async def _attempt(self, leader: int, asked: Sequence[tuple[str, int]]) -> FoundOffsets:
        """Ask one leader, and again if it cannot be reached."""
        channel, lock = self._channels.setdefault(leader, (Channel(REQUEST_TIMEOUT_S, self._security), asyncio.Lock()))
        reason = ""
        for attempt in range(ATTEMPTS):
            await asyncio.sleep(RETRY_S * attempt)
            try:
                address = peer_address(self._controller.image, leader, self._security.listener_name)
                async with lock:
                    return found_in(asked, await channel.ask(address, request_of(asked), ListOffsetsResponse))
            except ChannelError as error:
                reason = str(error)
        return dict.fromkeys(asked, LeaderNotAvailableError(reason))


def request_of(asked: Iterable[tuple[str, int]]) -> ListOffsetsRequest:
    """Return the request for the high watermarks of these partitions."""
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for name, index in asked:
        topics.setdefault(name, []).append(ListOffsetsPartition(partition_index=index, timestamp=LATEST))
    listed = [ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()]
    return ListOffsetsRequest(replica_id=CONSUMER, topics=listed)


def found_in(asked: Iterable[tuple[str, int]], answer: ListOffsetsResponse) -> FoundOffsets:
    """Return the offset or error that an answer has for each of these partitions."""
    answered: FoundOffsets = {
        (topic.name, one.partition_index): one.offset if one.error_code == NONE else error_for_code(one.error_code)()
        for topic in answer.topics
        for one in topic.partitions
    }
    return {one: answered.get(one, UnknownTopicOrPartitionError()) for one in asked}
