"""Records and offsets of partitions that other brokers lead, asked of them as a consumer asks: for the console's pages.

One connection for each broker, one request at a time, apart from those of coordinators. A broker that has not answered
is left alone for a while: each request to it would hold one of the console's threads. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.broker.member.connections.security import PeerSecurity
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.nodes import peer_address
from tidelog.broker.peers import LeaderRequest
from tidelog.protocol.errors import LeaderNotAvailableError
from tidelog.protocol.schema.fields import Message

REQUEST_TIMEOUT_S = 3.0
LIMIT_S = 6.0
"""Time for one request with its wait for those before it. A page waits 10 s."""
ATTEMPTS = 2
"""The first attempt may meet a connection that the leader's restart has closed."""
REST_S = 5.0
"""So long nothing is asked of a broker after a failure."""
Response = TypeVar("Response", bound=Message)


@dataclass(slots=True)
class _Leader:
    """The connection to one broker, and whether the last request failed."""

    channel: Channel
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    rests_until_s: float | None = None
    """The end of its rest; None where the last request was answered."""

    def check_rest(self, *, is_asked: bool = False) -> None:
        """Raise ChannelError while it rests, and later while another request finds out whether it answers again."""
        if self.rests_until_s is not None and (is_asked or asyncio.get_running_loop().time() < self.rests_until_s):
            raise ChannelError("it did not a moment ago either")


class Leaders:
    """Other brokers as leaders of partitions. ``start`` runs a task until the member ends."""

    def __init__(
        self,
        controller: RemoteController,
        security: PeerSecurity,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._controller = controller
        self._security = security
        self._start = start
        self._leaders: dict[int, _Leader] = {}

    def ask(
        self, node_id: int, request: LeaderRequest, response_type: type[Response], highest: int
    ) -> Deferred[Response]:
        """Ask a broker, in a version up to ``highest``. Fails with LeaderNotAvailableError."""
        done: Deferred[Response] = Deferred()

        async def ask() -> None:
            try:
                async with asyncio.timeout(LIMIT_S):
                    answer = await self._ask_in_turn(node_id, request, response_type, highest)
            except TimeoutError:
                done.fail(LeaderNotAvailableError(f"broker {node_id} does not answer in time"))
            except ChannelError as error:
                done.fail(LeaderNotAvailableError(f"broker {node_id} does not answer: {error}"))
            except asyncio.CancelledError:  # the page's thread would hold the end of the process
                done.fail(LeaderNotAvailableError("this broker stops"))
                raise
            else:
                done.complete(answer)

        self._start(ask())
        return done

    async def _ask_in_turn(
        self, node_id: int, request: LeaderRequest, response_type: type[Response], highest: int
    ) -> Response:
        """Ask a broker unless it rests, and note whether it answers. Raises ChannelError."""
        leader = self._leaders.get(node_id)
        if leader is None:
            leader = self._leaders[node_id] = _Leader(Channel(REQUEST_TIMEOUT_S, self._security))
        leader.check_rest(is_asked=leader.lock.locked())
        async with leader.lock:
            leader.check_rest()
            try:
                answer = await self._attempt(leader.channel, node_id, request, response_type, highest)
            except (ChannelError, asyncio.CancelledError):
                leader.rests_until_s = asyncio.get_running_loop().time() + REST_S
                raise
            leader.rests_until_s = None
            return answer

    async def _attempt(
        self, channel: Channel, node_id: int, request: LeaderRequest, response_type: type[Response], highest: int
    ) -> Response:
        """Ask a broker, and again where it cannot be reached. Raises ChannelError."""
        for attempt in range(ATTEMPTS):
            address = peer_address(self._controller.image, node_id, self._security.listener_name)
            try:
                return await channel.ask(address, request, response_type, highest)
            except ChannelError:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("each attempt returns or raises")
