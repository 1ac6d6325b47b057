"""Partitions as this broker holds them: appends, reads, waiting requests, fetch sessions and group flush.

Imports: ``tidelog.broker.metadata``, ``loop``, ``metrics`` and the packages below the broker.
Invariant: with ``flush.messages`` the high watermark moves when the sync is done, so no consumer sees what a power loss
could take.
"""
