"""Consumer groups of KIP-848: heartbeats, target assignment and reconciliation.

Imports: what ``tidelog.broker.coordinator.group`` may.
Invariant: only ``replay`` changes a group, and a partition has at most one owner.
"""
