"""Log compaction by key. Depends on log and protocol."""
