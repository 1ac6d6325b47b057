"""Audit lines that are written in later turns of the loop, so that no request waits for them."""

from __future__ import annotations

import asyncio
from itertools import count

from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import SLICE_MS, Steps
from tidelog.broker.security.late_lines import LateLines


def lines(written: list[int], change: Deferred[None] | None = None) -> Steps[None]:
    if change is not None:
        yield change
    for number in range(3):
        written.append(number)
        yield None


def test_lines_are_written_in_slices_of_later_turns_or_begun_at_once() -> None:
    loop, written = ManualLoop(), list[int]()
    late = LateLines(loop.call_soon, count(0, SLICE_MS).__next__)
    late.add(lines(written))
    assert written == []
    late.begin(lines(written))
    assert written == [0]
    while loop.soon:
        loop.run_soon()
    assert sorted(written) == [0, 0, 1, 1, 2, 2]


def test_a_stop_waits_for_the_changes_of_delayed_lines() -> None:
    async def stop() -> list[int]:
        loop, written = asyncio.get_running_loop(), list[int]()
        late = LateLines(loop.call_soon, count(0, SLICE_MS).__next__)
        await late.wait_until_written()
        change: Deferred[None] = Deferred()
        late.begin(lines(written, change))
        late.add(lines(written))
        loop.call_soon(loop.call_soon, change.complete, None)
        await late.wait_until_written()
        return written

    assert sorted(asyncio.run(stop())) == [0, 0, 1, 1, 2, 2]


def test_at_the_end_all_lines_are_written_that_wait_for_no_change() -> None:
    written: list[int] = []
    late = LateLines(lambda turn: None, count(0, SLICE_MS).__next__)
    late.add(lines(written, Deferred()))
    late.add(lines(written))
    late.finish()
    assert written == [0, 1, 2]
