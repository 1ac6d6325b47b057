"""The registry of metrics, and those of logs and of clients."""
