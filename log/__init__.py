"""Logs of partitions: segments, indices and checkpoints on disk in Kafka's format.

Imports: ``tidelog.protocol``; no event loop and no sockets.
Invariant: an append publishes the log's new end once its bytes are in the file. Readers take the log's lock only after
an error, or to prove a transaction index.
"""
