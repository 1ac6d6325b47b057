"""Requests of a console's pages to partitions' leaders: answers, closed connections, leaders that stay silent."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.member.test_latest_offsets import FENCED, OWN, SECOND, image
from tidelog.broker.cluster.quorum import Address
from tidelog.broker.member.channel import ChannelError
from tidelog.broker.member.connections import leaders
from tidelog.broker.member.connections.leaders import ATTEMPTS, Leaders
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.security import PeerSecurity
from tidelog.protocol.errors import LeaderNotAvailableError
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

HIGHEST = 9
ANSWER = ListOffsetsResponse(topics=[])


class Others:
    """Channels to other brokers, which fail some times or never answer."""

    def __init__(self) -> None:
        self.failures = 0
        self.is_silent = False
        self.asked: list[tuple[int, int]] = []

    def channel(self, *_: object) -> Others:
        return self

    async def ask(self, address: Address, _: ListOffsetsRequest, __: object, highest: int) -> ListOffsetsResponse:
        self.asked.append((address.port, highest))
        if self.is_silent:
            await asyncio.Event().wait()
        if self.failures:
            self.failures -= 1
            raise ChannelError("closed")
        return ANSWER


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Others:
    """The other brokers."""
    made = Others()
    monkeypatch.setattr(leaders, "Channel", made.channel)
    return made


async def ask(node_id: int) -> ListOffsetsResponse:
    """Ask a broker. Raises KafkaError."""
    tasks: list[asyncio.Future[None]] = []
    asker = Leaders(
        RemoteController(image(SECOND), OWN),
        PeerSecurity("PLAINTEXT"),
        lambda work: tasks.append(asyncio.ensure_future(work)),
    )
    asked = asker.ask(node_id, ListOffsetsRequest(replica_id=-1, topics=[]), ListOffsetsResponse, HIGHEST)
    await asyncio.gather(*tasks)
    return asked.result()


@pytest.mark.parametrize("failures", range(ATTEMPTS))
async def test_a_leader_answers_also_after_a_connection_was_closed(others: Others, failures: int) -> None:
    others.failures = failures
    assert await ask(SECOND) is ANSWER
    assert others.asked == [(SECOND, HIGHEST)] * (failures + 1)


async def test_a_leader_that_cannot_be_reached_is_named(others: Others) -> None:
    others.failures = ATTEMPTS
    with pytest.raises(LeaderNotAvailableError, match="broker 2 does not answer: closed"):
        await ask(SECOND)
    with pytest.raises(LeaderNotAvailableError, match="broker 4 is not alive"):
        await ask(FENCED)


async def test_a_leader_that_stays_silent_is_given_up(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "LIMIT_S", 0.01)
    others.is_silent = True
    with pytest.raises(LeaderNotAvailableError, match="in time"):
        await ask(SECOND)
