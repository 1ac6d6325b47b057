"""Audit lines that no request waits for: of clients that have disconnected, and of requests that a controller answered.

These lines are written in steps of their own, as there may be one for each change of a request. Before a broker stops,
it writes those that are left, if their changes are durable by then.
"""

from __future__ import annotations

from asyncio import Event
from collections.abc import Callable

from tidelog.broker.loop.steps import Job, StepRunner, Steps


class LateLines:
    """Writes lines in steps. Loop thread only."""

    __slots__ = ("_left", "_runner", "_written")

    def __init__(self, call_soon: Callable[..., object], clock: Callable[[], float]) -> None:
        """``clock`` is in milliseconds and monotonic."""
        self._runner = StepRunner(call_soon, clock)
        self._left: set[Job] = set()
        self._written: Event | None = None

    def add(self, lines: Steps[None]) -> None:
        """Write lines from the next turn of the loop on."""
        self._runner.add(self._job(lines))

    def begin(self, lines: Steps[None]) -> None:
        """Write lines now, for one slice of time, and the others from the next turn on."""
        self._job(lines).advance()

    def _job(self, lines: Steps[None]) -> Job:
        job = Job(self._runner, lines)
        self._left.add(job)
        job.done.on_done(lambda _: self._end(job))
        return job

    def _end(self, job: Job) -> None:
        self._left.discard(job)
        if self._written is not None and not self._left:
            self._written.set()

    async def wait_until_written(self) -> None:
        """Wait until no line is left: then the changes that lines waited for are durable or have failed."""
        if self._left:
            self._written = Event()
            await self._written.wait()

    def finish(self) -> None:
        """Write, without waiting, all lines whose changes are durable by now."""
        self._runner.finish()
