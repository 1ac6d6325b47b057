"""Members of share groups (KIP-932): heartbeats and assignment. ``tidelog.broker.share`` has the acquired records.

Imports: what ``tidelog.broker.coordinator.group`` may.
Invariant: only ``replay`` changes a group, and a partition is assigned only when it has a durable share state.
"""
