"""Segment files as the pipeline sees them, local or in an object store: listing, stamps, headers and sparse indices.

Imports: ``errors`` and ``job_errors`` of ``tidelog.pipeline``, ``tidelog.log`` and ``tidelog.protocol``.
Invariant: a directory's stamp (``stamps``) counts only once the directory has not changed for ``SETTLED_S`` seconds;
until then the directory is read again.
"""
