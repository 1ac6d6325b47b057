"""Long requests in steps: work as a generator that the loop advances a little in each of its turns.

A handler of requests with many elements is a generator function. It yields between elements and returns its response:

    yield None         other connections may be served here, before the next element
    yield deferred     go on when it has completed or failed; the generator reads its value or error
    return response    a response, or a Deferred of one, as any handler returns it

Work that fits into its first slice is finished in the turn in which it began. Other work waits in the one queue of a
:class:`StepRunner`, which gives the first job a slice of SLICE_MS in each turn of the loop. So a hundred long requests
hold the loop no longer than one does. Large requests (above ``LARGE_BYTES`` of the dispatcher) begin LARGE_AT_ONCE at a
time, and their clients take turns. Between two steps anything may happen: topics are deleted, groups change. A
generator therefore looks things up again, iterates over copies, and keeps no view of the receive buffer. When the
connection closes, the generator is closed at its ``yield`` (``GeneratorExit``). What it has done so far remains, as
when a client dies between two requests. Loop thread only.
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
"""Time that work may take before the loop serves others. A step is not interrupted, so it must take microseconds."""

LARGE_AT_ONCE = 4
"""Number of large requests that may be in progress at a time. The objects of one take ten times its bytes: a hundred at
a time would take gigabytes, and all would be answered late."""
LONG_WAIT_MS = 1000.0
"""A large request that has waited this long, for a follower, another broker or a client, lets the next one begin: it
may be waiting for one that has not begun."""

FREED_PER_STEP = ITEMS_PER_STEP = 64
"""Items that are freed, or handled, in one step."""


def strip_traceback(error: E) -> E:
    """Remove the traceback of an error that is kept in a list of results: the traceback refers to the frame that holds
    the list, which would be a reference cycle."""
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
    """Wait for the result of each subject, such as a resource of the request, and return ``answer(subject, error)`` of
    each. The error is None for success."""
    answers = []
    for subject, result in results:
        yield result if isinstance(result, Deferred) else None
        answers.append(answer(subject, error_of(result)))
    return answers


def wait_for(deferred: Deferred[T]) -> Steps[T]:
    """Wait for a Deferred and return its value. Raises what it fails with."""
    if not deferred.done:
        yield deferred
    return deferred.result()


def wait_for_all(deferreds: Iterable[Deferred[T]]) -> Steps[list[T]]:
    """Wait for each Deferred and return the values. Raises the first error."""
    values = []
    for number, deferred in enumerate(deferreds):
        values.append((yield from wait_for(deferred)))
        if not number % ITEMS_PER_STEP:
            yield None
    return values


class Distinct(NamedTuple, Generic[K, S]):
    """The last item of each key, and the keys that occurred more than once."""

    items: dict[K, S]
    repeated: set[K]


def find_distinct(items: Iterable[S], key: Callable[[S], K]) -> Steps[Distinct[K, S]]:
    """Find the last item of each key, and the repeated keys, ITEMS_PER_STEP items in a step."""
    found: Distinct[K, S] = Distinct({}, set())
    for number, item in enumerate(items):
        found_key = key(item)
        if found_key in found.items:
            found.repeated.add(found_key)
        found.items[found_key] = item
        if not number % ITEMS_PER_STEP:
            yield None
    return found


def take_each(items: list[T]) -> Iterator[T]:
    """Yield the items of a list in order, and remove each from it, so that the caller's loop frees it when done."""
    items.reverse()
    while items:
        yield items.pop()


def free_in_steps(held: list[list[Any]]) -> Steps[None]:
    """Free the contents of these lists, to which nothing else refers, FREED_PER_STEP items in a step.

    The 50,000 parts of a long request and of its response would be freed at once otherwise, in 20 ms.
    """
    for elements in held:
        while elements:
            del elements[-FREED_PER_STEP:]
            yield None


