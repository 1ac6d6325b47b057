"""Shared parts of a loop's connections: the receive buffer, the dispatcher, the limits, and the sweep.

The sweep is a timer that runs while some connection holds a buffer, owes bytes, or has received something since the
last sweep. It closes connections that are slow or were reset, and releases unused buffers. Loop thread only.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Event
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.broker.loop.timers import TimerQueue
from tidelog.broker.metrics.registry import Metrics
from tidelog.broker.metrics.request_times import RequestTimes
from tidelog.broker.network.request_memory import RequestMemory
from tidelog.broker.network.wakefulness import Wakefulness
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.protocol.frames import anonymous_memory

if TYPE_CHECKING:
    from tidelog.broker.network.connection import Connection

SCRATCH_BYTES = 256 * 1024
"""Size of the receive buffer that all connections of a loop share."""
SWEEP_PER_TURN = 256
"""Largest number of connections swept in one turn of the loop, so that a sweep over ten thousand does not block it."""
SWEEP_MS = 500
"""Time between two sweeps, while there is something to sweep."""
STALL_MS = 30_000
"""A full socket must drain something within this time. A frame must be complete within it, unless the frame is large
(``connection.SLOWEST_BYTES_PER_S``)."""


@dataclass(slots=True, kw_only=True)
class Limits:
    """Limits of connections, from the configuration."""

    max_frame_bytes: int
    max_idle_ms: float
    stall_ms: float = STALL_MS
    awake_ms: float = 0.0
    """Window of ``Wakefulness``; 0: the loop always sleeps."""
    queued_bytes: int = 0
    """Largest number of bytes of incompletely received requests, over all connections; 0: no limit."""


def ignore_closed(_connection: Connection) -> None:
    """Do nothing when a connection closes."""


class Shell:
    """Receive buffer, dispatcher, limits and sweep of one loop's connections. Loop thread only."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        dispatcher: Dispatcher,
        timers: TimerQueue,
        executor: Executor,
        limits: Limits,
        metrics: Metrics | None = None,
        on_closed: Callable[[Connection], object] = ignore_closed,
    ) -> None:
        self.loop = loop
        self.dispatch = dispatcher.dispatch
        self.timers = timers
        self.executor = executor
        self.limits = limits
        self.monotonic_ms = timers.monotonic_ms
        self.turns = timers.turns
        self.wakefulness = Wakefulness(loop, timers.monotonic_ms, limits.awake_ms)
        self.times = RequestTimes((metrics or Metrics()).histogram)
        self.memory = RequestMemory(limits.queued_bytes)
        self.scratch = memoryview(anonymous_memory(SCRATCH_BYTES))
        self.connections: dict[Connection, None] = {}
        self.watched: dict[Connection, None] = {}
        """Connections that hold a buffer or have unsent bytes, for the sweep."""
        self.maybe_reset: dict[Connection, None] = {}
        """Connections that have received something since they were last checked for a reset."""
        self._silent: dict[Connection, None] = {}
        """Connections in the order of their accepts, without those that ``make_room`` has looked at."""
        self._on_closed = on_closed
        self._sweeping = False
        self._emptied: Event | None = None

    async def wait_until_empty(self) -> None:
        """Wait until no connection is left."""
        if self.connections:
            self._emptied = Event()
            await self._emptied.wait()

    def add(self, connection: Connection) -> None:
        """Add a connection that was accepted."""
        self.connections[connection] = None
        self._silent[connection] = None

    def watch_for_reset(self, connection: Connection) -> None:
        """Let the next sweep check whether a connection was reset after it received something."""
        self.maybe_reset[connection] = None
        self._schedule_sweep()

    def watch(self, connection: Connection) -> None:
        """Let sweeps inspect a connection that holds a buffer or has unsent bytes."""
        self.watched[connection] = None
        self._schedule_sweep()

    def _schedule_sweep(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self.timers.schedule(SWEEP_MS, self.sweep)

    def sweep(self) -> None:
        """Close connections of clients that are too slow or gone, and release unused buffers."""
        maybe_reset, self.maybe_reset = self.maybe_reset, {}
        self._sweep_some(list({**maybe_reset, **self.watched}))

    def _sweep_some(self, connections: list[Connection]) -> None:
        """Sweep SWEEP_PER_TURN connections; the others in the next turns."""
        now = self.monotonic_ms()
        for connection in connections[:SWEEP_PER_TURN]:
            if not connection.close_if_reset() and connection in self.watched and not connection.inspect(now):
                self.watched.pop(connection, None)
        rest = connections[SWEEP_PER_TURN:]
        if rest:
            self.loop.call_soon(self.turns.run, "sweep", lambda: self._sweep_some(rest))
            return
        self._sweeping = False
        if self.watched or self.maybe_reset:
            self._schedule_sweep()

    def make_room(self) -> bool:
        """Close a connection that was reset, else the oldest that has sent no request yet: descriptors are short.

        Returns whether one was closed. A connected client of which the dispatcher has had a request is never closed for
        this; the messages of a SASL exchange do not count.
        """
        before = len(self.connections)
        for connection in list(islice(self.maybe_reset, SWEEP_PER_TURN)):
            del self.maybe_reset[connection]
            connection.close_if_reset()
        while len(self.connections) == before and self._silent:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            if oldest.context.api_key < 0:
                oldest.close()
        return len(self.connections) < before

    def forget(self, connection: Connection) -> None:
        """Forget a connection that closed."""
        self.connections.pop(connection, None)
        self._silent.pop(connection, None)
        self.maybe_reset.pop(connection, None)
        self.watched.pop(connection, None)
        self.memory.note(connection, 0)
        self._on_closed(connection)
        if self._emptied is not None and not self.connections:
            self._emptied.set()
