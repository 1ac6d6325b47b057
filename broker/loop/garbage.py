"""Full garbage collections, when no long request is worked on.

Python's collector looks at all container objects at once, and nothing else runs meanwhile: with the 300,000 objects of
one long request that is 120 ms of a turn, and it comes just when such a request makes them. ``tidelog serve`` therefore
makes automatic full collections rare (``AUTOMATIC_THRESHOLD``), and a background job does them between requests, when
few objects are alive. What is no cycle is freed at once as always, and young cycles by the small collections.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from tidelog.broker.loop.background_jobs import Job

INTERVAL_MS = 5_000
WORTH_COLLECTING = 10
"""Collections of the middle generation since the last full one; Python's own trigger for a full one."""
AUTOMATIC_THRESHOLD = 500
"""Full collections without the job come after so many: 3.5 million objects that were not freed."""
MOST_DELAYS = 12


class GarbageCollector:
    """Decides when a full collection is due. In the threads of the background jobs, one at a time."""

    __slots__ = ("_collect", "_delays", "_is_busy", "_young_collections")

    def __init__(
        self,
        is_busy: Callable[[], bool],
        *,
        collect: Callable[[], object] = gc.collect,
        young_collections: Callable[[], int] = lambda: gc.get_count()[2],
    ) -> None:
        """``is_busy`` says that a long request is worked on; it is asked from another thread."""
        self._is_busy = is_busy
        self._collect = collect
        self._young_collections = young_collections
        self._delays = 0

    def run(self) -> None:
        """Collect if it is worth it, and not in the middle of a long request, unless that has gone on for a minute."""
        if self._young_collections() < WORTH_COLLECTING:
            return
        if self._is_busy() and self._delays < MOST_DELAYS:
            self._delays += 1
            return
        self._delays = 0
        self._collect()

    def job(self) -> Job:
        """The background job."""
        return Job("garbage", INTERVAL_MS, self.run)
