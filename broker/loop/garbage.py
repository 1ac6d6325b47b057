"""Full garbage collections, when no long request is worked on, and never of more objects than need be.

Python's collector looks at all container objects at once, and nothing else runs meanwhile, in no thread: with the
300,000 objects of one long request that is 120 ms, and it comes just when such a request makes them. ``tidelog serve``
therefore makes automatic full collections rare (``AUTOMATIC_THRESHOLD``), and a background job does them:

==============================  ===================================================================================
nothing long is worked on       a full collection; if it took LONG_MS, what is alive is frozen: the next one has to
                                look at newer objects alone
long work, in steps, in a       none. From MANY_OBJECTS on they are frozen as they are, which takes no time: what is
thread for records, or waiting  in no cycle is freed all the same
COMPLETE_MS after the last one  frozen objects are looked at again, for the cycles among them
==============================  ===================================================================================

Objects in no cycle are freed at once as always, and young cycles by the small collections.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import NamedTuple

from tidelog.broker.loop.background_jobs import Job

INTERVAL_MS = 5_000
WORTH_COLLECTING = 10
"""Collections of the middle generation since the last full one; Python's own trigger for a full one."""
MANY_OBJECTS = 100
"""So many collections of the middle generation are 700,000 objects that were not freed."""
AUTOMATIC_THRESHOLD = 500
"""Full collections without the job come after so many: 3.5 million objects that were not freed."""
SERVING_THRESHOLDS = (700, 10, AUTOMATIC_THRESHOLD)
"""Small collections come as in any Python, full ones by the job."""
MOST_DELAYS = 12
LONG_MS = 20.0
"""Longest time that a full collection may hold the interpreter: as long as a turn of the loop."""
COMPLETE_MS = 3_600_000


class Collector(NamedTuple):
    """Python's collector, and the clock by which collections are timed, in milliseconds."""

    collect: Callable[[], object] = gc.collect
    freeze: Callable[[], object] = gc.freeze
    unfreeze: Callable[[], object] = gc.unfreeze
    young_collections: Callable[[], int] = lambda: gc.get_count()[2]
    now_ms: Callable[[], float] = lambda: time.monotonic() * 1000


class GarbageCollector:
    """Decides when a full collection is due. In the threads of the background jobs, one at a time."""

    __slots__ = ("_collector", "_complete_after_ms", "_delays", "_has_frozen", "_is_busy")

    def __init__(self, is_busy: Callable[[], bool], collector: Collector = Collector()) -> None:  # noqa: B008
        """``is_busy`` says that a long request is worked on; it is asked from another thread."""
        self._is_busy = is_busy
        self._collector = collector
        self._complete_after_ms = collector.now_ms() + COMPLETE_MS
        self._delays = 0
        self._has_frozen = False

    def run(self) -> None:
        """Collect if it is worth it, and not in the middle of a long request, unless that has gone on for a minute."""
        young = self._collector.young_collections()
        if young < WORTH_COLLECTING and not self._is_complete_due():
            return
        if self._is_busy() and self._delays < MOST_DELAYS:
            self._delays += 1
            if young >= MANY_OBJECTS:
                self._freeze()
            return
        self._delays = 0
        self._collect()

    def _collect(self) -> None:
        began_ms = self._collector.now_ms()
        if self._is_complete_due():
            self._collector.unfreeze()
            self._has_frozen = False
            self._complete_after_ms = began_ms + COMPLETE_MS
        self._collector.collect()
        if self._collector.now_ms() - began_ms >= LONG_MS:
            self._freeze()

    def _is_complete_due(self) -> bool:
        """Return whether frozen objects are to be looked at again, also where little has come since."""
        return self._has_frozen and self._collector.now_ms() >= self._complete_after_ms

    def _freeze(self) -> None:
        self._collector.freeze()
        self._has_frozen = True

    def job(self) -> Job:
        """Describe the background job."""
        return Job("garbage", INTERVAL_MS, self.run)
