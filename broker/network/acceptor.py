"""Acceptor of one listener: it accepts connections while descriptors and limits allow.

    accepting --no descriptor left (EMFILE), or the reserve reached, and no connection gives way--> paused
    accepting --max.connections or the limit of TLS handshakes reached, or max.connection.creation.rate--> paused
    paused    --a connection closed, the rate allows one more, or RETRY_MS after another limit was reached--> accepting

A paused acceptor leaves clients in the kernel's backlog and removes its listener from the loop, which would spin
otherwise (faults.md F12). The system hands out the lowest free descriptor, so a number of ``limit - reserve`` or more
means that all below the reserve are in use. The reserve stays for segments, which must open while clients keep
connecting. Before the acceptor pauses for lack of descriptors, ``make_room`` closes a connection: one that is held for
its address's quota or waits in its TLS handshake, else one that was reset, else the oldest that has sent no request
yet. If it finds none, the acceptor pauses. Loop thread only.
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
from functools import partial

from tidelog.broker.loop.timers import Timer, TimerQueue
from tidelog.broker.network.listening import to_plain_address

logger = logging.getLogger(__name__)

ACCEPT_PER_TURN = 64
ACCEPT_MS = 0.25
"""Accepting ends after this time in a turn of the loop, so that connected clients are served. Accepting one takes 0.1
ms, and more if the new connection is refused, or another one is closed to make room."""
RETRY_MS = 100
"""Pause after a shortage or at a limit: meanwhile files may be closed, handshakes end, or max.connections be raised."""
LOG_EVERY_MS = 10_000
RECOUNT_MS = 1_000
"""Shortest time between two counts of open files while descriptors are short: a count reads a directory of /proc."""
RESERVED_SHARE = 8
"""One descriptor of this many is reserved for files: RESERVED_MINIMUM at least, half of all at most."""
RESERVED_MINIMUM = 64
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def raise_descriptor_limit() -> int:
    """Raise the limit of open descriptors as far as the system allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def first_reserved_descriptor(limit: int) -> int:
    """Return the descriptor number at which the reserve begins."""
    return limit - min(max(limit // RESERVED_SHARE, RESERVED_MINIMUM), limit // 2)


class ConnectionRate:
    """Limit of new connections a second for all listeners together: ``max.connection.creation.rate``.

    The connections of one second may come at once; unused ones of earlier seconds are not saved up. Loop thread only.
    """

    def __init__(self, read_limit: Callable[[], int], monotonic_ms: Callable[[], float]) -> None:
        self._read_limit = read_limit
        self._monotonic_ms = monotonic_ms
        self._next_due_ms = 0.0
        """Time at which the next connection would be due, had all come evenly spaced at the limit."""

    def wait_ms(self) -> float:
        """Return the milliseconds until one more may be accepted; 0 or less if it may be now."""
        return self._next_due_ms - self._monotonic_ms() - 1000.0 + 1000.0 / self._read_limit()

    def count(self) -> None:
        """Count one accepted connection."""
        self._next_due_ms = max(self._next_due_ms, self._monotonic_ms()) + 1000.0 / self._read_limit()


def count_open_descriptors() -> int:
    """Return how many descriptors this process has in use; 0 without /proc, or if no descriptor is left to read it."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


class DescriptorReserve:
    """Reserve of descriptors that connections must leave to files. Loop thread only.

    The number of an accepted descriptor shows the first shortage. After that the number of connections decides: a new
    connection gets the low number of one that was closed for it, so its number no longer shows that descriptors are
    short.
    """

    def __init__(
        self,
        first_reserved: int,
        count_connections: Callable[[], int],
        monotonic_ms: Callable[[], float],
        count_open: Callable[[], int] = count_open_descriptors,
    ) -> None:
        self._first_reserved = first_reserved
        self._count_connections = count_connections
        self._count_open = count_open
        self._monotonic_ms = monotonic_ms
        self._max_connections = sys.maxsize
        """Number of connections that leave the reserve to files, by the last count of open descriptors."""
        self._recount_after_ms = 0.0

    def is_touched(self, descriptor: int) -> bool:
        """Return whether the new connection, with ``descriptor``, takes from the reserve."""
        connections = self._count_connections()
        if descriptor < self._first_reserved and connections <= self._max_connections:
            return False
        now = self._monotonic_ms()
        if now >= self._recount_after_ms:
            self._recount_after_ms = now + RECOUNT_MS
            others = max(self._count_open(), descriptor + 1) - connections
            self._max_connections = self._first_reserved - others
        return connections > self._max_connections


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
        """``has_room`` returns whether the limits allow one more connection; ``make_room`` closes a connection to free
        its descriptor, and returns whether one was closed.
        """
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
        """Accept connections; do nothing if the acceptor does already or is closed."""
        if not self._accepting and not self._closed:
            self._accepting = True
            self._loop.add_reader(self._listener.fileno(), partial(self._timers.turns.run, "accept", self.on_readable))

    def pause(self) -> None:
        """Leave new clients in the backlog."""
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listener.fileno())

    def close(self) -> None:
        """Stop listening; clients in the backlog are refused."""
        self.pause()
        self._closed = True
        self._listener.close()

    def on_readable(self) -> None:
        """Accept waiting clients, at most ACCEPT_PER_TURN, until ACCEPT_MS have passed; the loop calls again for the
        rest."""
        until_ms = self._timers.monotonic_ms() + ACCEPT_MS
        for _ in range(ACCEPT_PER_TURN):
            if not self._has_room():
                self._pause_for(RETRY_MS)
                return
            if (wait_ms := self._rate.wait_ms()) > 0:
                self._pause_for(wait_ms)
                return
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                # Any other error means that this client disconnected before it was accepted.
                if error.errno in OUT_OF_RESOURCES and not self._go_on(str(error)):
                    return
                continue
            client.setblocking(False)
            self._rate.count()
            descriptor = client.fileno()
            self._on_accept(client, to_plain_address(address[0]))
            if self._reserve.is_touched(descriptor) and not self._go_on("only the reserve of descriptors is left"):
                return
            if self._timers.monotonic_ms() >= until_ms:
                return

    def _go_on(self, shortage: str) -> bool:
        """Close a connection because descriptors are short, or pause if none may be closed. Return whether to go on
        accepting."""
        has_made_room = self._make_room()
        now = self._timers.monotonic_ms()
        if now >= self._log_after_ms:
            self._log_after_ms = now + LOG_EVERY_MS
            remedy = (
                "closed a connection that was held, reset or had sent no request"
                if has_made_room
                else "accepting is paused"
            )
            logger.warning("%s: %s", shortage, remedy)
        if not has_made_room:
            self._pause_for(RETRY_MS)
        return has_made_room

    def _pause_for(self, wait_ms: float) -> None:
        self.pause()
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._timers.schedule(wait_ms, self.resume)
