"""Steps of long work: time limits of slices, fairness between jobs, waiting, and the end of abandoned steps."""

from __future__ import annotations

import random
import weakref
from collections import Counter
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

import pytest

from tests.support.traced import traced
from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import LARGE_AT_ONCE, LONG_WAIT_MS, SLICE_MS, Job, StepRunner, Steps
from tidelog.protocol.errors import InvalidTopicError


class World:
    """A loop that the test turns, and a clock that each step moves."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.now = 0.0
        self.runner = StepRunner(self.loop.call_soon, lambda: self.now)
        self.done: list[str] = []

    def steps(self, name: str, count: int, seconds: float = SLICE_MS) -> Steps[str]:
        for number in range(count):
            self.now += seconds
            self.done.append(f"{name}{number}")
            yield None
        return name

    def turns(self) -> int:
        """Count the turns until nothing is left to do."""
        turns = 0
        while self.loop.soon:
            self.loop.run_soon()
            turns += 1
        return turns


@pytest.fixture
def world() -> World:
    return World()


def job_of(answer: object) -> Job:
    assert isinstance(answer, Job)
    return answer


def test_work_that_fits_into_a_slice_is_done_at_once(world: World) -> None:
    assert world.runner.run(world.steps("a", 9, SLICE_MS / 10)) == "a"
    assert not world.loop.soon


def test_longer_work_takes_one_slice_of_each_turn(world: World) -> None:
    job = job_of(world.runner.run(world.steps("a", 10, SLICE_MS / 2)))
    assert len(world.done) == 2
    world.loop.run_soon()
    assert len(world.done) == 4
    world.turns()
    assert job.done.result() == "a"
    assert job.seconds == pytest.approx(5 * SLICE_MS / 1000)


def test_a_turn_advances_one_job_and_jobs_take_turns(world: World) -> None:
    for name in "abc":
        world.runner.run(world.steps(name, 3))
    assert world.done == ["a0", "b0", "c0"]
    for _ in range(3):
        before = len(world.done)
        world.loop.run_soon()
        assert len(world.done) == before + 1
    assert world.done[3:] == ["a1", "b1", "c1"]
    world.turns()
    assert len(world.done) == 9


def test_a_long_request_is_busy_at_every_line(world: World) -> None:
    """Another thread asks, and may be given the interpreter between any two lines of the loop's."""
    waited_for: Deferred[int] = Deferred()
    idle: list[str] = []

    def steps() -> Steps[None]:
        yield from world.steps("before", 3)
        yield waited_for
        yield from world.steps("after", 3)

    def look(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename.endswith("steps.py"):
            if not (world.runner.is_busy() or job.done.done):
                idle.append(f"{frame.f_code.co_name}, line {frame.f_lineno}, {event}")
            return look
        return None

    job = job_of(world.runner.run(steps()))
    with traced(look):
        world.turns()
        waited_for.complete(0)
        world.turns()
    assert idle == []
    assert job.done.done
    assert not world.runner.is_busy()


@pytest.mark.parametrize("end", ["settled", "failed", "gone", "refused"])
def test_a_long_request_is_busy_also_while_it_waits(world: World, end: str) -> None:
    """Else the garbage collector looks at all its objects in the middle of it."""
    waited_for: Deferred[int] = Deferred()

    def steps() -> Steps[None]:
        yield from world.steps("before", 2)
        yield waited_for

    job = job_of(world.runner.run(steps()))
    world.turns()
    assert world.runner.is_busy()
    if end == "gone":
        job.done.abandon()
    elif end == "refused":
        job.refuse(RuntimeError())
    elif end == "failed":
        waited_for.fail(InvalidTopicError())
    else:
        waited_for.complete(0)
    world.turns()
    assert not world.runner.is_busy()


def test_a_short_request_that_waits_is_not_busy(world: World) -> None:
    def steps() -> Steps[None]:
        yield Deferred()

    job_of(world.runner.run(steps()))
    assert not world.runner.is_busy()


def test_a_request_that_waits_many_times_becomes_a_long_one(world: World) -> None:
    """One that opens ten thousand logs waits for each."""
    waits: list[Deferred[int]] = [Deferred() for _ in range(10)]

    def steps() -> Steps[None]:
        for wait in waits:
            yield from world.steps("short", 1, SLICE_MS / 4)
            yield wait

    job_of(world.runner.run(steps()))
    busy = []
    for wait in waits:
        busy.append(world.runner.is_busy())
        wait.complete(0)
        world.turns()
    assert busy == [False] * 3 + [True] * 7
    assert not world.runner.is_busy()


def test_steps_wait_for_the_deferred_that_they_yield(world: World) -> None:
    waited_for: Deferred[int] = Deferred()

    def steps() -> Steps[int]:
        yield None
        yield waited_for
        return waited_for.result() + 1

    job = job_of(world.runner.run(steps()))
    assert not world.loop.soon
    waited_for.complete(41)
    assert not job.done.done
    world.turns()
    assert job.done.result() == 42


def test_steps_do_not_wait_for_a_settled_deferred(world: World) -> None:
    settled: Deferred[int] = Deferred()
    settled.complete(1)

    def steps() -> Steps[int]:
        yield settled
        return settled.result()

    assert world.runner.run(steps()) == 1


def test_an_error_is_raised_in_the_first_slice_and_settles_later_ones(world: World) -> None:
    def fail_after(count: int, error: Callable[[], Exception]) -> Steps[None]:
        yield from world.steps("a", count)
        raise error()

    with pytest.raises(InvalidTopicError):
        world.runner.run(fail_after(0, InvalidTopicError))
    for error in (InvalidTopicError, CloseConnectionError):
        job = job_of(world.runner.run(fail_after(3, error)))
        world.turns()
        with pytest.raises(error):
            job.done.result()


def test_steps_without_a_waiting_client_are_closed(world: World) -> None:
    closed = []

    def steps(name: str, waited_for: Deferred[None] | None) -> Steps[None]:
        try:
            yield from world.steps(name, 1)
            yield waited_for
            yield from world.steps(name, 3)
        except GeneratorExit:
            closed.append(name)
            raise

    waited_for: Deferred[None] = Deferred()
    queued = job_of(world.runner.run(steps("a", None)))
    waiting = job_of(world.runner.run(steps("b", waited_for)))
    world.loop.run_soon()
    for job in (queued, waiting):
        job.done.abandon()
    assert closed == ["a", "b"]
    done = list(world.done)
    waited_for.complete(None)
    world.turns()
    assert world.done == done


def test_a_step_may_close_its_own_connection(world: World) -> None:
    jobs: list[Job] = []
    ended = []

    def steps() -> Steps[None]:
        try:
            yield from world.steps("a", 1)
            jobs[0].done.abandon()
            yield None
        finally:
            ended.append(True)

    jobs.append(job_of(world.runner.run(steps())))
    world.turns()
    assert ended == [True]


def test_hurrying_a_job_hurries_the_deferred_it_waits_for(world: World) -> None:
    waited_for: Deferred[str] = Deferred()
    waited_for.on_hurry(lambda: waited_for.complete("what there is"))

    def steps() -> Steps[str]:
        yield waited_for
        return waited_for.result()

    job = job_of(world.runner.run(steps()))
    job.done.hurry()
    world.turns()
    assert job.done.result() == "what there is"
    queued = job_of(world.runner.run(world.steps("a", 2)))
    queued.done.hurry()
    world.turns()
    assert queued.done.result() == "a"


@pytest.mark.parametrize("slices", [0, 3])
def test_a_defect_in_steps_closes_only_its_own_connection(world: World, slices: int) -> None:
    def mistaken() -> Steps[str]:
        yield from world.steps("wrong", slices)
        raise AttributeError("a mistake of ours")

    failures: list[Exception] = []

    def settle(done: Deferred[str]) -> None:
        with pytest.raises(CloseConnectionError) as error:
            done.result()
        failures.append(error.value)

    if not slices:
        with pytest.raises(CloseConnectionError):
            world.runner.run(mistaken())
        return
    job_of(world.runner.run(mistaken())).done.on_done(settle)
    other = job_of(world.runner.run(world.steps("right", 5)))
    world.turns()
    assert len(failures) == 1
    assert other.done.result() == "right"


def test_a_fault_around_a_slice_ends_its_job_and_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (job_of(world.runner.run(world.steps(name, 3))) for name in "ab")

    def fail() -> None:
        raise MemoryError

    advance = Job.advance
    monkeypatch.setattr(Job, "advance", lambda job: fail() if job is first else advance(job))
    world.turns()
    with pytest.raises(CloseConnectionError):
        first.done.result()
    assert second.done.result() == "b"


def test_a_job_that_cannot_be_queued_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Deferred[None]()

    def steps() -> Steps[None]:
        yield waiting

    def fail(_: object) -> None:
        raise MemoryError

    job = job_of(world.runner.run(steps()))
    with monkeypatch.context() as patched:
        patched.setattr(StepRunner, "add", lambda runner, job: fail(job))
        waiting.complete(None)
    with pytest.raises(CloseConnectionError):
        job.done.result()


def large(log: list[str], name: str, steps: int) -> Steps[str]:
    log.append(f"{name} begins")
    try:
        for _ in range(steps):
            yield None
        return name
    finally:
        log.append(f"{name} ends")


def test_few_large_requests_are_under_way_at_a_time() -> None:
    loop = ManualLoop()
    runner = StepRunner(loop.call_soon, count(0, SLICE_MS).__next__)
    log: list[str] = []
    jobs = [runner.queue("client", large(log, str(number), 5)) for number in range(3 * LARGE_AT_ONCE)]
    max_running = 0
    while loop.soon:
        loop.run_soon()
        max_running = max(
            max_running, sum(line.endswith("begins") for line in log) - sum(line.endswith("ends") for line in log)
        )
    assert [job.done.result() for job in jobs] == [str(number) for number in range(3 * LARGE_AT_ONCE)]
    assert max_running == LARGE_AT_ONCE
    assert not runner.is_busy()


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_large_request_whose_client_goes_lets_the_next_one_begin(turns: int) -> None:
    loop = ManualLoop()
    runner = StepRunner(loop.call_soon, count(0, SLICE_MS).__next__)
    log: list[str] = []
    gone = [runner.queue("client", large(log, f"gone-{number}", 50)) for number in range(2 * LARGE_AT_ONCE)]
    left = runner.queue("client", large(log, "left", 1))
    for _ in range(turns):
        loop.run_soon()
    for job in gone:
        job.done.abandon()
    while loop.soon:
        loop.run_soon()
    assert left.done.result() == "left"
    assert sum(line.endswith("begins") for line in log) == sum(line.endswith("ends") for line in log)


class ManyClients:
    """Clients whose large requests come, work, wait and are given up in a random order, and what is to hold."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.loop = ManualLoop()
        self.runner = StepRunner(self.loop.call_soon, self.loop.time.monotonic_ms, self.loop.timers.schedule)
        self.jobs: dict[tuple[int, int], Job] = {}
        """Those that are neither answered nor given up, by client and number."""
        self.ahead: dict[tuple[int, int], Counter[int]] = {}
        """For each that waits, how many more each other client may begin before it."""
        self.under_way = 0
        self.waits: list[Deferred[None]] = []

    def send(self, request: tuple[int, int]) -> None:
        client = request[0]
        own = sum(other == client for other, _ in self.ahead)
        # Those that have their places, and have not begun yet, are begun before it too.
        self.ahead[request] = Counter(dict.fromkeys(range(CLIENTS), own + 1 + LARGE_AT_ONCE))
        self.jobs[request] = self.runner.queue(client, self.steps(request, self.random.randrange(6)))

    def steps(self, request: tuple[int, int], count: int) -> Steps[tuple[int, int]]:
        self.note_begin(request)
        self.under_way += 1
        try:
            for _ in range(count):
                self.loop.time.advance(SLICE_MS)
                if self.random.random() < 0.2:
                    self.waits.append(Deferred())
                    yield self.waits[-1]
                yield None
            return request
        finally:
            self.under_way -= 1

    def note_begin(self, request: tuple[int, int]) -> None:
        client, number = request
        del self.ahead[request]
        for (other, later), allowed in self.ahead.items():
            assert other != client or later > number, "those of one client are begun in their order"
            allowed[client] -= other != client
            assert allowed[client] >= 0, "a client waits for others out of its turn"

    def give_up(self) -> None:
        """Close the connection of one that waits for a place, or has one."""
        request = self.random.choice(list(self.jobs))
        self.jobs.pop(request).done.abandon()
        self.ahead.pop(request, None)

    def rest(self) -> None:
        self.loop.advance(SLICE_MS)

    def settle(self) -> None:
        if self.waits:
            self.waits.pop(self.random.randrange(len(self.waits))).complete(None)

    def turn(self) -> None:
        self.loop.run_soon()
        for request, job in list(self.jobs.items()):
            if job.done.done:
                assert self.jobs.pop(request).done.result() == request


CLIENTS = 5


@pytest.mark.parametrize("seed", range(30))
def test_clients_take_turns_with_the_places_of_large_requests_and_none_is_lost(seed: int) -> None:
    """One client has very many; requests end, wait for long or short, and are given up before and after they begin."""
    world = ManyClients(seed)
    for number in range(300):
        world.send((0 if world.random.random() < 0.6 else world.random.randrange(CLIENTS), number))
        for act in world.random.choices([world.turn, world.settle, world.give_up, world.rest], [6, 2, 1, 2], k=3):
            if world.jobs:
                act()
        if not world.random.randrange(20):
            world.loop.advance(LONG_WAIT_MS)
    while world.jobs:
        world.settle()
        world.turn()
        world.loop.advance(SLICE_MS)
    assert (world.under_way, len(world.ahead), world.runner.is_busy()) == (0, 0, False)


def test_one_client_with_many_large_requests_delays_another_by_one_more() -> None:
    loop, log = ManualLoop(), list[str]()
    runner = StepRunner(loop.call_soon, count(0, SLICE_MS).__next__)
    for number in range(100):
        runner.queue("many", large(log, f"many-{number}", 5))
    runner.queue("one", large(log, "one", 5))
    while loop.soon:
        loop.run_soon()
    assert [line for line in log if line.endswith("begins")].index("one begins") == LARGE_AT_ONCE + 1


def test_large_requests_whose_connections_closed_while_they_waited_are_not_kept() -> None:
    loop, log = ManualLoop(), list[str]()
    runner = StepRunner(loop.call_soon, count(0, SLICE_MS).__next__)
    for _ in range(LARGE_AT_ONCE):
        runner.queue("many", large(log, "many", 5))
    steps = large(log, "gone", 5)
    gone, kept = runner.queue("one", steps), weakref.ref(steps)
    left = runner.queue("one", large(log, "left", 5))
    gone.done.abandon()
    del gone, steps
    assert kept() is None
    while loop.soon:
        loop.run_soon()
    assert left.done.result() == "left"


def waits_within(runner: StepRunner, waiting: Deferred[None]) -> Steps[str]:
    """Run steps of a job of their own, which waits, within others, as requests do."""

    def handle() -> Steps[str]:
        yield waiting
        yield None
        return "handled"

    inner = runner.run(handle())
    assert isinstance(inner, Job)
    yield inner.done
    return str(inner.done.result())


def test_large_requests_that_wait_for_long_hold_up_no_other_one() -> None:
    loop = ManualLoop()
    runner = StepRunner(loop.call_soon, loop.time.monotonic_ms, loop.timers.schedule)
    end: Deferred[None] = Deferred()
    log: list[str] = []
    waiting = [runner.queue("client", waits_within(runner, end)) for _ in range(LARGE_AT_ONCE)]
    others = [runner.queue("client", large(log, str(number), 1)) for number in range(LARGE_AT_ONCE + 1)]
    while loop.soon:
        loop.run_soon()
    assert not log
    loop.advance(2 * LONG_WAIT_MS)
    while loop.soon:
        loop.run_soon()
    assert [job.done.result() for job in others] == [str(number) for number in range(LARGE_AT_ONCE + 1)]
    end.complete(None)
    while loop.soon:
        loop.run_soon()
    assert {job.done.result() for job in waiting} == {"handled"}


def test_a_large_request_whose_work_takes_long_keeps_its_place() -> None:
    loop = ManualLoop()
    runner = StepRunner(loop.call_soon, loop.time.monotonic_ms, loop.timers.schedule)

    def handle() -> Steps[str]:
        for _ in range(30):
            loop.time.advance(2 * LONG_WAIT_MS)
            yield None
        return "handled"

    def steps() -> Steps[str]:
        inner = runner.run(handle())
        assert isinstance(inner, Job)
        yield inner.done
        return str(inner.done.result())

    log: list[str] = []
    working = [runner.queue("client", steps()) for _ in range(LARGE_AT_ONCE)]
    last = runner.queue("client", large(log, "last", 1))
    for _ in range(60):
        loop.run_soon()
        loop.advance(1)
    assert not log
    while loop.soon:
        loop.run_soon()
    assert {job.done.result() for job in working} == {"handled"}
    assert last.done.result() == "last"


def test_a_large_request_that_waits_and_is_given_up_lets_the_next_one_begin() -> None:
    loop = ManualLoop()
    runner = StepRunner(loop.call_soon, loop.time.monotonic_ms)
    gone = [runner.queue("client", waits_within(runner, Deferred())) for _ in range(LARGE_AT_ONCE)]
    left = runner.queue("client", large([], "left", 1))
    while loop.soon:
        loop.run_soon()
    assert not left.done.done
    gone.pop().done.abandon()
    while loop.soon:
        loop.run_soon()
    assert left.done.result() == "left"
    for job in gone:  # steps that still wait are closed by whichever thread frees them
        job.done.abandon()


def test_at_the_end_of_a_loop_all_is_done_that_waits_for_nothing() -> None:
    runner = StepRunner(lambda turn: None, count(0, SLICE_MS).__next__)
    waits: Deferred[None] = Deferred()

    def waiting() -> Steps[None]:
        yield waits

    log: list[str] = []
    done = [Job(runner, large(log, name, 50)) for name in ("a", "b")]
    left = Job(runner, waiting())
    for job in (*done, left):
        runner.add(job)
    runner.finish()
    assert [job.done.result() for job in done] == ["a", "b"]
    assert not left.done.done


def test_a_hurried_job_hurries_what_it_waits_for_later(world: World) -> None:
    """A fetch of many partitions that was hurried while it read them waited for its whole time."""

    def steps() -> Steps[str]:
        yield from world.steps("read", 3)
        waited_for: Deferred[str] = Deferred()
        waited_for.on_hurry(lambda: waited_for.complete("what there is"))
        yield waited_for
        return waited_for.result()

    job = job_of(world.runner.run(steps()))
    job.done.hurry()
    world.turns()
    assert job.done.result() == "what there is"
