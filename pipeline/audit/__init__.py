"""Auditing logs: checks of one segment and its indices, producers, and buckets of counts and hashes.

Imports: ``tidelog.pipeline.decode`` and the layers below; not ``export``, ``sink`` or ``source``.
Invariant: damage is a finding, and the walk goes on by the rule of ``tidelog.log.segment.resync``, as an export does.
"""
