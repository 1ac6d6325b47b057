"""State of an internal topic's partition that is being loaded: its log is replayed to a new shard, chunk by chunk.

The module also has the limits of a chunk, and the pauses after failures.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from tidelog.broker.coordinator.runtime.replay import Shard
from tidelog.broker.coordinator.runtime.result import Parts

LOAD_CHUNK_BYTES = 128 * 1024
"""Bytes of a chunk: about 1,500 offset commits, 15 ms of work. A turn of the loop reads one chunk of a partition, the
turn of the partition's first request up to FIRST_TURN_CHUNKS."""
RETRY_MS = 1_000
"""Pause before the next try, if a partition's log cannot be read or written, or its shard was given up."""
MAX_RETRY_MS = 60_000
"""Longest pause after unexpected errors. The first is RETRY_MS, each further one is twice the one before."""
FIRST_TURN_CHUNKS = 4
"""Largest number of chunks that are read in the turn of a partition's first request. If the partition is not loaded by
then, the client must retry."""

S = TypeVar("S", bound=Shard)


class Loading(Generic[S]):
    """A partition that is being loaded: the first offset that was not replayed yet, and the end of its log."""

    __slots__ = ("end_offset", "next_offset", "partition", "parts", "shard")

    def __init__(self, partition: int, shard: S, next_offset: int, end_offset: int) -> None:
        self.partition = partition
        self.shard = shard
        self.next_offset = next_offset
        self.end_offset = end_offset
        self.parts: Parts | None = None
        """Remaining parts of the first long decision that the shard must execute before it is served, None before that
        decision begins."""
