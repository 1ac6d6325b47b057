"""Segments on disk in Kafka's format.

Imports: ``tidelog.protocol``; no event loop and no sockets.
Invariant: the end of a log is published last, and readers take no lock.
"""
