"""Requests for offsets of partitions: ListOffsets to each partition's leader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tidelog.client.cluster import Address, Cluster, ask, raise_for_code
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LATEST = -1
EARLIEST = -2
"""Timestamps in ListOffsets that mean the end and the start of a log."""
READ_COMMITTED = 1
MAX_TIME_MS = 2**63 - 1
_LIST_OFFSETS = 9
"""The newest version of ListOffsets that is used."""

TopicPartition = tuple[str, int]


def list_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], *, isolation_level: int = 0
) -> dict[TopicPartition, int]:
    """Return the first offset at or after each time (ms, LATEST, EARLIEST); -1 if no record is that late.

    Raises ClientError, KafkaError.
    """
    return cluster.retry_until_settled(lambda: _list_offsets(cluster, times, isolation_level))


def log_ends(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, isolation_level: int = 0
) -> dict[TopicPartition, int]:
    """Return the end of each log; with READ_COMMITTED its last stable offset. Raises ClientError, KafkaError."""
    return list_offsets(cluster, dict.fromkeys(partitions, LATEST), isolation_level=isolation_level)


def log_starts(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the start of each log. Raises ClientError, KafkaError."""
    return list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))


def offsets_from(
    cluster: Cluster, partitions: Iterable[TopicPartition], time_ms: int, *, isolation_level: int = 0
) -> dict[TopicPartition, int]:
    """Return the offset of each log's first record that is not older than a time; -1 if there is none, or if it is not
    below the last stable offset with ``isolation_level`` 1.

    A time before 1970 counts as 1970, because ListOffsets gives negative times meanings of their own. Raises
    ClientError, KafkaError.
    """
    times = dict.fromkeys(partitions, min(max(time_ms, 0), MAX_TIME_MS))
    return list_offsets(cluster, times, isolation_level=isolation_level)


def partitions_of(cluster: Cluster, topic: str) -> list[TopicPartition]:
    """List the partitions of a topic, with and without leaders. Raises ClientError, KafkaError."""
    return [(topic, number) for number in range(cluster.partition_count(topic))]


def group_by_leader(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[Address, dict[str, list[int]]]:
    """Group partitions by the broker that leads them, then by topic. Raises ClientError, KafkaError."""
    grouped: dict[Address, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for topic, partition in partitions:
        grouped[cluster.leader(topic, partition)][topic].append(partition)
    return grouped


def _list_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], isolation_level: int
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for address, topics in group_by_leader(cluster, times).items():
        asked = [
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(partition_index=number, timestamp=times[name, number]) for number in numbers
                ],
            )
            for name, numbers in topics.items()
        ]
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=asked)
        for topic in ask(cluster.client_for(address), request, ListOffsetsResponse, _LIST_OFFSETS).topics:
            for entry in topic.partitions:
                raise_for_code(entry.error_code, f"offsets of {topic.name}-{entry.partition_index}")
                found[topic.name, entry.partition_index] = entry.offset
    return found
