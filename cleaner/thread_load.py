"""CPU share of another thread: tells whether the event loop is busy.

A round asks between its steps. The share comes from the thread's processor clock, so the loop itself counts nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

#: Time between two looks: a shorter one says little, and a look costs a system call.
LOOK_MS = 10
#: A loop without clients uses less than this share of a processor, one that serves a single client much more.
BUSY_SHARE = 0.05


class ThreadLoad:
    """Tells whether a thread is busy, by the share of a processor it used lately. One thread may ask.

    ``cpu_ms`` and ``wall_ms`` are the thread's processor clock and a monotonic one, both in milliseconds.
    """

    def __init__(self, cpu_ms: Callable[[], float], wall_ms: Callable[[], float]) -> None:
        self._cpu_ms = cpu_ms
        self._wall_ms = wall_ms
        self._is_busy = True
        self._at, self._used = wall_ms(), cpu_ms()

    def is_busy(self) -> bool:
        """Return whether the thread used more than BUSY_SHARE of a CPU between the last two looks, LOOK_MS apart.

        Until there are two looks the thread counts as busy.
        """
        now = self._wall_ms()
        if now - self._at >= LOOK_MS:
            used = self._cpu_ms()
            self._is_busy = used - self._used > BUSY_SHARE * (now - self._at)
            self._at, self._used = now, used
        return self._is_busy


def load_of_main_thread(wall_ms: Callable[[], float]) -> ThreadLoad | None:
    """Return the load of the main thread, which runs the event loop; None on systems without clocks of threads."""
    identity = threading.main_thread().ident
    if sys.platform != "linux" or identity is None:
        return None
    clock = time.pthread_getcpuclockid(identity)
    return ThreadLoad(lambda: time.clock_gettime(clock) * 1000, wall_ms)
