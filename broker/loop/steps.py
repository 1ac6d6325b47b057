"""Long requests in steps: work as a generator that the loop advances a little in each of its turns.

A handler over many elements is a generator function that returns its response and yields between elements:

    yield None         other connections may be served here, before the next element
    yield deferred     go on when it is settled, well or badly; what it holds is the generator's to read
    return response    a response, or a Deferred of one, as any handler returns it

Work that fits into its first slice is done in the turn in which it was begun, unnoticed by others. What is left
waits in the one queue of a :class:`StepRunner`, which gives the job in front a slice of SLICE_MS per turn of the loop.
So a hundred long requests hold the loop no longer than one does. Large ones begin a few at a time, and clients take
turns with them. Between two steps anything may happen: topics are deleted, groups change. A generator therefore looks
things up again, iterates over copies, and keeps no view of the receive buffer. When the connection goes away, the
generator is closed where it stands (``GeneratorExit``): what was done so far stands, as it does when a client dies
between two requests. Loop thread only.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.loop.deferred import Deferred, error_of
from tidelog.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

E = TypeVar("E", bound=BaseException)
K = TypeVar("K")
S = TypeVar("S")
T = TypeVar("T")
Steps = Generator[Deferred[Any] | None, None, T]

SLICE_MS = 2.0
"""How long work goes on before the loop serves others. A step is not interrupted, so each takes some microseconds."""

LARGE_AT_ONCE = 4
"""Large requests that are worked on at a time. The objects of one take ten times its bytes: a hundred at a time would
take gigabytes, and all would be answered late."""
LONG_WAIT_MS = 1000.0
"""A large request that waits longer, for a follower, another broker or a client, lets the next one begin. What it waits
for may be a large request itself."""

FREED_PER_STEP = ITEMS_PER_STEP = 64


def without_traceback(error: E) -> E:
    """Strip the traceback of an error to be kept among results: it holds the frame that holds them, and so itself."""
    return error.with_traceback(None)


def apply_each(items: Iterable[S], work: Callable[[S], T]) -> Steps[list[T]]:
    """Apply ``work`` to each item, one item in a step."""
    results = []
    for item in items:
        results.append(work(item))
        yield None
    return results


def answer_each(
    results: Iterable[tuple[S, Deferred[Any] | KafkaError]], answer: Callable[[S, KafkaError | None], T]
) -> Steps[list[T]]:
    """Wait until each change has ended, and build the answers: of what was to change, and the error or None."""
    answers = []
    for subject, result in results:
        yield result if isinstance(result, Deferred) else None
        answers.append(answer(subject, error_of(result)))
    return answers


def settled(deferred: Deferred[T]) -> Steps[T]:
    """Wait for a Deferred and return its value. Raises what it fails with."""
    if not deferred.done:
        yield deferred
    return deferred.result()


def all_settled(deferreds: Iterable[Deferred[T]]) -> Steps[list[T]]:
    """Wait for each Deferred and return the values. Raises the first error."""
    values = []
    for number, deferred in enumerate(deferreds):
        values.append((yield from settled(deferred)))
        if not number % ITEMS_PER_STEP:
            yield None
    return values


class Distinct(NamedTuple, Generic[K, S]):
    """Items by their keys: the last one of each key, and the keys that came more than once."""

    items: dict[K, S]
    repeated: set[K]


def distinct_by(items: Iterable[S], key: Callable[[S], K]) -> Steps[Distinct[K, S]]:
    """Group items by key, some of them in a step."""
    found: Distinct[K, S] = Distinct({}, set())
    for number, item in enumerate(items):
        found_key = key(item)
        if found_key in found.items:
            found.repeated.add(found_key)
        found.items[found_key] = item
        if not number % ITEMS_PER_STEP:
            yield None
    return found


def taken_from(items: list[T]) -> Iterator[T]:
    """Take the items out of a list, the first one first: what was made of one is not kept until all are done."""
    items.reverse()
    while items:
        yield items.pop()


def let_go(held: list[list[Any]]) -> Steps[None]:
    """Free the contents of these lists, which nothing else holds, some of them in a step.

    The 50,000 parts of a long request and of its response take 20 ms to free, and would be freed all at once.
    """
    for elements in held:
        while elements:
            del elements[-FREED_PER_STEP:]
            yield None


class FairQueue(Generic[K, T]):
    """Items that wait, each for its client: clients take turns, and those of one client keep their order.

    Until an item is taken, each other client gives at most one more than there are items of its own client before it.
    """

    __slots__ = ("_clients",)

    def __init__(self) -> None:
        self._clients: OrderedDict[K, OrderedDict[T, None]] = OrderedDict()
        """Clients that have items, in the order of their turns."""

    def __bool__(self) -> bool:
        return bool(self._clients)

    def add(self, client: K, item: T) -> None:
        """Put an item after those of its client. A client that had none has its turn after all others."""
        self._clients.setdefault(client, OrderedDict())[item] = None

    def take(self) -> T:
        """Take the first item of the client whose turn it is; there must be one."""
        client, items = self._clients.popitem(last=False)
        item, _ = items.popitem(last=False)
        if items:
            self._clients[client] = items
        return item

    def discard(self, client: K, item: T) -> None:
        """Drop an item if it is here; its client's others keep their turn."""
        items = self._clients.get(client)
        if items is not None:
            items.pop(item, None)
            if not items:
                del self._clients[client]


