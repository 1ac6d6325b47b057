"""Work that waits for a disk, done in a thread, answered on the loop."""

from __future__ import annotations

from asyncio import AbstractEventLoop, CancelledError, Future
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures import Future as ThreadFuture
from typing import Any, NamedTuple, TypeVar

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.turn_clock import TurnClock
from tidelog.protocol.errors import KafkaError

T = TypeVar("T")
InThread = Callable[[Callable[[], None]], Deferred[None]]
CallSoon = Callable[[Callable[[], None]], object]


class Threads(NamedTuple):
    """The loop's threads and its next turn, as those who must not wait for the disk need them."""

    in_thread: InThread
    call_soon: CallSoon


def in_thread(
    loop: AbstractEventLoop, executor: Executor, work: Callable[[], T], turns: TurnClock | None = None
) -> Deferred[T]:
    """Run ``work``, which touches nothing of the loop's, and settle with what it returns or raises. Loop thread.

    Whatever it raises settles it, also that no thread can be started. For others than KafkaErrors see
    :mod:`tidelog.broker.loop.deferred`.

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
        try:
            if turns is None:
                settle(future)
            else:
                turns.run("result of a thread", lambda: settle(future))
        except Exception as error:
            deferred.refuse(error)
            raise

    try:
        future = loop.run_in_executor(executor, work)
    except (MemoryError, RuntimeError) as error:  # no thread can be started, or the broker stops
        deferred.fail(error)
    else:
        future.add_done_callback(settle_in_turn)
    return deferred


def run_now(work: Callable[[], None]) -> Deferred[None]:
    """Do the work now, where there is no loop to hold up."""
    deferred: Deferred[None] = Deferred()
    try:
        work()
    except KafkaError as error:
        deferred.fail(error)
    else:
        deferred.complete(None)
    return deferred


def call_now(work: Callable[[], None]) -> None:
    """Do the work now, where there is no loop."""
    work()


NO_LOOP = Threads(run_now, call_now)


class RecordThreads(ThreadPoolExecutor):
    """Threads for work on records, which know whether any is under way."""

    def __init__(self, count: int) -> None:
        super().__init__(count, "records")
        self._under_way: set[ThreadFuture[Any]] = set()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> ThreadFuture[T]:
        """Run ``fn`` in a thread. Any thread."""
        work = super().submit(fn, *args, **kwargs)
        self._under_way.add(work)
        work.add_done_callback(self._under_way.discard)
        return work

    def is_busy(self) -> bool:
        """Return whether work waits or is under way. Any thread."""
        return bool(self._under_way)
