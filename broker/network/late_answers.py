"""Answers that come later than the turn of their requests: the line of produce requests, and a muted client's pause.

The line holds answers to produce requests whose records are in the log and wait for other replicas, or for the disk.
The connection's next produce requests are carried out meanwhile. Otherwise a connection could send only one batch for
each fetch of the followers. Answers leave in the order of the requests; a request of another API waits until the line
is empty. A request that cannot be answered ends the line: no later request is carried out, and the connection closes
once all earlier requests are answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.route import Parts, Pending
from tidelog.protocol.api_keys import ApiKey

MAX_WAITING = 16
"""Largest number of a connection's requests in the line. Java's producers have five in flight."""


class LineEntry:
    """One answer in the line, or an answer to come, with the time of its request."""

    __slots__ = ("answer", "asked_ms", "error", "pending")

    def __init__(self, asked_ms: float, pending: Pending | None, answer: bytes | Parts | None = None) -> None:
        self.asked_ms = asked_ms
        self.pending = pending
        self.answer = answer
        """The answer; None until it comes."""
        self.error: Exception | None = None
        """The reason why there will be no answer; None unless that is certain."""


class AnswerLine(deque[LineEntry]):
    """The answers that one connection owes, in the order of their requests."""

    __slots__ = ("_has_end",)

    def __init__(self) -> None:
        super().__init__()
        self._has_end = False

    def admits(self, api_key: int | None) -> bool:
        """Return whether a request may be carried out before those in line are answered. ``api_key`` is None if it is
        not received yet."""
        return not self or (len(self) < MAX_WAITING and api_key in (None, ApiKey.PRODUCE) and not self._has_end)

    @property
    def failure(self) -> Exception | None:
        """Error of the first request in line, which has no answer; None if it may have one."""
        return self[0].error if self else None

    def wait_for(
        self, pending: Pending, asked_ms: float, on_answer: Callable[[LineEntry, bytes | Parts | None], None]
    ) -> None:
        """Add an answer that comes later; ``on_answer`` is called with its entry and the answer then."""
        entry = LineEntry(asked_ms, pending)
        self.append(entry)
        pending.on_answer(partial(on_answer, entry))

    def add(self, answer: bytes | Parts, asked_ms: float) -> None:
        """Add an answer that has come already."""
        self.append(LineEntry(asked_ms, None, answer))

    def fail(self, entry: LineEntry, error: Exception) -> None:
        """Note that this entry gets no answer, and admit no further request."""
        entry.error = error
        self._has_end = True

    def end(self, error: Exception) -> None:
        """Add a request that cannot be answered, as the last one in line."""
        self.append(LineEntry(0.0, None))
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
        entries = list(self)
        self.clear()
        for entry in entries:
            if entry.pending is not None and entry.answer is None and entry.error is None:
                entry.pending.abandon()


class MutedAnswer(Pending):
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
