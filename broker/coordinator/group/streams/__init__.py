"""Streams groups (KIP-1071): topologies, tasks, heartbeats and reconciliation."""
