"""Purgatory of waiting requests: each is tried again when one of its keys is touched, and expires by the clock.

A change (an append, the high watermark, the last stable offset) calls ``touch(key)``. That only notes the key, one
insertion, and schedules one later call of the loop. The call handles all touches of the turn together, after the
producers' own responses are sent. If thousands wait, each turn of the loop tries some, for SLICE_MS, in the order in
which they were touched. A key is any hashable object, mostly a ``Partition``.

    parked --try_complete() true--> gone        parked --deadline--> expire() --> gone
    parked --cancel--> gone                     parked --hurried, or the broker stops--> expire() --> gone

An operation that raises is removed, and its client is refused; the others are tried nevertheless.

Invariants: an operation that is removed is removed from all of its keys; ``expire`` is called at most once, and never
after ``try_complete`` returned True; nothing runs inside ``touch``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Protocol, TypeVar

from tidelog.broker.loop.deferred import Deferred, Refuse
from tidelog.broker.loop.steps import SLICE_MS
from tidelog.broker.loop.timers import Timer, TimerQueue

logger = logging.getLogger(__name__)

T = TypeVar("T")


class DelayedOperation(Protocol):
    """A parked request."""

    def try_complete(self) -> bool:
        """Answer the request if that is possible now; return whether it was answered."""
        ...

    def expire(self) -> None:
        """Answer with the results so far: the time is over."""
        ...


class ParkedOperation:
    """A parked operation, with its keys and its timer."""

    __slots__ = ("is_due", "keys", "operation", "refuse", "timer")

    def __init__(self, operation: DelayedOperation, keys: tuple[Hashable, ...], refuse: Refuse) -> None:
        self.operation = operation
        self.keys = keys
        self.refuse = refuse
        self.timer: Timer | None = None
        self.is_due = False
        """Whether one of its keys was touched since it was last tried."""


class Purgatory:
    """Parked operations by key. Loop thread only."""

    __slots__ = (
        "_call_soon",
        "_due",
        "_scheduled",
        "_timers",
        "_touched",
        "_watchers",
        "expired_total",
    )

    def __init__(self, timers: TimerQueue, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._timers = timers
        self._call_soon = call_soon
        self._watchers: dict[Hashable, dict[ParkedOperation, None]] = {}
        """Key -> operations that a touch of it tries again."""
        self._touched: dict[Hashable, None] = {}
        """Keys that were touched since the last ``run_touched``."""
        self._due: deque[ParkedOperation] = deque()
        """Operations to try, in the order in which their keys were touched."""
        self._scheduled = False
        self.expired_total = 0

    def __len__(self) -> int:
        return len({parked for watchers in self._watchers.values() for parked in watchers})

    def park(
        self, operation: DelayedOperation, keys: Iterable[Hashable], delay_ms: float, refuse: Refuse
    ) -> ParkedOperation:
        """Park an operation for ``delay_ms`` at most; a touch of one of ``keys`` tries it. ``park`` itself does not
        try it.

        ``refuse`` is called with an exception of the operation, so that its client does not wait without end.
        """
        parked = ParkedOperation(operation, tuple(keys), refuse)
        watchers = self._watchers
        for key in parked.keys:
            waiting = watchers.get(key)
            if waiting is None:
                watchers[key] = {parked: None}
            else:
                waiting[parked] = None
        parked.timer = self._timers.schedule(delay_ms, lambda: self.expire(parked))
        return parked

    def park_answer(
        self, operation: DelayedOperation, keys: Iterable[Hashable], delay_ms: float, answer: Deferred[T]
    ) -> Deferred[T]:
        """Park an operation that settles ``answer``: it expires when the client hurries it, and is cancelled when the
        client is gone."""
        parked = self.park(operation, keys, delay_ms, answer.refuse)
        answer.on_hurry(partial(self.expire, parked))
        answer.on_abandon(partial(self.cancel, parked))
        return answer

    def touch(self, key: Hashable) -> None:
        """Schedule another try of the operations under ``key``: the event that they wait for may have happened."""
        if key in self._watchers:
            self._touched[key] = None
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._call_soon(self._run_turn)
            self._scheduled = True

    def _run_turn(self) -> None:
        self._timers.turns.run("parked requests", self.run_touched)

    def run_touched(self) -> None:
        """Try the operations whose keys were touched, for SLICE_MS, and the rest in later turns."""
        self._scheduled = False
        touched, self._touched = self._touched, {}
        due = self._due
        for key in touched:
            for parked in self._watchers.get(key, ()):
                if not parked.is_due:
                    parked.is_due = True
                    due.append(parked)
        monotonic_ms = self._timers.monotonic_ms
        until_ms = monotonic_ms() + SLICE_MS
        try:
            while due:
                parked = due.popleft()
                parked.is_due = False
                self._look_at(parked)
                if monotonic_ms() >= until_ms:
                    break
        finally:  # the rest is tried later, also if something raised
            if due:
                self._schedule()

    def _look_at(self, parked: ParkedOperation) -> None:
        """Try an operation, and remove it if it is completed."""
        if parked.timer is None:
            return
        try:
            is_completed = parked.operation.try_complete()
        except Exception as error:  # noqa: BLE001 - _refuse logs it
            is_completed = True
            _refuse(parked, error)
        if is_completed:
            self.cancel(parked)

    def cancel(self, parked: ParkedOperation) -> None:
        """Forget a parked operation without answering it. Does nothing if it was removed already."""
        if parked.timer is None:
            return
        parked.timer.cancel()
        parked.timer = None
        for key in parked.keys:
            waiting = self._watchers.get(key)
            if waiting is not None and waiting.pop(parked, False) is None and not waiting:
                del self._watchers[key]

    def expire_all(self) -> None:
        """Answer all operations now with their results so far, at shutdown."""
        for parked in {parked: None for watchers in self._watchers.values() for parked in watchers}:
            self.expire(parked)

    def expire(self, parked: ParkedOperation) -> None:
        """Answer a parked operation now with its results so far. Does nothing if it was removed already."""
        if parked.timer is None:
            return
        self.cancel(parked)
        self.expired_total += 1
        try:
            parked.operation.expire()
        except Exception as error:  # noqa: BLE001 - _refuse logs it
            _refuse(parked, error)


def _refuse(parked: ParkedOperation, error: Exception) -> None:
    """Refuse the client of an operation that raised; called in the handler of that exception."""
    logger.exception("a waiting request failed, a defect of the broker: its client gets an error")
    try:
        parked.refuse(error)
    except Exception:
        logger.exception("the error of a waiting request could not be sent to its client")
