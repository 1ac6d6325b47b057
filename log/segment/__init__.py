"""One segment file with its indices, the immutable list of a log's segments, and the walk over batch headers.

Imports: ``tidelog.log.index``, ``files`` and ``system``, and ``tidelog.protocol``.
Invariant: a snapshot of a log's segments never changes while a reader holds it.
"""
