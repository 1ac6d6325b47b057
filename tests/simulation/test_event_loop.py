"""The event loop on virtual time: its tasks when their process ends."""

from __future__ import annotations

import asyncio
import gc
import warnings

from tests.simulation.clock import Clock, Process
from tests.simulation.event_loop import SimulatedLoop


def test_tasks_of_an_ended_process_go_without_a_warning() -> None:
    """One task waits, and one has not begun: a kill may come between the creation of a task and its first step."""
    clock = Clock()
    process = Process(clock, 1)
    loop = SimulatedLoop(clock, process, lambda: 0.0)
    steps: list[str] = []

    async def work(name: str) -> None:
        steps.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            steps.append(f"{name} ended")

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        loop.create_task(work("first"))
        clock.step()
        loop.create_task(work("second"))
        process.is_alive = False
        loop.forget()
        assert steps == ["first"]
        del loop, process, clock
        gc.collect()
    assert [str(one.message) for one in found] == []
