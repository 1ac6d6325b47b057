"""Results of handlers for tests that call handlers themselves: steps are run to their end at once, unless they wait."""

from __future__ import annotations

from types import GeneratorType
from typing import Any

from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.errors import KafkaError


def response_of(handled: Any) -> Any:
    """Return what a handler returned, or what its steps return; a Deferred where that has to wait.

    Raises the KafkaError of one that is settled.
    """
    if handled.__class__ is GeneratorType:
        while True:
            try:
                waiting = next(handled)
            except StopIteration as end:
                return response_of(end.value)
            if waiting is not None and not waiting.done:
                return _go_on_after(waiting, handled)
    return handled.result() if isinstance(handled, Deferred) and handled.done else handled


def _go_on_after(waiting: Deferred[Any], steps: Any) -> Deferred[Any]:
    answer: Deferred[Any] = Deferred()

    def settle(done: Deferred[Any]) -> None:
        try:
            answer.complete(done.result())
        except KafkaError as error:
            answer.fail(error)

    def go_on(_: Deferred[Any]) -> None:
        if answer.abandoned:
            return
        try:
            found = response_of(steps)
        except KafkaError as error:
            answer.fail(error)
            return
        if isinstance(found, Deferred):
            found.on_done(settle)
        else:
            answer.complete(found)

    answer.on_abandon(steps.close)
    waiting.on_done(go_on)
    return answer
