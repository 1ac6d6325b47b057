"""Partitions of an offset commit, divided into those that exist and those that are unknown.

The coordinator gets only those that exist, and may refuse the group, the member or the producer. The others are
answered as unknown even then. If none exists, the coordinator is not called: no group is created, and no transaction
gets a partition. Source: KafkaApis of Kafka 4.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.protocol.errors import KafkaError, UnknownTopicIdError, UnknownTopicOrPartitionError
from tidelog.protocol.schema.copies import with_fields
from tidelog.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from tidelog.broker.metadata.image import MetadataCache


class DividedTopics(NamedTuple):
    """Topics of a request: each is in one of the two lists or, with a part of its partitions, in both."""

    known: list[Any]
    unknown: list[tuple[Any, KafkaError]]
    """Topics with partitions that do not exist, each with its error; and topics without partitions."""


def divide(metadata: MetadataCache, topics: list[Any]) -> DividedTopics:
    """Divide the partitions of topics, which are found by id if they have one, else by name."""
    divided = DividedTopics([], [])
    for topic in topics:
        topic_id = getattr(topic, "topic_id", ZERO_UUID)
        image = metadata.find(topic.name) if topic_id == ZERO_UUID else metadata.topic_by_id(topic_id)
        count = 0 if image is None else image.partition_count
        known = [partition for partition in topic.partitions if 0 <= partition.partition_index < count]
        if known and len(known) == len(topic.partitions):
            divided.known.append(topic)
            continue
        if known:
            divided.known.append(with_fields(topic, partitions=known))
        is_unknown_id = image is None and topic_id != ZERO_UUID
        error = UnknownTopicIdError() if is_unknown_id else UnknownTopicOrPartitionError()
        left = [partition for partition in topic.partitions if not 0 <= partition.partition_index < count]
        divided.unknown.append((with_fields(topic, partitions=left), error))
    return divided


def join_answers(unknown: list[Any], known: list[Any]) -> list[Any]:
    """Merge two lists of answers, each topic once, unknown ones first."""
    found = {(topic.name, getattr(topic, "topic_id", None)): topic for topic in unknown}
    more = []
    for topic in known:
        same = found.get((topic.name, getattr(topic, "topic_id", None)))
        if same is None:
            more.append(topic)
        else:
            same.partitions.extend(topic.partitions)
    return [*unknown, *more] if unknown else known
