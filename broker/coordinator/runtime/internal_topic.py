"""Interface through which coordinators use an internal topic; ``InternalTopicLog`` implements it."""

from __future__ import annotations

from typing import Protocol

from tidelog.broker.loop.deferred import Deferred


class TopicLog(Protocol):
    """An internal topic, with the operations that coordinators need."""

    def partition_count(self) -> int:
        """Return the number of partitions that the topic has, or will be created with."""
        ...

    def exists(self) -> bool: ...

    def is_led(self, partition: int) -> bool:
        """Return whether this broker leads the partition. If the topic does not exist, return whether this broker may
        create the topic."""
        ...

    def when_open(self, partition: int) -> Deferred[None] | None:
        """Begin to open a partition's log. Returns None if the log is open or the topic does not exist."""
        ...

    def leader_epoch(self, partition: int) -> int: ...

    def append(self, partition: int, batch: bytearray, transaction_version: int = 0) -> int:
        """Append one batch, and return its first offset. If the topic does not exist, it is created first. For a
        marker, ``transaction_version`` is the version (KIP-890) of its transaction. Raises KafkaError."""
        ...

    def when_committed(self, partition: int) -> Deferred[None] | None:
        """Return a Deferred that completes when all records appended so far are committed; None if there is nothing to
        wait for."""
        ...

    def start_offset(self, partition: int) -> int: ...

    def end_offset(self, partition: int) -> int: ...

    def read(self, partition: int, offset: int, max_bytes: int) -> bytes | memoryview:
        """Read complete batches from ``offset`` on, at least one if there is one. Raises KafkaError."""
        ...
