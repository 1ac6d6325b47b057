"""Interface of an internal topic, as coordinators need it."""

from __future__ import annotations

from typing import Protocol

from tidelog.broker.loop.deferred import Deferred


class TopicLog(Protocol):
    """An internal topic, as coordinators need it."""

    def partition_count(self) -> int:
        """Return the number of partitions it has, or will have once created."""
        ...

    def exists(self) -> bool: ...

    def is_led(self, partition: int) -> bool:
        """Return whether this broker leads the partition, or will create the topic."""
        ...

    def opening(self, partition: int) -> Deferred[None] | None:
        """Begin to open a partition's log; None where it is open, or where there is nothing to open."""
        ...

    def leader_epoch(self, partition: int) -> int: ...

    def append(self, partition: int, batch: bytearray, transaction_version: int = 0) -> int:
        """Append one batch (a marker has a version), and the topic if needed; return the offset. Raises KafkaError."""
        ...

    def uncommitted(self, partition: int) -> Deferred[None] | None:
        """Return a Deferred that settles once all that was appended so far is committed; None where it is."""
        ...

    def start_offset(self, partition: int) -> int: ...

    def end_offset(self, partition: int) -> int: ...

    def read(self, partition: int, offset: int, max_bytes: int) -> bytes | memoryview:
        """Read whole batches from ``offset`` on, at least one. Raises KafkaError."""
        ...
