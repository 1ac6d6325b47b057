"""Auditing logs: checks of segments, indices and producers, buckets of counts and checksums, comparisons with tables.

Imports: ``tidelog.pipeline.decode`` and the layers below; not ``export``, ``sink`` or ``source``.
Invariant: damage is a finding, and the walk goes on by the rule of ``tidelog.log.segment.resync``, as an export does.
"""
