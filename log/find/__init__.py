"""Search for records by key, tag and time: index files, the indexer that fills them, look-ups and filters over them.

Imports: ``tidelog.log.recovery`` and the layers below; not ``manager``, ``check`` or ``directories``.
Invariant: an offset from an index is compared with its record before it is returned, so no result is stale.
"""
