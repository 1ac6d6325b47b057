"""Job that runs full garbage collections while no long request is in progress, over as few objects as possible.

A full collection of Python looks at all container objects at once, and no other thread runs meanwhile. With the 300,000
objects of one long request it takes 120 ms, and Python begins it just while such a request makes them. ``tidelog
serve`` therefore makes automatic full collections rare (``AUTOMATIC_THRESHOLD``), and a background job runs them:

==============================  ===================================================================================
no long request in progress     a full collection. If it takes LONG_MS or more, the remaining objects are frozen, so
                                that the next collection looks at newer objects only
a long request: in steps, in a  no collection, for a minute at most. From MANY_OBJECTS on all objects are frozen,
thread for records, or waiting  which takes no time; those in no cycle are freed all the same
COMPLETE_MS after the last      a full collection that looks at frozen objects too, for the cycles among them
collection of this kind
==============================  ===================================================================================

As in any Python process, objects in no cycle are freed at once, and young cycles by the small collections.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import NamedTuple

from tidelog.broker.loop.background_jobs import Job

INTERVAL_MS = 5_000
WORTH_COLLECTING = 10
"""Number of collections of the middle generation, since the last full one, after which the next full one runs; as in
Python itself."""
MANY_OBJECTS = 100
"""Collections of the middle generation since the last full one: 100 mean 700,000 objects that were not freed."""
AUTOMATIC_THRESHOLD = 500
"""Collections of the middle generation after which Python begins a full one: 3.5 million objects not freed."""
SERVING_THRESHOLDS = (700, 10, AUTOMATIC_THRESHOLD)
"""Arguments of ``gc.set_threshold``: small collections as in any Python process, full ones mostly by the job."""
MAX_DELAYS = 12
"""Rounds of the job in a row, a minute in all, that long requests may delay a collection."""
LONG_MS = 20.0
"""Duration from which on a full collection freezes the remaining objects, so that the next one is shorter."""
COMPLETE_MS = 3_600_000
"""Time between two collections that look at frozen objects too."""


class Collector(NamedTuple):
    """Functions of Python's ``gc`` module, and a clock in milliseconds."""

    collect: Callable[[], object] = gc.collect
    freeze: Callable[[], object] = gc.freeze
    unfreeze: Callable[[], object] = gc.unfreeze
    young_collections: Callable[[], int] = lambda: gc.get_count()[2]
    now_ms: Callable[[], float] = lambda: time.monotonic() * 1000


class GarbageCollector:
    """Runs full collections when they are due. Called by threads of the background jobs, one at a time."""

    __slots__ = ("_collector", "_complete_after_ms", "_delays", "_has_frozen", "_is_busy")

    def __init__(self, is_busy: Callable[[], bool], collector: Collector = Collector()) -> None:  # noqa: B008
        """``is_busy`` returns whether a long request is in progress. It is called in other threads than the loop's."""
        self._is_busy = is_busy
        self._collector = collector
        self._complete_after_ms = collector.now_ms() + COMPLETE_MS
        self._delays = 0
        self._has_frozen = False

    def run(self) -> None:
        """Collect if enough objects were made since the last collection, or frozen objects are to be looked at again. A
        long request delays the collection by a minute at most."""
        young = self._collector.young_collections()
        if young < WORTH_COLLECTING and not self._is_complete_due():
            return
        if self._is_busy() and self._delays < MAX_DELAYS:
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
        """Return whether frozen objects must be looked at again, however few were made since."""
        return self._has_frozen and self._collector.now_ms() >= self._complete_after_ms

    def _freeze(self) -> None:
        self._collector.freeze()
        self._has_frozen = True

    def job(self) -> Job:
        """Return the background job that calls ``run``."""
        return Job("garbage", INTERVAL_MS, self.run)
