"""The data pipeline on Spark: logs as DataFrames, and the jobs that export, audit, index, compact and replay them.

It reads segment files with the decoder of ``log``; of a running broker it asks at most the end offsets.

Imports: ``tidelog.log``, ``tidelog.protocol`` and ``tidelog.client``; never ``tidelog.broker``.
Invariant: no file of a running broker is changed; only ``jobs`` on a data directory that is locked write to its logs.
"""
