"""Transactions: the coordinator's shard, the state of a transactional id, and markers.

Imports: ``tidelog.broker.coordinator.share_state`` and ``runtime``; never ``group``.
Invariant: the decision is in the log before any marker, and the completion after all markers. Loop thread only.
"""
