"""Consumer groups of KIP-848: heartbeats, target assignment and reconciliation."""
