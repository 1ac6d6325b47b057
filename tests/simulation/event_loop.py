"""An event loop of asyncio on virtual time: the real coroutines of one simulated process run on it.

All that can run at one moment runs in one event of the clock. Work for threads is done at once, after a time that a
thread may take: whatever happens meanwhile comes first.
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

LEAST_DELAY_MS = 0.001
"""More than seconds lose when they are made of milliseconds and back: who waits for a time has come to it."""


class SimulatedLoop:
    """The loop of one process; what asyncio's tasks, futures, locks, events and timeouts need of one."""

    def __init__(self, clock: Clock, process: Process, thread_ms: Callable[[], float]) -> None:
        """``thread_ms`` gives the time that the next work in a thread takes."""
        self.shown = cast("asyncio.AbstractEventLoop", self)
        """The loop where one of asyncio's is asked for."""
        self._clock = clock
        self._process = process
        self._thread_ms = thread_ms
        self._ready: deque[asyncio.Handle] = deque()
        self._is_due = False
        self._tasks: list[asyncio.Task[Any]] = []
        self.failures: list[BaseException] = []
        """Exceptions that no one has taken."""

    # ---- what asyncio asks for

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._clock.now_ms / 1000

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Call in the turn that comes next."""
        handle = asyncio.Handle(callback, args, self.shown, context)
        self._make_ready(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call ``delay`` seconds later."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call at a time, in seconds."""
        handle = asyncio.TimerHandle(when, callback, args, self.shown, context)
        delay_ms = max(1000 * when - self._clock.now_ms, LEAST_DELAY_MS)
        self._process.after(delay_ms, lambda: self._make_ready(handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self.shown)

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: Any) -> asyncio.Task[Any]:
        """Begin a task."""
        task = asyncio.Task(coro, loop=self.shown)
        self._tasks = [one for one in self._tasks if not one.done()]
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Do work as a thread would."""
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
        """Keep an exception."""
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
        """Do nothing: a handle that is cancelled is passed over."""

    # ---- running

    def forget(self) -> None:
        """Forget all tasks, as a process that ends: none goes on, and nothing is told of those that never began."""
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
