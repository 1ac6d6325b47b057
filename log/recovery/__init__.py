"""Opening a log after a stop: leftovers of swaps, checked indices, and the scan of what was not synced.

Imports: ``tidelog.log.unified_log`` and the layers below; not ``find``, ``manager`` or ``check``.
Invariant: nothing below the recovery point is cut; plain Python and the compiled scan leave equal files and state.
"""