class LargeRequest:
    """A large request of a client. Its jobs, those that its own steps begin too, note when they work."""

    __slots__ = ("client", "worked_ms")

    def __init__(self, client: Hashable) -> None:
        self.client = client
        self.worked_ms = 0.0
        """The end of its last slice."""


class StepRunner:
    """Advances the long requests of one loop in turn. Loop thread only."""

    __slots__ = (
        "_call_later",
        "_call_soon",
        "_is_in_turn",
        "_is_looking",
        "_is_scheduled",
        "_jobs",
        "_queued",
        "_under_way",
        "clock",
        "large",
        "long_waits",
    )

    def __init__(
        self,
        call_soon: Callable[..., object],
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """``clock`` is in milliseconds and monotonic; ``call_later`` takes milliseconds, and ``queue`` needs it."""
        self._call_soon = call_soon
        self._call_later = call_later
        self._jobs: deque[Job] = deque()
        self._queued: FairQueue[Hashable, Job] = FairQueue()
        """Large requests that are not begun. Those whose connections have gone are not among them."""
        self._under_way: set[LargeRequest] = set()
        self._is_looking = False
        self.large: LargeRequest | None = None
        """The large request whose slice this is."""
        self.long_waits: set[Job] = set()
        """Jobs that took a slice or more and now wait, most for a thread, with all the objects they made."""
        self._is_scheduled = self._is_in_turn = False
        self.clock = clock

    def run(self, steps: Steps[T]) -> T | Job:
        """Do the first slice of ``steps``: what it returns if it ends there, else the job that goes on with it.

        Raises the KafkaError or CloseConnectionError that the steps raise in that slice; they raise nothing else.
        """
        job = Job(self, steps)
        job.advance()
        return job.done.result() if job.done.done else job

    def queue(self, client: Hashable, steps: Steps[Any]) -> Job:
        """Have the steps of a client's large request done, once fewer than LARGE_AT_ONCE are at work and it is this
        client's turn."""
        large = LargeRequest(client)
        job = Job(self, self._hold(large, steps), large)
        self._queued.add(client, job)
        self._begin_large()
        return job

    def _hold(self, large: LargeRequest, steps: Steps[T]) -> Steps[T]:
        """Do the steps of a large request, then begin the next one."""
        large.worked_ms = self.clock()
        self._under_way.add(large)
        try:
            yield None
            return (yield from steps)
        finally:
            self._under_way.discard(large)
            self._begin_large()

    def _begin_large(self) -> None:
        """Begin as many of the large requests as may be under way; look again after a while if some are left."""
        while self._queued and len(self._under_way) < LARGE_AT_ONCE:
            job = self._queued.take()
            job.begin()  # counted, until it ends or is closed
            self.add(job)
        if self._queued and not self._is_looking and self._call_later is not None:
            self._is_looking = True
            self._call_later(LONG_WAIT_MS, self._pass_over_waits)

    def _pass_over_waits(self) -> None:
        """Count the large requests no longer that have waited for LONG_WAIT_MS."""
        self._is_looking = False
        since = self.clock() - LONG_WAIT_MS
        at_work = {job.large for job in self._jobs}
        self._under_way = {large for large in self._under_way if large in at_work or large.worked_ms > since}
        self._begin_large()

    def is_busy(self) -> bool:
        """Return whether a job has its next slice or waits for it, or a long one waits for something else. Any
        thread, so what becomes true is set before what becomes false."""
        return self._is_in_turn or bool(self._jobs or self.long_waits)

    def add(self, job: Job) -> None:
        """Give this job slices from the next turn on."""
        self._jobs.append(job)
        self._schedule()

    def forget(self, job: Job) -> None:
        """Take a job that no client waits for out of the queue and of the long waits."""
        self.long_waits.discard(job)
        if job.large is not None:
            self._queued.discard(job.large.client, job)

    def finish(self) -> None:
        """Advance all jobs until each has ended or waits, however long that takes: the loop is about to end."""
        while self._jobs:
            self._turn()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._call_soon(self._turn)
            self._is_scheduled = True

    def _turn(self) -> None:
        """Advance the first job whose result is still waited for. What goes wrong around its slice ends that job, so
        that no connection waits for it."""
        self._is_scheduled, self._is_in_turn = False, True
        job: Job | None = None
        try:
            while self._jobs:
                job = self._jobs.popleft()
                if not (job.done.abandoned or job.done.done):
                    job.advance()
                    break
        except Exception as error:
            logger.exception("a request's steps cannot go on")
            if job is not None:
                job.refuse(error)
        finally:
            self._is_in_turn = False
            if self._jobs:
                self._schedule()


class Job:
    """Steps that are under way. ``done`` settles with what they return or raise; abandoning it closes them."""

    __slots__ = ("_is_hurried", "_is_running", "_runner", "_steps", "_waiting", "done", "large", "seconds")

    def __init__(self, runner: StepRunner, steps: Steps[Any], large: LargeRequest | None = None) -> None:
        """``large`` is the large request that this is; a job begun in its slice is part of it."""
        self._runner = runner
        self.large = large or runner.large
        self._steps = steps
        self._waiting: Deferred[Any] | None = None
        self._is_running = self._is_hurried = False
        self.done: Deferred[Any] = Deferred()
        self.done.on_abandon(self._close)
        self.done.on_hurry(self._hurry)
        self.seconds = 0.0
        """How long the slices took in all."""

    def begin(self) -> None:
        """Do the first step by itself, which waits for nothing."""
        next(self._steps)

    def advance(self) -> None:
        """Do one slice, then queue for the next one, or wait for what the steps wait for."""
        began = self._runner.clock()
        self._is_running = True
        try:
            self._waiting = self._slice(began + SLICE_MS)
        except StopIteration as end:
            self.seconds += (self._runner.clock() - began) / 1000
            if not self.done.abandoned:
                self.done.complete(end.value)
        except (KafkaError, CloseConnectionError) as error:
            self.done.fail(error)
        except Exception:
            logger.exception("a request's steps failed")
            self.done.fail(CloseConnectionError("a request cannot be answered: see the log"))
        else:
            self._is_running = False
            self.seconds += (self._runner.clock() - began) / 1000
            self._go_on()

    def refuse(self, _: Exception) -> None:
        """End the steps where they stand; the connection of their request closes."""
        self._is_running = False
        self._runner.long_waits.discard(self)
        if not (self.done.done or self.done.abandoned):
            self._steps.close()
            self.done.fail(CloseConnectionError("a request cannot be answered: see the log"))

    def _slice(self, until: float) -> Deferred[Any] | None:
        """Do steps until the clock says so, or until one has to wait for what is returned. Raises what they raise."""
        runner, large, advance = self._runner, self.large, self._steps.__next__
        clock, around, runner.large = runner.clock, runner.large, large
        try:
            while True:
                waiting = advance()
                if waiting is not None and not waiting.done:
                    return waiting
                if clock() >= until:
                    return None
        finally:
            runner.large = around
            if large is not None:
                large.worked_ms = clock()

    def _go_on(self) -> None:
        if self.done.abandoned:
            self._steps.close()  # by one of its own steps, which could not be closed while it ran
        elif self._waiting is None:
            self._runner.add(self)
        else:
            if self.seconds * 1000 >= SLICE_MS:
                self._runner.long_waits.add(self)
            self._waiting.on_done(self._resume, self.refuse)
            if self._is_hurried:
                self._hurry()

    def _resume(self, _: Deferred[Any]) -> None:
        self._waiting = None
        if not self.done.abandoned:
            self._runner.add(self)
        self._runner.long_waits.discard(self)

    def _hurry(self) -> None:
        """Hurry what the steps wait for; what they will wait for, where they have not come to it yet."""
        self._is_hurried = True
        if self._waiting is not None:
            self._waiting.hurry()

    def _close(self) -> None:
        self._runner.forget(self)
        if not self._is_running:
            self._steps.close()
