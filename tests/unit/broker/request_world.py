"""A broker with a wide topic and a dispatcher, for tests that measure the work of requests turn by turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.call_counter import call_counter
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.route import Pending
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.transferable import release_slices

CALLS_PER_MS = 3_000
"""A call and what is done between calls take about a third of a microsecond."""
TEXTS = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class Counter:
    """A counter of function calls during a piece of work."""

    def __init__(self) -> None:
        self._profiler = call_counter()
        self._is_counting = False
        self.milliseconds: Callable[[], float] = partial(self._profiler.milliseconds, CALLS_PER_MS)
        """The clock: milliseconds that count for the calls so far, one for CALLS_PER_MS of them."""

    def count(self, work: Callable[[], object]) -> int:
        """Return how many calls the work makes."""
        before = self._profiler.counted()
        self._is_counting = True
        self._profiler.count()
        try:
            work()
        finally:
            self._profiler.rest()
            self._is_counting = False
        return int(self._profiler.counted() - before)

    def without(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``work`` without its calls being counted: what a thread does is in no turn of the loop."""

        def do(*arguments: Any) -> Any:
            if not self._is_counting:
                return work(*arguments)
            self._profiler.rest()
            try:
                return work(*arguments)
            finally:
                self._profiler.count()

        return do


def uncounted(work: Callable[[], object]) -> float:
    """Do work that is not measured."""
    work()
    return 0.0


class World:
    """A broker with a wide topic, a dispatcher whose clock counts calls, and the turns of a loop counted one by one."""

    def __init__(self, directory: Path) -> None:
        self.data = DataBroker(directory, TEXTS)
        create_topic(self.data, "wide", 10_000)
        coordinators_of(self.data.broker).start()
        self.counter = Counter()
        self.data.loop.run_in_executor = self.counter.without(self.data.loop.run_in_executor)  # type: ignore[method-assign]
        self.dispatcher = self.make_dispatcher()
        self.measure: Callable[[Callable[[], object]], float] = self.counter.count

    def make_dispatcher(self) -> Dispatcher:
        """Build a dispatcher whose clock counts calls."""
        dispatcher = Dispatcher(self.data.broker)
        dispatcher.runner.clock = self.counter.milliseconds
        return dispatcher

    def ask(self, frame: bytes) -> list[float]:
        """Send a request twice; return the work of each turn of the second one until it is answered.

        The first one is not counted, because it also does work that only the first request of a process does.
        """
        self.answer(frame, uncounted)
        return self.ask_once(frame)

    def ask_once(self, frame: bytes) -> list[float]:
        """Send a request once; return the work of each turn until it is answered."""
        return self.answer(frame, self.measure)

    def answer(self, frame: bytes, measure: Callable[[Callable[[], object]], float]) -> list[float]:
        """Send a request; return what ``measure`` gives for each turn until it is answered."""
        answers: list[Any] = []
        received = bytearray(frame)

        def dispatch() -> None:
            try:
                answer = self.dispatcher.dispatch(self.data.context(0), memoryview(received))
            except (InvalidRequestError, CloseConnectionError):
                answers.append(None)
                return
            if isinstance(answer, Pending):
                answer.on_answer(answers.append)
                answer.hurry()
            else:
                answers.append(answer)

        turns = [measure(dispatch)]
        while not answers:
            soon, self.data.loop.soon = self.data.loop.soon, []
            if not soon:
                self.data.loop.advance(1000)  # a timer: the end of a wait
            turns += [measure(callback) for callback in soon]
        release_slices(answers[0])
        return turns
