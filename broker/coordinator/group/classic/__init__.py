"""Classic groups (JoinGroup, SyncGroup, Heartbeat): members, joining, rebalances and assignments.

Imports: what ``tidelog.broker.coordinator.group`` may.
Invariant: only the fields of ``GroupMetadataValue`` are in the log; waiting requests are only in memory and end with
the process.
"""
