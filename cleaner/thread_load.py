"""CPU share of another thread, by which a cleaning round sees whether the event loop is busy.

The share is read from the thread's CPU clock, so that the loop itself need not count anything.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

#: Shortest time between two readings of the clock: a shorter one says little, and a reading costs a system call.
READ_INTERVAL_MS = 10
#: A loop without clients uses less than this share of a processor; one that serves even a single client uses much more.
BUSY_SHARE = 0.05


class ThreadLoad:
    """CPU share that a thread used recently. Only one thread may call it.

    ``cpu_ms`` and ``wall_ms`` read the thread's CPU clock and a monotonic clock, both in milliseconds.
    """

    def __init__(self, cpu_ms: Callable[[], float], wall_ms: Callable[[], float]) -> None:
        self._cpu_ms = cpu_ms
        self._wall_ms = wall_ms
        self._is_busy = True
        self._at, self._used = wall_ms(), cpu_ms()

    def is_busy(self) -> bool:
        """Return whether the thread used more than BUSY_SHARE of a CPU between the last two readings, which are at
        least READ_INTERVAL_MS apart.

        Until there are two readings the thread counts as busy.
        """
        now = self._wall_ms()
        if now - self._at >= READ_INTERVAL_MS:
            used = self._cpu_ms()
            self._is_busy = used - self._used > BUSY_SHARE * (now - self._at)
            self._at, self._used = now, used
        return self._is_busy


def load_of_main_thread(wall_ms: Callable[[], float]) -> ThreadLoad | None:
    """Return the load of the main thread, which runs the event loop; None on other systems than Linux."""
    identity = threading.main_thread().ident
    if sys.platform != "linux" or identity is None:
        return None
    clock = time.pthread_getcpuclockid(identity)
    return ThreadLoad(lambda: time.clock_gettime(clock) * 1000, wall_ms)
