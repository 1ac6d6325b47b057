"""The data pipeline on Spark: logs as DataFrames, and the jobs that export, audit, index, compact and replay them.

It reads the segment files themselves; a running broker is asked at most for end offsets.

Imports: ``tidelog.log``, ``tidelog.protocol`` and ``tidelog.client``; never ``tidelog.broker``.
Invariant: no file of a running broker is changed. Only jobs that have locked a data directory write to its logs.
"""
