"""Opening of a log: leftovers of swaps are resolved, indices are checked, and records that were not synced are scanned.

Imports: ``tidelog.log.unified_log`` and the layers below; not ``find``, ``manager`` or ``check``.
Invariant: no record below the recovery point is cut; plain Python and the compiled scan leave equal files and state.
"""
