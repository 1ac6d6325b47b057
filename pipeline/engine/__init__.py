"""Record-level work over segments: the walk over batches and the hash of records, with their plain reference.

Imports: ``tidelog.pipeline.files`` and the floors below.
Invariant: the kernels and the reference give equal results.
"""
