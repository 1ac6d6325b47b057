"""A stream's position as Spark keeps it in the checkpoint, and the shares of partitions in one trigger.

    {"events":{"0":123,"1":99},"@topicIds":{"events":"XbCq..."}}

The first part is what Spark's Kafka source writes. The ids are an addition ('@' cannot stand in a topic's name): a
topic that was deleted and created again while the query was down has another id, which offsets alone do not show. A
position without ids, as in a checkpoint of Spark's Kafka source, is accepted; the next position has the ids.

Shares: a trigger's limit is divided over partitions in proportion to the offsets (or bytes) that wait in each, at least
one where any wait. So a small partition never starves, and the limit may be exceeded by one per partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.options.offset_json import PartitionOffsets
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.protocol.types import uuid_from_str, uuid_to_str

TOPIC_IDS = "@topicIds"
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset to read, by topic and partition, and the topics' ids."""

    offsets: PartitionOffsets = field(default_factory=dict)
    ids: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, directories: Iterable[PartitionDirectory], offsets: PartitionOffsets) -> StreamOffset:
        """Build the position of ``offsets`` with the topic ids of the directories."""
        named = {d.topic: d.topic_id for d in directories if d.topic_id is not None and d.topic in offsets}
        return cls(offsets, named)

    @classmethod
    def from_json(cls, parsed: Mapping[str, Any]) -> StreamOffset:
        """Parse a position from decoded JSON. Raises PipelineError when it is not a position of this source or of
        Spark's Kafka source.
        """
        try:
            ids = {str(topic): uuid_from_str(text) for topic, text in parsed.get(TOPIC_IDS, {}).items()}
            offsets = {
                str(topic): {int(number): int(offset) for number, offset in partitions.items()}
                for topic, partitions in parsed.items()
                if topic != TOPIC_IDS
            }
        except (ValueError, TypeError, AttributeError):
            raise PipelineError(
                f'the checkpoint holds the offset {parsed}: expected one such as {{"topic":{{"0":123}}}}'
            ) from None
        return cls(offsets, ids)

    def to_json(self) -> dict[str, Any]:
        """Build the values of Spark's JSON: topics and partitions ascending, so equal positions give equal text."""
        written: dict[str, Any] = {
            topic: {str(number): self.offsets[topic][number] for number in sorted(self.offsets[topic])}
            for topic in sorted(self.offsets)
        }
        if self.ids:
            written[TOPIC_IDS] = {topic: uuid_to_str(self.ids[topic]) for topic in sorted(self.ids)}
        return written

    def get(self, directory: PartitionDirectory) -> int | None:
        """Return the next offset of a partition; None when the position does not have the partition."""
        return self.offsets.get(directory.topic, {}).get(directory.partition)


def shares(waiting: Mapping[_Key, int], limit: int) -> dict[_Key, int]:
    """Divide ``limit`` in proportion to ``waiting``, at least 1 for each that is not 0.

    Return ``waiting`` if its sum is within the limit.
    """
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    taken: dict[_Key, int] = {}
    before = 0
    for key, size in waiting.items():
        # Rounded so that the shares add up to the limit.
        share = limit * (before + size) // total - limit * before // total
        taken[key] = max(1, share) if size else 0
        before += size
    return taken
