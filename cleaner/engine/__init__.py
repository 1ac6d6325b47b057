"""Record-level work of a round: map of keys, tables of batches, compiled routines with their plain references.

Imports: ``tidelog.cleaner.errors``, ``tidelog.log`` and ``tidelog.protocol``; not ``checkpoint``, ``config`` or
``throttle``.
Invariant: compiled routines and plain references give equal results.
"""
