"""Accepts connections of one listener, as many as there is room for.

    accepting --no descriptor left (EMFILE), or the reserve reached--> paused --a second, or one closed--> accepting
    accepting --max.connections reached-----------------------------> paused --a connection closed-------> accepting

A paused acceptor leaves clients in the kernel's backlog and takes its listener off the loop, so there is no spin (F12).
Descriptors are given out lowest first, so an accepted descriptor above ``limit - reserve`` means that so many are
in use: the reserve stays for segments, which must open while clients knock. Loop thread only.
"""

from __future__ import annotations

import errno
import logging
import resource
import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable

from broker.timers import TimerQueue

logger = logging.getLogger(__name__)

ACCEPT_PER_TURN = 64
PAUSE_MS = 1_000
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
        highest_descriptor: int,
    ) -> None:
        self._loop = loop
        self._timers = timers
        self._listener = listener
        self._on_accept = on_accept
        self._has_room = has_room
        self._highest_descriptor = highest_descriptor
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
            try:
                client, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause_for_a_while(str(error))
                    return
                continue  # this client gave up while it waited
            client.setblocking(False)
            self._on_accept(client, address[0])
            if client.fileno() >= self._highest_descriptor:
                self._pause_for_a_while("only the reserve of descriptors is left")
                return

    def _pause_for_a_while(self, reason: str) -> None:
        logger.warning("accepting no connections for a while: %s", reason)
        self.pause()
        self._timers.schedule(PAUSE_MS, self.resume)
