"""Streams groups (KIP-1071): topologies, tasks, heartbeats and reconciliation.

Imports: what ``tidelog.broker.coordinator.group`` may.
Invariant: a heartbeat only adds records; the group changes when they are replayed. Loop thread only.
"""
