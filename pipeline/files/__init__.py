"""Segment files as the pipeline sees them, local or in an object store: listing, stamps, headers and sparse indices.

Imports: ``tidelog.pipeline.errors``, ``tidelog.client``, ``tidelog.log`` and ``tidelog.protocol``.
Invariant: a directory's stamp counts only when it is ``SETTLED_S`` old; until then the directory is read again.
"""
