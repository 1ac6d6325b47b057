"""Members of share groups (KIP-932): heartbeats and assignment. What they acquire is in ``broker.share``."""
