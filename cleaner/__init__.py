"""Log compaction by key.

Imports: ``tidelog.log`` and ``tidelog.protocol``; no event loop and no sockets.
Invariant: offsets never change, and a crash leaves the old or the new segments of a group, never a mixture.
"""
