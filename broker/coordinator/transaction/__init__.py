"""Transactions: the coordinator's shard, the state of a transactional id, and markers.

Imports: ``tidelog.broker.coordinator.share_state`` and ``runtime``; never ``group``.
Invariant: the prepare record is committed before any marker, and the complete record follows all markers. Loop thread
only.
"""
