"""Queue of requests that a member forwards to the active controller, one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tidelog.broker.cluster.forwarding import ForwardedRequest, build_envelope
from tidelog.broker.cluster.quorum import QuorumView
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.member.connections.channel import Channel, ChannelError
from tidelog.log.system.time import Time
from tidelog.protocol.messages.envelope import DefaultPrincipalData, EnvelopeResponse

MAX_QUEUED = 1000
"""Largest number of requests that wait for the active controller; a further request closes its client's connection."""


Note = Callable[[bytes], object]


def ignore(_: bytes) -> None:
    """Do nothing with a response."""


class Waiting(NamedTuple):
    """A request in the queue, the Deferred of its response, and the function that is called with the response."""

    request: ForwardedRequest
    deferred: Deferred[bytes]
    note: Note


class Forwarder:
    """Queue of requests to the active controller, and the task that sends them."""

    def __init__(self, quorum: QuorumView, channel: Channel, time: Time) -> None:
        self._quorum = quorum
        self._channel = channel
        self._time = time
        self._waiting: deque[Waiting] = deque()
        self._has_work = asyncio.Event()

    def forward(
        self, frame: memoryview, principal: DefaultPrincipalData, client_host: str, note: Note = ignore
    ) -> Deferred[bytes]:
        """Queue a request; the Deferred completes with the response, its header included, or fails with a KafkaError.

        ``note`` is called with the response, even if the client has disconnected: the change was made.
        """
        deferred: Deferred[bytes] = Deferred()
        envelope = build_envelope(frame, principal, client_host)
        self._waiting.append(Waiting(ForwardedRequest(envelope, self._time.monotonic_ms()), deferred, note))
        self._has_work.set()
        return deferred

    @property
    def is_full(self) -> bool:
        """True while no further request is accepted."""
        return len(self._waiting) >= MAX_QUEUED

    async def run(self) -> None:
        """Send the waiting requests in their order, until cancelled."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            while self._waiting:
                request, deferred, note = self._waiting[0]
                if not deferred.abandoned:
                    await self._ask(request)
                self._waiting.popleft()
                if request.response is not None:
                    note(request.response)
                if not deferred.abandoned:
                    settle(request, deferred)

    async def _ask(self, request: ForwardedRequest) -> None:
        while not request.is_settled:
            await asyncio.sleep(max(0.0, request.not_before_ms - self._time.monotonic_ms()) / 1000)
            try:
                answer = await self._channel.ask(self._quorum.address, request.envelope, EnvelopeResponse)
            except ChannelError:
                request.take_failure(self._time.monotonic_ms())
            else:
                request.take_answer(answer, self._time.monotonic_ms())


def settle(request: ForwardedRequest, deferred: Deferred[bytes]) -> None:
    """Settle the Deferred of a request by its response or error."""
    if request.response is not None:
        deferred.complete(request.response)
    else:
        assert request.error is not None
        deferred.fail(request.error)
