"""Answers that come later than the turn of their requests: the line of produce requests, and a muted client's pause.

The line holds answers to produce requests whose records are in the log and wait for other replicas, or for the disk.
The connection's next produce requests are carried out meanwhile. Else its rate would be one batch for each fetch of the
followers. Answers leave in the order of the requests; a request of another API waits until the line is empty. A request
that cannot be answered ends the line: none is carried out after it, and the connection closes when its turn to be
answered comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.route import Parts, Pending
from tidelog.protocol.api_keys import ApiKey

MOST_WAITING = 16
"""Produce requests of one connection that may wait for replicas. Java's producers have five in flight."""


class Place:
    """Place of one answer in the line, with the time of its request."""

    __slots__ = ("answer", "asked_ms", "error", "pending")

    def __init__(self, asked_ms: float, pending: Pending | None, answer: bytes | Parts | None = None) -> None:
        self.asked_ms = asked_ms
        self.pending = pending
        self.answer = answer
        """The answer; None until it comes."""
        self.error: Exception | None = None
        """The reason that there will be no answer, if so."""


class AnswerLine(deque[Place]):
    """The answers that one connection owes, in the order of their requests."""

    __slots__ = ("_has_end",)

    def __init__(self) -> None:
        super().__init__()
        self._has_end = False

    def admits(self, api_key: int | None) -> bool:
        """Return whether a request may be carried out before those in line are answered; None: its API is not received
        yet."""
        return not self or (len(self) < MOST_WAITING and api_key in (None, ApiKey.PRODUCE) and not self._has_end)

    @property
    def failure(self) -> Exception | None:
        """Error of the first request in line, which has no answer; None if it may have one."""
        return self[0].error if self else None

    def wait_for(self, pending: Pending, asked_ms: float, come: Callable[[Place, bytes | Parts | None], None]) -> None:
        """Add an answer that comes later; ``come`` is called with its place and the answer then."""
        place = Place(asked_ms, pending)
        self.append(place)
        pending.on_answer(partial(come, place))

    def add(self, answer: bytes | Parts, asked_ms: float) -> None:
        """Add an answer that is there already."""
        self.append(Place(asked_ms, None, answer))

    def fail(self, place: Place, error: Exception) -> None:
        """Note that there will be no answer for this place."""
        place.error = error
        self._has_end = True

    def end(self, error: Exception) -> None:
        """Add a request that cannot be answered, as the last one in line."""
        self.append(Place(0.0, None))
        self.fail(self[-1], error)

    def take_ready(self) -> Parts:
        """Remove the answers that have come from the front of the line, and return their parts."""
        parts: Parts = []
        while self and (answer := self[0].answer) is not None:
            self.popleft()
            parts += [answer] if isinstance(answer, bytes) else answer
        return parts

    def abandon(self) -> None:
        """Abandon the answers that have not come: the connection is closed."""
        places = list(self)
        self.clear()
        for place in places:
            if place.pending is not None and place.answer is None and place.error is None:
                place.pending.abandon()


class Muted(Pending):
    """Empty answer that comes when the throttle time of a client over its quota has passed (KIP-219)."""

    __slots__ = ("_timer",)

    def __init__(
        self, timers: TimerQueue, context: RequestContext, on_answer: Callable[[bytes | Parts | None], None]
    ) -> None:
        self._timer = timers.schedule(context.throttle_ms, lambda: on_answer(b""))
        context.throttle_ms = 0

    def abandon(self) -> None:
        self._timer.cancel()

    def hurry(self) -> None:
        """Do nothing: a client over its quota waits."""
