"""Classic groups (JoinGroup, SyncGroup, Heartbeat): members, joining, rebalances and assignments."""
