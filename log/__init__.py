"""Segments on disk in Kafka's format. Synchronous; depends on protocol alone."""
