"""The event loop's helpers: deferred results, steps, timers, turn clock, threads, garbage, jobs at an interval.

Imports: ``tidelog.broker.metrics`` and the packages below the broker.
Invariant: one long request works in a turn of the loop, for 2 ms (``SLICE_MS``), however many others wait. ``steps``
and ``turn_clock``: loop thread only.
"""
