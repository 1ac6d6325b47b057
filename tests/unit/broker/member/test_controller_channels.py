"""Requests to a controller that freezes: it keeps its connections and answers nothing, and another controller takes
over."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Self

import pytest

from tidelog.broker.cluster.forwarding import FORWARDED
from tidelog.broker.cluster.lifecycle import BrokerLifecycle, BrokerState, Registration
from tidelog.broker.cluster.quorum import Address, QuorumView
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.member.config import ControllerTimeouts, controller_timeouts
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.broker.member.connections.controllers import ControllerChannels
from tidelog.broker.member.connections.security import PeerSecurity
from tidelog.broker.security.sasl.authenticator import encode
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.header import decode_request_header
from tidelog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidelog.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse

LIMIT_S = 60.0
FOR_EVER = ControllerTimeouts(heartbeat_s=600.0, metadata_s=600.0, other_s=600.0)
HEARTBEAT = BrokerHeartbeatRequest(broker_id=7, broker_epoch=1)
FROZEN_FROM = {"connection": ApiKey.API_VERSIONS, "request": ApiKey.BROKER_HEARTBEAT}


class Controller:
    """A controller that answers heartbeats; from an API on it answers nothing, while it is frozen."""

    def __init__(self, frozen_from: ApiKey | None = None) -> None:
        self._frozen_from = frozen_from
        self.is_asked = asyncio.Event()
        """Set when there was a request that is not answered."""
        self.heartbeats = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = Address("127.0.0.1", self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                self._answer(memoryview(await reader.readexactly(size)), writer)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    def _answer(self, frame: memoryview, writer: asyncio.StreamWriter) -> None:
        header, _ = decode_request_header(frame)
        if self._frozen_from == header.api_key:
            self.is_asked.set()
        elif header.api_key == ApiKey.API_VERSIONS:
            served = [
                ApiVersion(api_key=ApiKey.BROKER_HEARTBEAT, min_version=0, max_version=1),
                ApiVersion(api_key=ApiKey.ADD_RAFT_VOTER, min_version=0, max_version=0),
            ]
            writer.write(encode(header, ApiVersionsResponse(api_keys=served)))
        else:
            self.heartbeats += 1
            writer.write(encode(header, BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False)))


async def within_limit(work: Awaitable[object]) -> object:
    async with asyncio.timeout(LIMIT_S):
        return await work


@pytest.mark.parametrize("frozen_from", FROZEN_FROM.values(), ids=list(FROZEN_FROM))
@pytest.mark.parametrize("channel_of", [ControllerChannels.for_heartbeats, ControllerChannels.open])
async def test_requests_to_a_frozen_controller_fail_when_another_one_leads(
    frozen_from: ApiKey, channel_of: Callable[[ControllerChannels], Channel]
) -> None:
    async with Controller(frozen_from) as frozen, Controller() as other:
        channels, quorum = ControllerChannels(FOR_EVER, PeerSecurity("CONTROLLER")), QuorumView([frozen.address])
        channel = channel_of(channels)
        asking = asyncio.ensure_future(channel.ask(quorum.address, HEARTBEAT, BrokerHeartbeatResponse))
        await within_limit(frozen.is_asked.wait())
        quorum.learn(2, 1, {2: other.address})
        channels.follow(quorum)
        with pytest.raises(ChannelError):
            await within_limit(asking)
        await within_limit(channel.ask(quorum.address, HEARTBEAT, BrokerHeartbeatResponse))
        channel.close()
        assert other.heartbeats == 1


async def test_requests_to_a_frozen_controller_fail_when_the_former_leader_leads_again() -> None:
    """The leader did not answer once, and the one whose turn it was is frozen; it never led."""
    async with Controller() as leader, Controller(ApiKey.BROKER_HEARTBEAT) as frozen:
        bootstrap = [leader.address, frozen.address]
        channels, quorum = ControllerChannels(FOR_EVER, PeerSecurity("CONTROLLER")), QuorumView(bootstrap)
        channel = channels.open()
        quorum.learn(1, 1, {1: leader.address})
        channels.follow(quorum)
        quorum.lose_leader()
        asking = asyncio.ensure_future(channel.ask(quorum.address, HEARTBEAT, BrokerHeartbeatResponse))
        await within_limit(frozen.is_asked.wait())
        quorum.learn(1, 1, {1: leader.address})
        channels.follow(quorum)
        with pytest.raises(ChannelError):
            await within_limit(asking)


async def test_versions_of_forwarded_apis_are_those_of_the_controller_of_the_heartbeats() -> None:
    async with Controller() as controller:
        channels = ControllerChannels(FOR_EVER, PeerSecurity("CONTROLLER"))
        channel = channels.for_heartbeats()
        assert channels.forwarded_versions() == {}
        await within_limit(channel.ask(controller.address, HEARTBEAT, BrokerHeartbeatResponse))
        channel.close()
        found = channels.forwarded_versions()
        assert set(found) == FORWARDED
        assert found[ApiKey.ADD_RAFT_VOTER] == (0, 0)
        assert found[ApiKey.CREATE_TOPICS] is None


async def test_a_leader_that_stays_is_waited_for() -> None:
    async with Controller(ApiKey.BROKER_HEARTBEAT) as slow, Controller() as other:
        channels, quorum = ControllerChannels(FOR_EVER, PeerSecurity("CONTROLLER")), QuorumView([slow.address])
        quorum.confirm(slow.address)
        channels.follow(quorum)
        channel = channels.for_heartbeats()
        asking = asyncio.ensure_future(channel.ask(quorum.address, HEARTBEAT, BrokerHeartbeatResponse))
        await within_limit(slow.is_asked.wait())
        quorum.learn(1, 1, {1: slow.address})
        channels.follow(quorum)  # another epoch, the same controller
        quorum.lose_leader()
        channels.follow(quorum)  # no controller is known to be active
        for _ in range(10):
            await asyncio.sleep(0)
        assert not asking.done()
        quorum.learn(2, 2, {2: other.address})
        channels.follow(quorum)
        channels.follow(quorum)
        with pytest.raises(ChannelError):
            await within_limit(asking)


def life() -> BrokerLifecycle:
    """Build the life of a broker that is registered and serves."""
    registration = Registration(7, "cluster", b"i" * 16, (), {}, None, ())
    lifecycle = BrokerLifecycle(registration, 2000)
    lifecycle.state = BrokerState.RUNNING
    return lifecycle


async def test_the_next_heartbeat_comes_within_the_session_of_a_lost_one() -> None:
    """A heartbeat that a frozen controller swallowed: with a session of 3 s, a wait of 5 s fenced the member."""
    session_ms = 200
    config = BrokerConfig({"broker.session.timeout.ms": str(session_ms)})
    lifecycle = life()
    async with Controller(ApiKey.BROKER_HEARTBEAT) as frozen:
        channel = ControllerChannels(controller_timeouts(config), PeerSecurity("CONTROLLER")).for_heartbeats()
        request = lifecycle.next_question().request
        with pytest.raises(ChannelError):
            await within_limit(channel.ask(frozen.address, request, BrokerHeartbeatResponse))
    lifecycle.take_failure("no answer", session_ms / 2)
    assert lifecycle.next_question().not_before_ms < session_ms


@pytest.mark.parametrize(
    ("texts", "heartbeat_s", "metadata_s", "other_s"),
    [
        ({}, 4.5, 2.0, 30.0),
        ({"broker.session.timeout.ms": "3000"}, 1.5, 2.0, 30.0),
        ({"controller.socket.timeout.ms": "1000"}, 1.0, 2.0, 1.0),
        ({"controller.quorum.request.timeout.ms": "500"}, 4.5, 0.5, 30.0),
    ],
)
def test_times_are_those_of_kafkas_keys(
    texts: dict[str, str], heartbeat_s: float, metadata_s: float, other_s: float
) -> None:
    assert controller_timeouts(BrokerConfig(texts)) == (heartbeat_s, metadata_s, other_s)
