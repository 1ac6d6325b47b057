"""Log compaction by key.

Imports: ``tidelog.log`` and ``tidelog.protocol``; no event loop and no sockets.
Invariant: offsets never change, and a crash leaves either old segments or the new one that replaces them.
"""
