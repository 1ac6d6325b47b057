"""Periodic jobs, such as retention, flushing and checkpoints. Each runs in a thread, and never twice at once.

A job's next round is timed from the end of the last, on the monotonic clock, so a slow disk makes rounds rarer
instead of piling them up. If a job fails, the error is logged and the job runs again at its next round. Loop thread
only; the jobs' functions run in the executor.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, Future, wait
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from tidelog.broker.loop.timers import Timer, TimerQueue

logger = logging.getLogger(__name__)

LONGEST_INTERVAL_MS = 2**31
"""Longest interval that a timer is set for, 24 days. Longer ones are cut to it, such as Kafka's Long.MAX_VALUE."""


class Job(NamedTuple):
    """A function that runs in a thread again and again, ``interval_ms`` after the end of its last round."""

    name: str
    interval_ms: float
    run: Callable[[], object]


class BackgroundJobs:
    """Runs each job again and again, in a thread of the executor, until stopped."""

    __slots__ = ("_executor", "_loop", "_running", "_stopped", "_timers", "_waiting")

    def __init__(self, loop: AbstractEventLoop, executor: Executor, timers: TimerQueue) -> None:
        self._loop = loop
        self._executor = executor
        self._timers = timers
        self._waiting: dict[str, Timer] = {}
        self._running: dict[str, Future[object]] = {}
        self._stopped = False

    def start(self, jobs: list[Job]) -> None:
        """Set a timer for the first round of each job, one interval from now."""
        for job in jobs:
            self._wait(job)

    async def settle(self) -> None:
        """Wait for the rounds that run now; their errors are logged, not raised."""
        if self._running:
            await wait(list(self._running.values()))

    async def stop(self) -> None:
        """Start no more rounds and wait for those that run; their errors are logged, not raised."""
        self._stopped = True
        for timer in self._waiting.values():
            timer.cancel()
        await self.settle()

    def _wait(self, job: Job) -> None:
        """Set the timer for the next round of a job."""
        if not self._stopped:
            self._waiting[job.name] = self._timers.schedule(
                min(job.interval_ms, LONGEST_INTERVAL_MS), lambda: self._run(job)
            )

    def _run(self, job: Job) -> None:
        """Begin a round of a job in a thread."""
        self._waiting.pop(job.name, None)
        try:
            future = self._loop.run_in_executor(self._executor, job.run)
        except (MemoryError, RuntimeError) as error:  # no thread can be started, or the broker stops
            logger.error("background job %s could not start; its next round is due as usual: %s", job.name, error)
            self._wait(job)
            return
        self._running[job.name] = future
        future.add_done_callback(lambda done: self._finish(job, done))

    def _finish(self, job: Job, future: Future[object]) -> None:
        """Log the error of a round that has ended, and wait for the next one."""
        del self._running[job.name]
        error = None if future.cancelled() else future.exception()
        if error is not None:
            logger.error("background job %s failed; its next round is due as usual", job.name, exc_info=error)
        self._wait(job)
