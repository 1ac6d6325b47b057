"""Accepts connections of one listener, as many as there is room for.

    accepting --no descriptor left (EMFILE), or the reserve reached, and none gives way--> paused
    accepting --max.connections reached, or max.connection.creation.rate--> paused
    paused    --a connection closed, the rate allows one more, or RETRY_MS after descriptors were short--> accepting

A paused acceptor leaves clients in the kernel's backlog and takes its listener off the loop, so there is no spin (F12).
Descriptors are given out lowest first, so an accepted one above ``limit - reserve`` means that so many are in use:
the reserve stays for segments, which must open while clients knock. Before it pauses, a connection gives way
(``Shell.make_room``): one that was reset, else the oldest that has sent no request yet. Loop thread only.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable

from tidelog.broker.loop.timers import Timer, TimerQueue

logger = logging.getLogger(__name__)

ACCEPT_PER_TURN = 64
RETRY_MS = 100
"""Files other than connections may have been closed meanwhile."""
LOG_EVERY_MS = 10_000
RECOUNT_MS = 1_000
"""How often open files are counted while descriptors are short: a directory of /proc is read for it."""
RESERVED_SHARE = 8
"""One in so many descriptors is kept for segments and the store, and at least RESERVED_MINIMUM."""
RESERVED_MINIMUM = 64
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def raise_descriptor_limit() -> int:
    """Ask for as many descriptors as the system allows this process; returns the limit that holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def highest_client_descriptor(limit: int) -> int:
    """The descriptor number from which on a new connection eats into the reserve."""
    return limit - min(max(limit // RESERVED_SHARE, RESERVED_MINIMUM), limit // 2)


class ConnectionRate:
    """Tells how long to wait for the next connection: ``max.connection.creation.rate``, for all listeners together.

    A second's worth may come at once; what was not used is not saved up further. Loop thread only.
    """

    def __init__(self, read_limit: Callable[[], int], monotonic_ms: Callable[[], float]) -> None:
        self._read_limit = read_limit
        self._monotonic_ms = monotonic_ms
        self._paid_until_ms = 0.0
        """When all connections so far would have been accepted, one after the other at the limit."""

    def wait_ms(self) -> float:
        """Milliseconds until one more may be accepted; 0 or less: now."""
        return self._paid_until_ms - self._monotonic_ms() - 1000.0 + 1000.0 / self._read_limit()

    def count(self) -> None:
        """One was accepted."""
        self._paid_until_ms = max(self._paid_until_ms, self._monotonic_ms()) + 1000.0 / self._read_limit()


def count_open_descriptors() -> int:
    """The descriptors in use in this process; 0 when the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


class DescriptorReserve:
    """Tells when connections eat into the reserve of descriptors. Loop thread only.

    The number of an accepted descriptor shows the first shortage. From then on the number of connections decides: when
    connections of low descriptors give way, new ones get those, and high numbers come no more though all are in use.
    """

    def __init__(
        self,
        highest_descriptor: int,
        count_connections: Callable[[], int],
        monotonic_ms: Callable[[], float],
        count_open: Callable[[], int] = count_open_descriptors,
    ) -> None:
        self._highest = highest_descriptor
        self._count_connections = count_connections
        self._count_open = count_open
        self._monotonic_ms = monotonic_ms
        self._most_connections = sys.maxsize
        self._counted_until_ms = 0.0

    def is_touched(self, descriptor: int) -> bool:
        """Return whether the connection that got ``descriptor`` is one too many."""
        connections = self._count_connections()
        if descriptor < self._highest and connections <= self._most_connections:
            return False
        now = self._monotonic_ms()
        if now >= self._counted_until_ms:
            self._counted_until_ms = now + RECOUNT_MS
            others = max(self._count_open(), descriptor + 1) - connections
            self._most_connections = self._highest - others
        return connections > self._most_connections


class Acceptor:
    """One listening socket. ``on_accept(socket, peer host)`` takes over each connection."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        timers: TimerQueue,
        listener: socket.socket,
        *,
        on_accept: Callable[[socket.socket, str], None],
        has_room: Callable[[], bool],
        make_room: Callable[[], bool],
        reserve: DescriptorReserve,
        rate: ConnectionRate,
    ) -> None:
        self._loop = loop
        self._timers = timers
        self._listener = listener
        self._on_accept = on_accept
        self._has_room = has_room
        self._make_room = make_room
        self._log_after_ms = 0.0
        self._reserve = reserve
        self._rate = rate
        self._retry: Timer | None = None
        self._accepting = False
        self._closed = False

    def resume(self) -> None:
        """Accept again; harmless when it does already."""
        if not self._accepting and not self._closed:
            self._accepting = True
            self._loop.add_reader(self._listener.fileno(), self.on_readable)

    def pause(self) -> None:
        """Leave new clients in the backlog."""
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listener.fileno())

    def close(self) -> None:
        """Listen no more; clients in the backlog are refused."""
        self.pause()
        self._closed = True
        self._listener.close()

    def on_readable(self) -> None:
        """Take the clients that wait, a bounded number of them."""
        for _ in range(ACCEPT_PER_TURN):
            if not self._has_room():
                self.pause()
                return
            if (wait_ms := self._rate.wait_ms()) > 0:
                self._pause_for(wait_ms)
                return
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                # Else this client gave up while it waited.
                if error.errno in _OUT_OF_RESOURCES and not self._go_on(str(error)):
                    return
                continue
            client.setblocking(False)
            self._rate.count()
            descriptor = client.fileno()
            self._on_accept(client, address[0])
            if self._reserve.is_touched(descriptor) and not self._go_on("only the reserve of descriptors is left"):
                return

    def _go_on(self, shortage: str) -> bool:
        """Descriptors are short: go on if a connection gave way, else pause. Says which."""
        has_made_room = self._make_room()
        now = self._timers.monotonic_ms()
        if now >= self._log_after_ms:
            self._log_after_ms = now + LOG_EVERY_MS
            way = "connections that sent no request give way" if has_made_room else "accepting no connections meanwhile"
            logger.warning("%s: %s", shortage, way)
        if not has_made_room:
            self._pause_for(RETRY_MS)
        return has_made_room

    def _pause_for(self, wait_ms: float) -> None:
        self.pause()
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._timers.schedule(wait_ms, self.resume)
