"""A partition's name, and the name of its directory on disk."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """Topic name and partition index."""

    topic: str
    partition: int

    @property
    def directory_name(self) -> str:
        """``<topic>-<partition>``, the directory below a log directory."""
        return f"{self.topic}-{self.partition}"

    def __str__(self) -> str:
        return self.directory_name

    @classmethod
    def parse(cls, directory_name: str) -> TopicPartition:
        """Parse the partition that a directory belongs to.

        Raises ValueError when the name is not ``<topic>-<non-negative number>``.
        """
        topic, dash, number = directory_name.rpartition("-")
        if not dash or not topic or not (number.isascii() and number.isdigit()):
            raise ValueError(f"not a partition directory: {directory_name!r}, expected <topic>-<partition>")
        return cls(topic, int(number))
