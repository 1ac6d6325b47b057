"""What the connections of one loop share: the receive buffer, the dispatcher, the limits, and the sweep.

The sweep is a timer that runs while some connection holds a buffer or owes bytes. It closes clients that are too slow
and takes back buffers that are not used. Loop thread only.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Event
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.dispatch import Dispatcher
from broker.timers import TimerQueue
from broker.wakefulness import Wakefulness

if TYPE_CHECKING:
    from broker.connection import Connection

SCRATCH_BYTES = 256 * 1024
"""One receive takes at most this much; shared by all connections of a loop."""
SWEEP_MS = 500
"""How often half-open frames, stalled readers and kept buffers are looked at, while there are any."""
STALL_MS = 30_000
"""A frame must be complete, and a full socket must drain something, within this time."""


@dataclass(slots=True, kw_only=True)
class Limits:
    """What a connection may ask for; from the configuration."""

    max_frame_bytes: int
    max_idle_ms: float
    stall_ms: float = STALL_MS
    awake_ms: float = 0.0


class Shell:
    """What the connections of one loop share. Loop thread only."""

    def __init__(
        self, loop: AbstractEventLoop, dispatcher: Dispatcher, timers: TimerQueue, executor: Executor, limits: Limits
    ) -> None:
        self.loop = loop
        self.dispatch = dispatcher.dispatch
        self.timers = timers
        self.executor = executor
        self.limits = limits
        self.monotonic_ms = timers.monotonic_ms
        self.turns = timers.turns
        self.wakefulness = Wakefulness(loop, timers.monotonic_ms, limits.awake_ms)
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.connections: dict[Connection, None] = {}
        self.watched: dict[Connection, None] = {}
        self.on_closed: Callable[[Connection], None] | None = None
        self._sweeping = False
        self._emptied: Event | None = None

    async def wait_until_empty(self) -> None:
        """Return once no connection is left."""
        if self.connections:
            self._emptied = Event()
            await self._emptied.wait()

    def watch(self, connection: Connection) -> None:
        """Have ``sweep`` look at a connection that holds a buffer or owes bytes."""
        self.watched[connection] = None
        if not self._sweeping:
            self._sweeping = True
            self.timers.schedule(SWEEP_MS, self.sweep)

    def sweep(self) -> None:
        """Close who is too slow, take back buffers that are not used."""
        now = self.monotonic_ms()
        for connection in list(self.watched):
            if not connection.inspect(now):
                self.watched.pop(connection, None)
        self._sweeping = bool(self.watched)
        if self._sweeping:
            self.timers.schedule(SWEEP_MS, self.sweep)

    def forget(self, connection: Connection) -> None:
        """A connection closed."""
        self.connections.pop(connection, None)
        self.watched.pop(connection, None)
        if self.on_closed is not None:
            self.on_closed(connection)
        if self._emptied is not None and not self.connections:
            self._emptied.set()
