"""The event loop's helpers: deferred results, work in steps, timers, the turn clock, threads, garbage collection, and
periodic jobs.

Imports: ``tidelog.broker.metrics`` and the packages below the broker.
Invariant: in one turn of the loop a single long request works, for 2 ms (``SLICE_MS``), even if many others wait.
Loop thread only, except where a docstring names other threads.
"""
