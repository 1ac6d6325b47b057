"""Work in threads, such as work that waits for a disk. Its result is a Deferred that is settled on the loop."""

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
    """Functions that run work in a thread, and that call back in the loop's next turn."""

    in_thread: InThread
    call_soon: CallSoon


def run_in_thread(
    loop: AbstractEventLoop, executor: Executor, work: Callable[[], T], turns: TurnClock | None = None
) -> Deferred[T]:
    """Run ``work`` in a thread, and return a Deferred of what it returns or raises. Loop thread.

    ``work`` must not touch what belongs to the loop's thread. The Deferred also fails if no thread can be started.
    Errors other than KafkaErrors become UnknownServerError (:mod:`tidelog.broker.loop.deferred`). ``turns`` measures
    the turn in which the Deferred is settled and its callbacks run.
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
    """Do the work now, for callers without an event loop. Returns a settled Deferred."""
    deferred: Deferred[None] = Deferred()
    try:
        work()
    except KafkaError as error:
        deferred.fail(error)
    else:
        deferred.complete(None)
    return deferred


def call_now(work: Callable[[], None]) -> None:
    """Do the work now, for callers without an event loop."""
    work()


NO_LOOP = Threads(run_now, call_now)
"""Threads for callers without an event loop: everything is done at once by the calling thread."""


class BrokerThreads(ThreadPoolExecutor):
    """Executor that starts threads when work needs them. If one cannot be started, the work waits for those that run.

    If none runs, ``submit`` raises, and the work is dropped. Python's executor would keep it, and do it later: a
    truncation of a log, for example, that its caller has given up.
    """

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except (MemoryError, RuntimeError):
            if not self._threads:
                self._work_queue.get_nowait()
                raise


class RecordThreads(BrokerThreads):
    """Executor for work on records, which knows whether any work waits or runs."""

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
        """Return whether work waits or runs. Any thread."""
        return bool(self._under_way)
