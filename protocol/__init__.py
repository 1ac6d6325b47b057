"""Kafka's wire protocol: decoding and encoding of frames, messages and records.

Imports: no other package of Tidelog; no sockets, threads, clocks or asyncio. Invariant: arrays and decompression are
bounded before memory is allocated for them.
"""
