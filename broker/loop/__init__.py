"""The event loop's helpers: deferred results, steps, timers, turn clock, threads, garbage, jobs at an interval.

Imports: ``tidelog.broker.metrics`` and the packages below the broker.
Invariant: a long request gets 2 ms of a turn (``SLICE_MS``), however many wait. ``steps`` and ``turn_clock``: loop
thread only.
"""
