"""Record-level work of a round: the map of keys, tables of batches, and compiled routines with their plain references.

Imports: ``tidelog.cleaner.errors``, ``tidelog.log`` and ``tidelog.protocol``; not ``checkpoint``, ``config`` or
``throttle``.
Invariant: compiled routines and plain references keep the same records and write equal bytes before compression.
"""
