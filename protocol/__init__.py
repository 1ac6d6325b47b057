"""Kafka's wire protocol: bytes to values and back. No sockets, files, clocks, threads or asyncio."""
