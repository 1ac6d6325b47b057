"""Work that waits for a disk, done in a thread, answered on the loop."""

from __future__ import annotations

from asyncio import AbstractEventLoop, CancelledError, Future
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.turn_clock import TurnClock

T = TypeVar("T")


def in_thread(
    loop: AbstractEventLoop, executor: Executor, work: Callable[[], T], turns: TurnClock | None = None
) -> Deferred[T]:
    """Run ``work``, which touches nothing of the loop's, and settle with what it returns or raises. Loop thread.

    Whatever it raises settles it: see :mod:`tidelog.broker.loop.deferred` for others than KafkaErrors.

    ``turns`` measures the turn in which the result is settled, with all that follows from it.
    """
    deferred: Deferred[T] = Deferred()

    def settle(future: Future[T]) -> None:
        if future.cancelled():
            deferred.fail(CancelledError("the broker stops"))
        elif (error := future.exception()) is not None:
            deferred.fail(error)
        else:
            deferred.complete(future.result())

    def settle_in_turn(future: Future[T]) -> None:
        if turns is None:
            settle(future)
        else:
            turns.run("result of a thread", lambda: settle(future))

    loop.run_in_executor(executor, work).add_done_callback(settle_in_turn)
    return deferred
