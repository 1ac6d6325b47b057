"""High watermarks of partitions that other brokers lead: requests to each leader, and their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tidelog.broker.cluster.quorum import Address
from tidelog.broker.member.connections import latest_offsets
from tidelog.broker.member.connections.channel import ChannelError
from tidelog.broker.member.connections.latest_offsets import ATTEMPTS, MAX_PARTITIONS, PeerOffsets
from tidelog.broker.member.connections.security import PeerSecurity
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.metadata.metadata_image import (
    NO_LEADER,
    BrokerRegistration,
    Endpoint,
    MetadataImage,
    PartitionState,
    TopicState,
)
from tidelog.protocol.errors import NotLeaderOrFollowerError
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

OWN, SECOND, THIRD, FENCED = 1, 2, 3, 4
TOPIC_ID = b"t" * 16


def image(*leaders: int) -> MetadataImage:
    """Build an image: four brokers, one of them fenced, and a topic whose partitions have these leaders."""
    brokers = {
        number: BrokerRegistration(
            number,
            1,
            b"i" * 16,
            (Endpoint("PLAINTEXT", "host", number, 0),),
            {},
            None,
            is_fenced=number == FENCED,
            in_controlled_shutdown=False,
            directories=(),
        )
        for number in (OWN, SECOND, THIRD, FENCED)
    }
    partitions = tuple(PartitionState((leader,), (leader,), leader=leader) for leader in leaders)
    return MetadataImage(
        brokers=brokers, topics={TOPIC_ID: TopicState("t", TOPIC_ID, partitions)}, topic_ids={"t": TOPIC_ID}
    )


class Leaders:
    """Channels to the leaders: partition N ends at 100 * leader + N, except those that another broker leads now."""

    def __init__(self) -> None:
        self.failures: dict[int, int] = {}
        self.moved: set[int] = set()
        self.left_out: set[int] = set()
        self.silent: set[int] = set()
        self.asked: list[tuple[int, int]] = []
        self.under_way: set[int] = set()

    def channel(self, *_: object) -> Leaders:
        return self

    async def ask(self, address: Address, request: ListOffsetsRequest, _: object) -> ListOffsetsResponse:
        assert address.port not in self.under_way, "one request at a time"
        self.under_way.add(address.port)
        await asyncio.sleep(0)
        self.under_way.discard(address.port)
        self.asked.append((address.port, sum(len(topic.partitions) for topic in request.topics)))
        if address.port in self.silent:
            await asyncio.Event().wait()
        if self.failures.get(address.port, 0) > 0:
            self.failures[address.port] -= 1
            raise ChannelError("closed")
        assert request.replica_id == -1
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        self.answer(address.port, one.partition_index)
                        for one in topic.partitions
                        if one.partition_index not in self.left_out
                    ],
                )
                for topic in request.topics
            ]
        )

    def answer(self, leader: int, index: int) -> ListOffsetsPartitionResponse:
        if index in self.moved:
            return ListOffsetsPartitionResponse(partition_index=index, error_code=NotLeaderOrFollowerError.code)
        return ListOffsetsPartitionResponse(partition_index=index, offset=100 * leader + index)


Ask = Callable[..., Coroutine[Any, Any, dict[int, Any]]]


@pytest.fixture
def leaders(monkeypatch: pytest.MonkeyPatch) -> Leaders:
    """The leaders of all partitions."""
    made = Leaders()
    monkeypatch.setattr(latest_offsets, "Channel", made.channel)
    monkeypatch.setattr(latest_offsets, "RETRY_S", 0.0)
    return made


async def find(of_leaders: tuple[int, ...], *indices: int) -> dict[int, Any]:
    """Find the offsets of partitions; a partition that failed has the name of its error instead."""
    tasks = []
    offsets = PeerOffsets(
        RemoteController(image(*of_leaders), OWN),
        PeerSecurity("PLAINTEXT"),
        lambda work: tasks.append(asyncio.ensure_future(work)),
    )
    steps = offsets.find(("t", index) for index in indices)
    while True:
        try:
            waiting = next(steps)
        except StopIteration as end:
            found = end.value
            break
        if waiting is not None:
            is_done = asyncio.Event()
            waiting.on_done(lambda _, event=is_done: event.set())  # type: ignore[misc]
            async with asyncio.timeout(60):
                await is_done.wait()
    await asyncio.gather(*tasks)
    return {index: one if isinstance(one, int) else type(one).__name__ for (_, index), one in found.items()}


async def test_each_leader_is_asked_for_its_partitions(leaders: Leaders) -> None:
    assert await find((SECOND, THIRD, SECOND), 0, 1, 2) == {0: 200, 1: 301, 2: 202}
    assert sorted(leaders.asked) == [(SECOND, 2), (THIRD, 1)]


async def test_partitions_that_cannot_be_asked_for_are_reported(leaders: Leaders) -> None:
    leaders.moved, leaders.left_out = {1}, {2}
    assert await find((SECOND, SECOND, SECOND, NO_LEADER, FENCED), 0, 1, 2, 3, 4, 9) == {
        0: 200,
        1: "NotLeaderOrFollowerError",
        2: "UnknownTopicOrPartitionError",
        3: "LeaderNotAvailableError",
        4: "LeaderNotAvailableError",
        9: "LeaderNotAvailableError",
    }


@pytest.mark.parametrize("failures", range(ATTEMPTS + 1))
async def test_a_leader_that_does_not_answer_is_asked_again(leaders: Leaders, failures: int) -> None:
    leaders.failures[SECOND] = failures
    expected = 200 if failures < ATTEMPTS else "LeaderNotAvailableError"
    assert await find((SECOND, THIRD), 0, 1) == {0: expected, 1: 301}


async def test_many_partitions_go_in_several_requests_one_after_the_other(leaders: Leaders) -> None:
    count = 2 * MAX_PARTITIONS + 1
    assert await find((SECOND,) * count, *range(count)) == {index: 200 + index for index in range(count)}
    assert [number for _, number in leaders.asked] == [MAX_PARTITIONS, MAX_PARTITIONS, 1]


async def test_requests_to_a_leader_that_never_answers_end_together(
    leaders: Leaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for one another: one after the other took longer than clients wait for all partitions."""
    monkeypatch.setattr(latest_offsets, "LIMIT_S", 0.01)
    leaders.silent = {SECOND}
    count = 3 * MAX_PARTITIONS
    assert set((await find((SECOND,) * count, *range(count))).values()) == {"LeaderNotAvailableError"}
