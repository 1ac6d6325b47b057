"""Lower priority for background threads, so that the threads that answer requests run first.

Linux gives every thread a nice value of its own. A thread with the value NICENESS loses its processor to the event loop
as soon as the loop wakes up; on an idle processor it is as fast as before. NICENESS is a compromise: a background
thread that loses its processor while it holds the interpreter lock keeps the loop waiting, and the lower its priority,
the longer. So it is not the lowest priority (docs/internals/cleaner.md has the figures).

A priority that was lowered cannot be raised again without a privilege. Threads and processes inherit it from the thread
that starts them. So only threads that do nothing but background work lower it: never those of a pool that also serves
requests, nor the main thread.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

logger = logging.getLogger(__name__)

NICENESS = 10


def give_way() -> None:
    """Lower the priority of the calling thread for good, on Linux, where each thread has its own.

    The main thread keeps its priority.
    """
    if sys.platform != "linux" or threading.current_thread() is threading.main_thread():
        return
    thread = threading.get_native_id()
    try:
        if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
    except OSError as error:  # a sandbox that forbids it: requests are answered more slowly then
        logger.info("%s keeps its priority: %s", threading.current_thread().name, error)
