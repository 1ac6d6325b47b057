"""Records and offsets of partitions that other brokers lead, asked of them as a consumer asks: for the console's pages.

One connection for each broker, one request at a time, apart from those of coordinators. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.member.channel import Channel, ChannelError
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.member.nodes import peer_address
from tidelog.broker.member.security import PeerSecurity
from tidelog.broker.peers import LeaderRequest
from tidelog.protocol.errors import LeaderNotAvailableError
from tidelog.protocol.schema.fields import Message

REQUEST_TIMEOUT_S = 3.0
LIMIT_S = 6.0
"""Time for one request with its wait for those before it. A page waits 10 s."""
ATTEMPTS = 2
"""The first attempt may meet a connection that the leader's restart has closed."""
Response = TypeVar("Response", bound=Message)


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
        self._channels: dict[int, tuple[Channel, asyncio.Lock]] = {}

    def ask(
        self, node_id: int, request: LeaderRequest, response_type: type[Response], highest: int
    ) -> Deferred[Response]:
        """Ask a broker, in a version up to ``highest``. Fails with LeaderNotAvailableError."""
        done: Deferred[Response] = Deferred()

        async def ask() -> None:
            try:
                async with asyncio.timeout(LIMIT_S):
                    answer = await self._attempt(node_id, request, response_type, highest)
            except TimeoutError:
                done.fail(LeaderNotAvailableError(f"broker {node_id} does not answer in time"))
            except ChannelError as error:
                done.fail(LeaderNotAvailableError(f"broker {node_id} does not answer: {error}"))
            else:
                done.complete(answer)

        self._start(ask())
        return done

    async def _attempt(
        self, node_id: int, request: LeaderRequest, response_type: type[Response], highest: int
    ) -> Response:
        """Ask a broker, and again where it cannot be reached. Raises ChannelError."""
        channel, lock = self._channels.setdefault(node_id, (Channel(REQUEST_TIMEOUT_S, self._security), asyncio.Lock()))
        for attempt in range(ATTEMPTS):
            address = peer_address(self._controller.image, node_id, self._security.listener_name)
            try:
                async with lock:
                    return await channel.ask(address, request, response_type, highest)
            except ChannelError:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("each attempt returns or raises")
