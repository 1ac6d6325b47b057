"""Requests to leaders on other brokers for records and offsets, as a consumer sends them: for the console's pages.

Each broker gets one connection, with one request at a time; requests to coordinators have other connections. A broker
that has not answered is not asked for a while: each request to it would occupy one of the console's threads. Loop
thread only.
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
"""Limit of one request in s, with its wait for earlier ones. A page waits 10 s."""
ATTEMPTS = 2
"""Number of attempts of a request: the first may meet a connection that the leader's restart has closed."""
REST_S = 5.0
"""Pause in s after a failure, in which the broker is not asked."""
Response = TypeVar("Response", bound=Message)


@dataclass(slots=True)
class _Leader:
    """The connection to one broker, and the pause after a failure."""

    channel: Channel
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    rests_until_s: float | None = None
    """The end of the pause; None if the last request was answered."""

    def check_rest(self, *, is_asked: bool = False) -> None:
        """Raise ChannelError in the pause, and after it while another request tries whether the broker answers
        again.
        """
        if self.rests_until_s is not None and (is_asked or asyncio.get_running_loop().time() < self.rests_until_s):
            raise ChannelError("it did not answer a moment ago")


class Leaders:
    """Leaders on other brokers, by their ids. ``start`` runs a task until this broker stops."""

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
            except asyncio.CancelledError:  # a page's thread that waits would delay the end of the process
                done.fail(LeaderNotAvailableError("this broker stops"))
                raise
            else:
                done.complete(answer)

        self._start(ask())
        return done

    async def _ask_in_turn(
        self, node_id: int, request: LeaderRequest, response_type: type[Response], highest: int
    ) -> Response:
        """Ask a broker unless it is in its pause, and note whether it answers. Raises ChannelError."""
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
        """Ask a broker, and again if it cannot be reached. Raises ChannelError."""
        for attempt in range(ATTEMPTS):
            address = peer_address(self._controller.image, node_id, self._security.listener_name)
            try:
                return await channel.ask(address, request, response_type, highest)
            except ChannelError:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("each attempt returns or raises")
