"""The data pipeline on Spark: logs as DataFrames, a sink, and the jobs that export, audit, index, compact, replay and
backfill logs.

It reads the segment files themselves, and requests at most the end offsets from a running broker. Only the option
``commitGroup``, the sink and the jobs that write to a topic send other requests.

Imports: ``tidelog.log``, ``tidelog.protocol``, ``tidelog.client``, and in ``jobs.compact`` ``tidelog.cleaner``; never
``tidelog.broker``.
Invariant: no file of a running broker is changed. Only jobs that have locked a data directory write to its logs.
"""