class FairQueue(Generic[K, T]):
    """Queue of clients' items: clients take turns, and the items of one client keep their order.

    Before an item with N earlier ones of its own client is taken, at most N + 1 items of each other client are taken.
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
        """Remove and return the first item of the client whose turn it is. The queue must not be empty."""
        client, items = self._clients.popitem(last=False)
        item, _ = items.popitem(last=False)
        if items:
            self._clients[client] = items
        return item

    def discard(self, client: K, item: T) -> None:
        """Remove an item if it is in the queue. Its client keeps its turn for its other items."""
        items = self._clients.get(client)
        if items is not None:
            items.pop(item, None)
            if not items:
                del self._clients[client]


class LargeRequest:
    """A large request of a client, and when one of its jobs last worked. Its own steps may begin further jobs."""

    __slots__ = ("client", "worked_ms")

    def __init__(self, client: Hashable) -> None:
        self.client = client
        self.worked_ms = 0.0
        """End of its last slice, by the runner's clock."""


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
        """Large requests that have not begun, without those whose connection has closed."""
        self._under_way: set[LargeRequest] = set()
        self._is_looking = False
        """Whether a call of ``_pass_over_waits`` is scheduled."""
        self.large: LargeRequest | None = None
        """The large request whose slice is running, or None."""
        self.long_waits: set[Job] = set()
        """Jobs that have worked for SLICE_MS or more and now wait, mostly for a thread. They hold many objects."""
        self._is_scheduled = self._is_in_turn = False
        self.clock = clock

    def run(self, steps: Steps[T]) -> T | Job:
        """Do the first slice of ``steps``. Returns their result if they end in it, else the job that continues them.

        Raises the KafkaError or CloseConnectionError of that slice; any other error becomes CloseConnectionError.
        """
        job = Job(self, steps)
        job.advance()
        return job.done.result() if job.done.done else job

    def queue(self, client: Hashable, steps: Steps[Any]) -> Job:
        """Queue the steps of a client's large request. They begin once fewer than LARGE_AT_ONCE are in progress and it
        is this client's turn."""
        large = LargeRequest(client)
        job = Job(self, self._hold(large, steps), large)
        self._queued.add(client, job)
        self._begin_large()
        return job

    def _hold(self, large: LargeRequest, steps: Steps[T]) -> Steps[T]:
        """Do the steps of a large request, which counts as in progress meanwhile. Then begin the next one."""
        large.worked_ms = self.clock()
        self._under_way.add(large)
        try:
            yield None
            return (yield from steps)
        finally:
            self._under_way.discard(large)
            self._begin_large()

    def _begin_large(self) -> None:
        """Begin queued large requests while fewer than LARGE_AT_ONCE are in progress. If some remain in the queue, look
        again after LONG_WAIT_MS."""
        while self._queued and len(self._under_way) < LARGE_AT_ONCE:
            job = self._queued.take()
            job.begin()  # adds it to _under_way, until it ends or is closed
            self.add(job)
        if self._queued and not self._is_looking and self._call_later is not None:
            self._is_looking = True
            self._call_later(LONG_WAIT_MS, self._pass_over_waits)

    def _pass_over_waits(self) -> None:
        """Count large requests that have waited for LONG_WAIT_MS as not in progress, and begin others."""
        self._is_looking = False
        since = self.clock() - LONG_WAIT_MS
        at_work = {job.large for job in self._jobs}
        self._under_way = {large for large in self._under_way if large in at_work or large.worked_ms > since}
        self._begin_large()

    def is_busy(self) -> bool:
        """Return whether a job runs or waits for its next slice, or ``long_waits`` has any. Jobs in their first slice
        do not count. Any thread may ask: a job is added to a new collection before it is removed from the old one."""
        return self._is_in_turn or bool(self._jobs or self.long_waits)

    def add(self, job: Job) -> None:
        """Give this job slices from the next turn on."""
        self._jobs.append(job)
        self._schedule()

    def forget(self, job: Job) -> None:
        """Remove a job from the queue and from ``long_waits``, because no client waits for it any more."""
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
        """Advance the first job for which a client still waits. An exception outside of its steps ends the job, so that
        no connection waits for it."""
        self._is_scheduled, self._is_in_turn = False, True
        job: Job | None = None
        try:
            while self._jobs:
                job = self._jobs.popleft()
                if not (job.done.abandoned or job.done.done):
                    job.advance()
                    break
        except Exception as error:
            logger.exception(
                "a long request cannot be continued because of a defect of the broker; its connection is closed"
            )
            if job is not None:
                job.refuse(error)
        finally:
            self._is_in_turn = False
            if self._jobs:
                self._schedule()


class Job:
    """Steps in progress. ``done`` settles with what they return or raise; abandoning ``done`` closes the generator."""

    __slots__ = ("_is_hurried", "_is_running", "_runner", "_steps", "_waiting", "done", "large", "seconds")

    def __init__(self, runner: StepRunner, steps: Steps[Any], large: LargeRequest | None = None) -> None:
        """``large`` is the large request that these steps handle. A job that begins within a slice of a large request
        belongs to that request, too."""
        self._runner = runner
        self.large = large or runner.large
        self._steps = steps
        self._waiting: Deferred[Any] | None = None
        self._is_running = self._is_hurried = False
        self.done: Deferred[Any] = Deferred()
        self.done.on_abandon(self._close)
        self.done.on_hurry(self._hurry)
        self.seconds = 0.0
        """Total time of its slices."""

    def begin(self) -> None:
        """Do the first step, which waits for nothing."""
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
            logger.exception("a long request failed because of a defect of the broker; its connection is closed")
            self.done.fail(CloseConnectionError("a request cannot be answered: see the log"))
        else:
            self._is_running = False
            self.seconds += (self._runner.clock() - began) / 1000
            self._go_on()

    def refuse(self, _: Exception) -> None:
        """Close the steps, and fail with the error that closes their request's connection."""
        self._is_running = False
        self._runner.long_waits.discard(self)
        if not (self.done.done or self.done.abandoned):
            self._steps.close()
            self.done.fail(CloseConnectionError("a request cannot be answered: see the log"))

    def _slice(self, until: float) -> Deferred[Any] | None:
        """Do steps until the time ``until``, or until one has to wait. Returns the Deferred that it waits for, or None.
        Raises what the steps raise."""
        runner, large, advance = self._runner, self.large, self._steps.__next__
        clock, outer, runner.large = runner.clock, runner.large, large
        try:
            while True:
                waiting = advance()
                if waiting is not None and not waiting.done:
                    return waiting
                if clock() >= until:
                    return None
        finally:
            runner.large = outer
            if large is not None:
                large.worked_ms = clock()

    def _go_on(self) -> None:
        """Queue for the next slice after one without a result, or continue when the awaited Deferred is settled."""
        if self.done.abandoned:
            self._steps.close()  # one of its own steps abandoned it: a running generator cannot be closed
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
        """Ask the owners of what the steps wait for, now and later, to answer at once (``Deferred.hurry``), because the
        client's next request waits."""
        self._is_hurried = True
        if self._waiting is not None:
            self._waiting.hurry()

    def _close(self) -> None:
        self._runner.forget(self)
        if not self._is_running:
            self._steps.close()
