"""Partitions whose replicas this broker has: appends, reads, waiting requests, fetch sessions and group flush.

Imports: ``tidelog.broker.metadata``, ``loop``, ``metrics`` and the packages below the broker. Invariant: with
``flush.messages=1`` the high watermark moves when the sync is done, so a power loss takes no record that a consumer has
seen.
"""
