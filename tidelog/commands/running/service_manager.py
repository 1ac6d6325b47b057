"""Messages to systemd about a broker's process (sd_notify): it is ready, its loop is alive, it stops.

    READY=1      once clients are answered
    WATCHDOG=1   from the event loop, twice in the time after which systemd restarts a silent service (WatchdogSec)
    STOPPING=1   when the stop begins

Without ``NOTIFY_SOCKET`` in the environment there is no service manager, and this module is not imported. Source:
sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import contextlib
import os
import socket
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Mapping

SOCKET = "NOTIFY_SOCKET"
WATCHDOG = "WATCHDOG_USEC"
WATCHDOG_PROCESS = "WATCHDOG_PID"


class ServiceManager:
    """The service manager that started this process. Loop thread only."""

    def __init__(self, environment: Mapping[str, str], loop: AbstractEventLoop) -> None:
        address = environment[SOCKET]
        self._address = f"\0{address[1:]}" if address.startswith("@") else address  # @: an abstract socket
        self._loop = loop
        self._interval_s = watchdog_interval_s(environment)
        self._timer: TimerHandle | None = None

    def send_ready(self) -> None:
        """Send that the broker is ready, and from now on that its loop is alive."""
        self._tell("READY=1")
        self._keep_alive()

    def send_stopping(self) -> None:
        """Send that the stop has begun."""
        self._tell("STOPPING=1")

    def close(self) -> None:
        """Stop sending messages."""
        if self._timer is not None:
            self._timer.cancel()

    def _keep_alive(self) -> None:
        if self._interval_s > 0:
            self._tell("WATCHDOG=1")
            self._timer = self._loop.call_later(self._interval_s, self._keep_alive)

    def _tell(self, message: str) -> None:
        """Send a message. An error is ignored: the broker works without a service manager too."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messages:
            messages.setblocking(False)
            messages.sendto(message.encode(), self._address)


def watchdog_interval_s(environment: Mapping[str, str]) -> float:
    """Return the seconds between two WATCHDOG messages: half of systemd's limit; 0 if this process has none."""
    text = environment.get(WATCHDOG, "")
    if environment.get(WATCHDOG_PROCESS, str(os.getpid())) != str(os.getpid()) or not text.isdecimal():
        return 0.0
    return int(text) / 2_000_000
