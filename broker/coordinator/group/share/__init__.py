"""Members of share groups (KIP-932): heartbeats and assignment. Acquired records are in ``tidelog.broker.share``.

Imports: what ``tidelog.broker.coordinator.group`` may.
Invariant: ``replay`` alone changes a group, and a partition is assigned only when it has a durable state.
"""
