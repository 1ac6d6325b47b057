"""Streams groups (KIP-1071): topologies, tasks, heartbeats and reconciliation.

Imports: what ``tidelog.broker.coordinator.group`` may.
Invariant: a heartbeat decides on records, and they change the group when they are replayed. Loop thread only.
"""
