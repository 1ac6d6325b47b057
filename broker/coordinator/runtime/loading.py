"""State of a partition whose log is being read, and the pace of loading."""

from __future__ import annotations

from typing import Generic, TypeVar

from tidelog.broker.coordinator.runtime.replay import Shard
from tidelog.broker.coordinator.runtime.result import Parts

LOAD_CHUNK_BYTES = 128 * 1024
"""Bytes that are read in a turn of the loop: about 1,500 offset commits, 15 ms of work."""
RETRY_MS = 1_000
"""A partition whose log is refused, or that was given up, is tried again after this time."""
MAX_RETRY_MS = 60_000
"""The longest pause between two loads that end with an unexpected error; each is twice the one before."""
FIRST_TURN_CHUNKS = 4
"""Chunks that are read while the first request of a partition waits; after them it is told to try again."""

S = TypeVar("S", bound=Shard)


class Loading(Generic[S]):
    """A partition whose log is being read."""

    __slots__ = ("end_offset", "next_offset", "partition", "parts", "shard")

    def __init__(self, partition: int, shard: S, next_offset: int, end_offset: int) -> None:
        self.partition = partition
        self.shard = shard
        self.next_offset = next_offset
        self.end_offset = end_offset
        self.parts: Parts | None = None
        """What is left of the first decision that the shard has to execute before it serves."""
