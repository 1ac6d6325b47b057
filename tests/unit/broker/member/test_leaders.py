"""Requests of a console's pages to partitions' leaders: answers, closed connections, leaders that stay silent."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.member.test_latest_offsets import FENCED, OWN, SECOND, image
from tidelog.broker.cluster.quorum import Address
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.member.connections import leaders
from tidelog.broker.member.connections.channel import ChannelError
from tidelog.broker.member.connections.leaders import ATTEMPTS, Leaders
from tidelog.broker.member.connections.security import PeerSecurity
from tidelog.broker.member.controller import RemoteController
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


class Asker:
    """Leaders as the member has them, and the tasks that it runs for them."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Future[None]] = []
        self._leaders = Leaders(
            RemoteController(image(SECOND), OWN),
            PeerSecurity("PLAINTEXT"),
            lambda work: self.tasks.append(asyncio.ensure_future(work)),
        )

    def begin(self, node_id: int) -> Deferred[ListOffsetsResponse]:
        """Ask a broker."""
        return self._leaders.ask(node_id, ListOffsetsRequest(replica_id=-1, topics=[]), ListOffsetsResponse, HIGHEST)

    async def ask(self, node_id: int) -> ListOffsetsResponse:
        """Ask a broker. Raises KafkaError."""
        asked = self.begin(node_id)
        await self.tasks[-1]
        return asked.result()


async def ask(node_id: int) -> ListOffsetsResponse:
    """Ask a broker once. Raises KafkaError."""
    return await Asker().ask(node_id)


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


async def test_a_leader_that_stays_silent_holds_one_page_alone(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "LIMIT_S", 0.01)
    others.is_silent = True
    asker = Asker()
    with pytest.raises(LeaderNotAvailableError, match="in time"):
        await asker.ask(SECOND)
    with pytest.raises(LeaderNotAvailableError, match="a moment ago"):
        await asker.ask(SECOND)
    assert len(others.asked) == 1
    monkeypatch.setattr(leaders, "REST_S", 0.0)
    asker = Asker()
    with pytest.raises(LeaderNotAvailableError, match="in time"):
        await asker.ask(SECOND)
    asker.begin(SECOND)
    await asyncio.sleep(0)
    with pytest.raises(LeaderNotAvailableError, match="a moment ago"):  # while another finds out
        await asker.ask(SECOND)
    await asyncio.gather(*asker.tasks)
    others.is_silent = False
    assert await asker.ask(SECOND) is ANSWER
    assert len(others.asked) == 4


async def test_a_waiting_page_gets_an_error_when_the_member_ends(others: Others) -> None:
    others.is_silent = True
    asker = Asker()
    asked = asker.begin(SECOND)
    await asyncio.sleep(0)
    asker.tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asker.tasks[0]
    with pytest.raises(LeaderNotAvailableError, match="stops"):
        asked.result()
