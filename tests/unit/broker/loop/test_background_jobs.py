from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import pytest

from tests.unit.broker.data_broker import InlineLoop
from tidelog.broker.loop.background_jobs import LONGEST_INTERVAL_MS, BackgroundJobs, Job
from tidelog.broker.loop.timers import TimerQueue
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaStorageError


@pytest.fixture
def loop() -> InlineLoop:
    return InlineLoop()


@pytest.fixture
def jobs(loop: InlineLoop) -> BackgroundJobs:
    return BackgroundJobs(cast(Any, loop), cast(Any, None), loop.timers)


def test_a_job_is_repeated(loop: InlineLoop, jobs: BackgroundJobs) -> None:
    rounds: list[int] = []
    jobs.start([Job("count", 100, lambda: rounds.append(1))])
    for _ in range(3):
        loop.advance(110)
        loop.run_soon()
    assert len(rounds) == 3


def test_a_round_is_not_begun_while_one_runs(loop: InlineLoop, jobs: BackgroundJobs) -> None:
    rounds: list[int] = []
    jobs.start([Job("count", 100, lambda: rounds.append(1))])
    loop.advance(110)
    loop.advance(1000)
    assert len(rounds) == 1


def test_a_failing_job_is_logged_and_tried_again(
    loop: InlineLoop, jobs: BackgroundJobs, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise KafkaStorageError("no room")

    jobs.start([Job("doomed", 100, fail)])
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            loop.advance(110)
            loop.run_soon()
    assert [record.getMessage() for record in caplog.records] == [
        "background job doomed failed; its next round is due as usual"
    ] * 2


async def test_stopping_begins_no_further_round(loop: InlineLoop, jobs: BackgroundJobs) -> None:
    rounds: list[int] = []
    jobs.start([Job("count", 100, lambda: rounds.append(1))])
    await jobs.stop()
    loop.advance(1000)
    assert rounds == []


def test_the_longest_interval_is_cut_to_what_a_timer_takes(loop: InlineLoop, jobs: BackgroundJobs) -> None:
    rounds: list[int] = []
    jobs.start([Job("never", 2**63 - 1, lambda: rounds.append(1))])
    loop.advance(LONGEST_INTERVAL_MS - 1)
    assert not rounds
    loop.advance(2)
    assert rounds


async def test_the_rounds_that_run_can_be_waited_for() -> None:
    rounds: list[int] = []
    loop, clock = asyncio.get_running_loop(), ManualTime()
    timers = TimerQueue(clock.monotonic_ms, loop.call_later)
    with ThreadPoolExecutor(1) as executor:
        jobs = BackgroundJobs(loop, executor, timers)
        jobs.start([Job("count", 60_000, lambda: rounds.append(1)), Job("fail", 60_000, lambda: rounds.index(7))])
        await jobs.settle()
        clock.advance(60_000)
        timers.catch_up()
        await jobs.settle()
        assert rounds == [1]
        await jobs.stop()
        timers.close()


class ShortOfThreads(InlineLoop):
    """A loop that has no thread for the first work."""

    has_thread = False

    def run_in_executor(self, executor: object, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self.has_thread:
            return super().run_in_executor(executor, work, *arguments)
        self.has_thread = True
        raise RuntimeError("can't start new thread")


def test_a_round_without_a_thread_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Without this the job would never run again."""
    loop, rounds = ShortOfThreads(), list[int]()
    jobs = BackgroundJobs(cast(Any, loop), cast(Any, None), loop.timers)
    jobs.start([Job("count", 100, lambda: rounds.append(1))])
    with caplog.at_level(logging.ERROR):
        loop.advance(110)
    assert "background job count could not start; its next round is due as usual: can't start new thread" in caplog.text
    loop.advance(110)
    assert rounds == [1]


async def test_an_error_in_a_last_round_does_not_keep_the_broker_from_stopping(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error other than OSError was once raised into the server, which then flushed no log."""
    loop, clock, is_stopping = asyncio.get_running_loop(), ManualTime(), threading.Event()
    timers = TimerQueue(clock.monotonic_ms, loop.call_later)

    def fail() -> None:
        is_stopping.wait()
        raise KafkaStorageError("no room")

    with ThreadPoolExecutor(1) as executor, caplog.at_level(logging.ERROR):
        jobs = BackgroundJobs(loop, executor, timers)
        jobs.start([Job("doomed", 0, fail)])
        timers.catch_up()
        stopped = asyncio.ensure_future(jobs.stop())
        await asyncio.sleep(0)
        is_stopping.set()
        await stopped
        assert "background job doomed failed" in caplog.text
        timers.close()
