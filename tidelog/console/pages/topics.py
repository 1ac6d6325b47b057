"""The pages of topics: a list by name, and one topic with its partitions, sizes, offsets, indices and configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.metadata.image import INTERNAL_TOPICS
from tidelog.broker.metadata.metadata_image import NO_LEADER
from tidelog.client.admin.configs import OWN_SOURCES, Resource, describe_configs
from tidelog.client.admin.nodes import describe_log_dirs
from tidelog.client.admin.offsets import log_ends, log_starts
from tidelog.client.admin.topics import Partition, Topic, describe_topics
from tidelog.console.view import Listing, Page, View, ask_for, describable_names, list_after, slice_from
from tidelog.log.files.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

Offsets = dict[tuple[str, int], int]


class TopicRow(NamedTuple):
    """A topic and the bytes of its logs on this broker; None if unknown."""

    topic: Topic
    size: int | None


class PartitionRow(NamedTuple):
    """A partition with size and offsets of its log, and the number of offsets not indexed yet; None if unknown."""

    partition: Partition
    size: int | None
    start: int | None
    end: int | None
    index_lag: int | None

    @property
    def offsets(self) -> int | None:
        """Number of offsets from start to end, which is an upper bound of the records."""
        return None if self.start is None or self.end is None else self.end - self.start


def list_page(view: View) -> Page:
    """Build the model of the page of all topics."""
    wanted, with_internal = view.text("find"), view.text("internal") == "1"
    names = (
        name for name in all_names(view) if wanted in name and (with_internal or name not in INTERNAL_TOPICS)
    )  # fmt: skip
    after = view.text("after")
    listing = list_after(describable_names(view, (name for name in names if not after or name > after)), str, after)
    found = describe_topics(view.cluster, listing.rows)
    sizes = ask_for(lambda: sizes_of(view, listing.rows)).value or {}
    rows = [TopicRow(topic, sum_sizes(topic, sizes)) for topic in found]
    values = {
        "section": "topics", "listing": Listing(rows, listing.next), "find": wanted, "internal": with_internal,
    }  # fmt: skip
    return Page("topics.html", "Topics", values)


def all_names(view: View) -> list[str]:
    """List the names of all topics, sorted."""
    return sorted(view.sender.run_in_loop(lambda: list(view.sender.broker.metadata.topics)))


def sizes_of(view: View, topics: list[str]) -> dict[tuple[str, int], int]:
    """Read the bytes of each partition's log. Raises ClientError, KafkaError."""
    directories = describe_log_dirs(view.cluster, topics)
    return {(one.topic, one.partition): one.size for each in directories for one in each.partitions if not one.future}


def sum_sizes(topic: Topic, sizes: dict[tuple[str, int], int]) -> int | None:
    """Sum the bytes of a topic's logs on this broker; None if none is known."""
    found = [sizes[topic.name, one.partition] for one in topic.partitions if (topic.name, one.partition) in sizes]
    return sum(found) if found else None


def topic_page(view: View) -> Page:
    """Build the model of a topic's page. Raises ValueError, ClientError; KafkaError, also if there is no such topic."""
    name = view.path["topic"]
    (topic,) = describe_topics(view.cluster, [name])
    shown, following = slice_from(topic.partitions, view.number("start") or 0)
    configs = ask_for(lambda: describe_configs(view.cluster, Resource("topic", name), documentation=True))
    own = [entry for entry in configs.value or [] if entry.source in OWN_SOURCES["topic"]]
    texts = {entry.key: entry.value for entry in configs.value or []}
    values = {
        "section": "topics",
        "topic": topic,
        "rows": partition_rows(view, topic.name, shown),
        "next": following,
        "configs": configs,
        "own": own,
        "texts": texts,
    }
    return Page("topic.html", name, values)


def partition_rows(view: View, topic: str, partitions: Sequence[Partition]) -> list[PartitionRow]:
    """Build the rows of partitions, with sizes of logs on this broker, offsets and index lags."""
    topic_partitions = [(topic, one.partition) for one in partitions]
    sizes = ask_for(lambda: sizes_of(view, [topic])).value or {}
    starts, ends = offsets_of(view, topic, partitions)
    lags = index_lags(view, topic_partitions)
    return [
        PartitionRow(
            one,
            sizes.get(topic_partition),
            starts.get(topic_partition),
            ends.get(topic_partition),
            lags.get(topic_partition),
        )
        for one, topic_partition in zip(partitions, topic_partitions, strict=True)
    ]


def offsets_of(view: View, topic: str, partitions: Sequence[Partition]) -> tuple[Offsets, Offsets]:
    """Return starts and ends of the logs from each leader; those of leaders that fail are left out."""
    by_leader: dict[int, list[tuple[str, int]]] = {}
    for one in partitions:
        if one.leader != NO_LEADER:
            by_leader.setdefault(one.leader, []).append((topic, one.partition))
    starts: Offsets = {}
    ends: Offsets = {}
    for led in by_leader.values():
        found = ask_for(lambda led=led: (log_starts(view.cluster, led), log_ends(view.cluster, led))).value  # type: ignore[misc]
        if found is not None:
            starts.update(found[0])
            ends.update(found[1])
    return starts, ends


def index_lags(view: View, topic_partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the number of offsets that are not indexed yet, for partitions with an index here."""
    indexing = view.sender.run_in_loop(lambda: view.sender.broker.services.indexing.made)
    if indexing is None:
        return {}
    found = {
        topic_partition: indexing.indexer(TopicPartition(*topic_partition)) for topic_partition in topic_partitions
    }
    return {topic_partition: indexer.lag for topic_partition, indexer in found.items() if indexer is not None}
