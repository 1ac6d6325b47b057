"""An event loop of asyncio on virtual time: the real coroutines of one simulated process run on it.

All callbacks that are ready run in one event of the clock. Work for threads runs as one later event, after the time
that a thread may take: everything that happens until then comes first.
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, cast

from tests.simulation.clock import Clock, Process

MIN_DELAY_MS = 0.001
"""More than the rounding error of a time in seconds that is converted to milliseconds: a timer never fires early."""


class SimulatedLoop:
    """The loop of one process, with the methods that asyncio's tasks, futures, locks, events and timeouts call."""

    def __init__(self, clock: Clock, process: Process, thread_ms: Callable[[], float]) -> None:
        """``thread_ms`` gives the time that the next work in a thread takes."""
        self.shown = cast("asyncio.AbstractEventLoop", self)
        """This loop, typed as one of asyncio's."""
        self._clock = clock
        self._process = process
        self._thread_ms = thread_ms
        self._ready: deque[asyncio.Handle] = deque()
        self._is_due = False
        self._tasks: list[asyncio.Task[Any]] = []
        self.failures: list[BaseException] = []
        """Exceptions that no task has handled."""

    # ---- the methods that asyncio calls

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._clock.now_ms / 1000

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Call ``callback`` in the next turn of the loop."""
        handle = asyncio.Handle(callback, args, self.shown, context)
        self._make_ready(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call ``callback`` ``delay`` seconds later."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call ``callback`` at the time ``when``, in seconds."""
        handle = asyncio.TimerHandle(when, callback, args, self.shown, context)
        delay_ms = max(1000 * when - self._clock.now_ms, MIN_DELAY_MS)
        self._process.after(delay_ms, lambda: self._make_ready(handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self.shown)

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: Any) -> asyncio.Task[Any]:
        """Start a task."""
        task = asyncio.Task(coro, loop=self.shown)
        self._tasks = [one for one in self._tasks if not one.done()]
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Call ``func`` in a later event, as if in a thread."""
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - as an executor does
                future.set_exception(error)

        self._process.after(self._thread_ms(), work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Add an exception to ``failures``."""
        error = context.get("exception")
        if error is not None:
            self.failures.append(error)

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def is_running(self) -> bool:
        """Return True."""
        return True

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled handles are skipped when they are due."""

    # ---- running

    def forget(self) -> None:
        """Drop all tasks, as when a process ends: none continues, and asyncio warns of none that never began."""
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()

    def _make_ready(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)
        if not self._is_due:
            self._is_due = True
            self._process.after(0, self._run_ready)

    def _run_ready(self) -> None:
        events._set_running_loop(self.shown)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)
            self._is_due = False
