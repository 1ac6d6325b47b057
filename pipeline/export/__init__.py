"""Files and manifest of an exported table.

Imports: ``tidelog.pipeline.decode`` and the layers below; not ``audit``, ``sink`` or ``source``.
Invariant: a version of the manifest never changes, and no two files hold the same row.
"""
