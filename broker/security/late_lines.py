"""Audit lines that no request waits for: those of clients that have gone, and of requests that a controller answered.

They are written in steps of their own, for there may be as many as a request has changes, and before the broker stops.
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
        """Have lines written from the next turn on."""
        self._runner.add(self._job(lines))

    def begin(self, lines: Steps[None]) -> None:
        """Write lines for a slice, and go on from the next turn on."""
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
        """Return once no line is left: changes that lines wait for are durable or have failed."""
        if self._left:
            self._written = Event()
            await self._written.wait()

    def finish(self) -> None:
        """Write all lines that wait for no change."""
        self._runner.finish()
