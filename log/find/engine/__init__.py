"""Record-level work of indexing and look-ups: a plain reference, compiled routines, and the choice between them.

Imports: the same as ``tidelog.log.find``.
Invariant: the reference and the compiled routines give equal results.
"""
