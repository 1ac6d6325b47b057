"""Logs as Arrow batches in this process, without Spark and without a broker.

Imports: ``tidelog.pipeline.decode`` and the layers below; not ``audit``, ``export``, ``sink`` or ``source``.
Invariant: a scan gives the rows that ``format("tidelog")`` gives, in the order of topic, partition and offset.
"""
