"""Logs of partitions: segments, indices and checkpoints on disk in Kafka's format.

Imports: ``tidelog.protocol``; no event loop and no sockets.
Invariant: an append publishes the log's new end last, and readers take no lock.
"""
