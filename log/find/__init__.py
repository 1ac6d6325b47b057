"""Search for records: hashes, rows, engines, look-ups and filters over the index files of a log.

Imports: ``tidelog.log.recovery`` and the layers below; not ``manager``, ``check`` or ``room``.
Invariant: a candidate of an index is compared with its record before it is shown, so no answer is stale.
"""
