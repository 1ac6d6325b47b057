"""Record-level work over segments: the walk over batches and the hash of records, with their plain reference.

Imports: ``tidelog.pipeline.files`` and the layers below.
Invariant: the compiled routines and the reference give equal results.
"""
