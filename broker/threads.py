"""Work that waits for a disk, done in a thread, answered on the loop."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from broker.deferred import Deferred

T = TypeVar("T")


def in_thread(loop: AbstractEventLoop, executor: Executor, work: Callable[[], T]) -> Deferred[T]:
    """Run ``work``, which touches nothing of the loop's, and settle with what it returns or raises. Loop thread."""
    deferred: Deferred[T] = Deferred()

    def settle(future: Future[T]) -> None:
        error = future.exception()
        if error is None:
            deferred.complete(future.result())
        else:
            deferred.fail(error)

    loop.run_in_executor(executor, work).add_done_callback(settle)
    return deferred
