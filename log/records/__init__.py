"""Work on single records: a plain Python reference and compiled routines.

Imports: ``tidelog.log.segment``, ``index``, ``files`` and ``system``, and ``tidelog.protocol``.
Invariant: the reference and the compiled routines give equal results.
"""
