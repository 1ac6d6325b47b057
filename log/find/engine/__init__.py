"""Record-level work of indexing and looking up: plain reference, compiled routines, choice between them.

Imports: what ``tidelog.log.find`` may.
Invariant: results never depend on the engine that runs.
"""
