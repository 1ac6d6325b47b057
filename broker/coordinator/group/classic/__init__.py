"""Classic groups (JoinGroup, SyncGroup, Heartbeat): members, joining, rebalances and assignments.

Imports: what ``tidelog.broker.coordinator.group`` may.
Invariant: only what ``GroupMetadataValue`` carries is in the log; requests that wait are soft state and die with the
process.
"""
