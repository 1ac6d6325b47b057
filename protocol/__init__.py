"""Kafka's wire protocol: bytes to values and back.

Imports: no other package of Tidelog; no sockets, threads, clocks or asyncio.
Invariant: arrays and decompression are bounded before memory is taken for them.
"""
