"""The topology of a Kafka Streams application, and the topics that it needs.

A topology is a list of subtopologies. Each reads topics (sources of the application, and repartition topics that
another subtopology writes) and may have state stores, each with a changelog topic. Task p of a subtopology reads
partition p of all these topics: there are as many tasks as the largest topic that it reads has partitions.

    repartition topics   have the number of partitions that the topology gives; else the largest number among the topics
                         that the writing subtopology reads. Copartitioned topics all have the same number
    changelog topics     have as many partitions as the subtopology has tasks

The broker creates repartition and changelog topics. ``configure`` is a pure function of the topology and the partition
counts of the existing topics. Source: KIP-1071.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any, NamedTuple

from tidelog.protocol.errors import KafkaError, StreamsInvalidTopologyError

SHOWN_TOPICS = 3

PartitionCounts = Callable[[str], int | None]
"""Function from the name of a topic to its partition count; None if it does not exist."""


class StatusCode(IntEnum):
    """Status code in a heartbeat's response."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Status(NamedTuple):
    """One status in a heartbeat's response, with its text."""

    code: StatusCode
    detail: str


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A repartition or changelog topic. 0 partitions or replicas mean that the number is not given."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


class CopartitionGroup(NamedTuple):
    """Topics that must have the same number of partitions, as positions in the subtopology's lists."""

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of the topology whose processors are connected directly, not only by topics."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    changelogs: tuple[InternalTopic, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    repartition_sources: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of all topics that the subtopology reads."""
        return (*self.source_topics, *(topic.name for topic in self.repartition_sources))


@dataclass(frozen=True, slots=True)
class Topology:
    """The topology of an application: its subtopologies in the order of their ids."""

    epoch: int
    subtopologies: tuple[Subtopology, ...] = ()

    @property
    def required_topics(self) -> set[str]:
        """Names of all topics that must exist: source, repartition source and changelog topics."""
        return {
            name
            for subtopology in self.subtopologies
            for name in (*subtopology.inputs, *(topic.name for topic in subtopology.changelogs))
        }

    @property
    def named_topics(self) -> list[str]:
        """Names of all topics in the topology, sorted."""
        sinks = [name for subtopology in self.subtopologies for name in subtopology.repartition_sinks]
        return sorted(self.required_topics.union(sinks))

    def reader_of(self, topic: str) -> str | None:
        """Return the id of the subtopology that reads a topic, or None."""
        return next((part.subtopology_id for part in self.subtopologies if topic in part.inputs), None)


@dataclass(frozen=True, slots=True)
class ConfiguredSubtopology:
    """A subtopology whose number of tasks and partition counts are known."""

    subtopology_id: str
    tasks: int
    inputs: tuple[str, ...]
    source_topics: tuple[str, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    repartition_sources: tuple[InternalTopic, ...] = ()
    changelogs: tuple[InternalTopic, ...] = ()

    @property
    def is_stateful(self) -> bool:
        return bool(self.changelogs)


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """A topology compared with the existing topics. It is ready if ``problem`` is None. ``missing`` are topics to
    create."""

    subtopologies: Mapping[str, ConfiguredSubtopology] | None = None
    missing: tuple[InternalTopic, ...] = ()
    problem: Status | None = None

    @property
    def is_ready(self) -> bool:
        return self.problem is None


class ConfigurationError(Exception):
    """Source topics are missing, or partition counts contradict each other: those of existing topics, and those that
    the topology gives."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.detail)
        self.status = status


def topology_of(message: Any) -> Topology:
    """Convert the topology of a heartbeat or of a StreamsGroupTopology record, which have the same fields."""
    parts = (
        Subtopology(
            part.subtopology_id,
            tuple(part.source_topics),
            tuple(part.source_topic_regex),
            tuple(map(_internal_topic, part.state_changelog_topics)),
            tuple(part.repartition_sink_topics),
            tuple(map(_internal_topic, part.repartition_source_topics)),
            tuple(map(_copartition_group, part.copartition_groups)),
        )
        for part in message.subtopologies
    )
    return Topology(message.epoch, tuple(sorted(parts, key=lambda part: part.subtopology_id)))


def _internal_topic(topic: Any) -> InternalTopic:
    configs = tuple(sorted((config.key, config.value) for config in topic.topic_configs))
    return InternalTopic(topic.name, topic.partitions, topic.replication_factor, configs)


def _copartition_group(group: Any) -> CopartitionGroup:
    return CopartitionGroup(
        tuple(group.source_topics), tuple(group.source_topic_regex), tuple(group.repartition_source_topics)
    )


def check_topology(topology: Topology) -> None:
    """Check a topology, without the existing topics. Raises StreamsInvalidTopologyError."""
    for part in topology.subtopologies:
        if not part.inputs:
            raise StreamsInvalidTopologyError(f"No source topics found for subtopology {part.subtopology_id}")
        for topic in part.changelogs:
            if topic.partitions:
                raise StreamsInvalidTopologyError(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}."
                )
        for group in part.copartition_groups:
            for positions, names in (
                (group.source_topics, part.source_topics),
                (group.repartition_source_topics, part.repartition_sources),
            ):
                if not all(0 <= position < len(names) for position in positions):
                    raise StreamsInvalidTopologyError(
                        f"A copartition group of subtopology {part.subtopology_id} names a topic it does not read."
                    )


def configure(topology: Topology, existing: PartitionCounts) -> ConfiguredTopology:
    """Compute the partition counts and the missing topics. Raises StreamsInvalidTopologyError if no partition counts
    are possible.
    """
    try:
        _check_sources(topology, existing)
        counts = _compute_counts(topology, existing)
        parts = {part.subtopology_id: _configure(part, existing, counts) for part in topology.subtopologies}
        missing = _find_missing(parts.values(), existing)
    except ConfigurationError as error:
        return ConfiguredTopology(problem=error.status)
    if not missing:
        return ConfiguredTopology(parts)
    detail = "Internal topics are missing: " + summary(topic.name for topic in missing)
    return ConfiguredTopology(parts, missing, Status(StatusCode.MISSING_INTERNAL_TOPICS, detail))


def _check_sources(topology: Topology, existing: PartitionCounts) -> None:
    missing = {name for part in topology.subtopologies for name in part.source_topics if existing(name) is None}
    if missing:
        detail = f"Source topics {summary(sorted(missing))} are missing."
        raise ConfigurationError(Status(StatusCode.MISSING_SOURCE_TOPICS, detail))


def summary(names: Iterable[str]) -> str:
    """Return the first SHOWN_TOPICS names as text, and the number of others."""
    names = list(names)
    more = len(names) - SHOWN_TOPICS
    return ", ".join(names[:SHOWN_TOPICS]) + (f" and {more} additional topics" if more > 0 else "")


def _compute_counts(topology: Topology, existing: PartitionCounts) -> dict[str, int]:
    """Compute the partition counts of all internal topics."""
    counts = _repartition_counts(topology, existing)
    fixed = {topic.name for part in topology.subtopologies for topic in part.repartition_sources if topic.partitions}
    repartition = {topic.name for part in topology.subtopologies for topic in part.repartition_sources}
    for part in topology.subtopologies:
        for names in _copartition_groups(part):
            counts.update(_copartition(names, fixed, repartition, lambda name: _count(name, existing, counts)))
    for part in topology.subtopologies:
        tasks = max(_count(name, existing, counts) for name in part.inputs)
        counts.update((topic.name, tasks) for topic in part.changelogs)
    return counts


def _count(name: str, existing: PartitionCounts, counts: Mapping[str, int]) -> int:
    found = existing(name)
    return counts[name] if found is None else found


def _copartition_groups(part: Subtopology) -> Iterator[set[str]]:
    for group in part.copartition_groups:
        names = {part.source_topics[position] for position in group.source_topics}
        yield names | {part.repartition_sources[position].name for position in group.repartition_source_topics}


def _repartition_counts(topology: Topology, existing: PartitionCounts) -> dict[str, int]:
    """Return the partition count of each repartition topic: the given one, else the largest of its writer's sources
    that are known then. Source: RepartitionTopics of Kafka 4.3.

    Writers are looked at in their order. A source may be a repartition topic itself: when its count becomes known, the
    subtopologies that read it are looked at again, those before its writer in the next pass.
    """
    parts = topology.subtopologies
    counts = {topic.name: topic.partitions for part in parts for topic in part.repartition_sources if topic.partitions}
    writers = [part for part in parts if any(name not in counts for name in part.repartition_sinks)]
    readers: dict[str, list[int]] = {}
    for number, part in enumerate(writers):
        for topic in part.repartition_sources:
            readers.setdefault(topic.name, []).append(number)
    due = [(0, number) for number in range(len(writers))]  # a heap of passes and numbers of writers
    left = set(range(len(writers)))
    while due:
        pass_number, number = heappop(due)
        largest = _largest_source(writers[number], existing, counts) if number in left else None
        if largest is None:
            continue
        left.discard(number)
        for name in writers[number].repartition_sinks:
            if name not in counts:
                counts[name] = largest
                for reader in readers.get(name, ()):
                    heappush(due, (pass_number + (reader <= number), reader))
    if left:
        raise StreamsInvalidTopologyError(
            "Failed to compute number of partitions for all repartition topics. There may be loops in the topology "
            "that cannot be resolved."
        )
    if any(topic.name not in counts for part in parts for topic in part.repartition_sources):
        raise StreamsInvalidTopologyError(
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic is "
            "never used as a sink topic."
        )
    return counts


def _largest_source(part: Subtopology, existing: PartitionCounts, counts: Mapping[str, int]) -> int | None:
    """Return the largest partition count of the topics that a subtopology reads; None if none is known."""
    known = [*map(existing, part.source_topics), *(counts.get(topic.name) for topic in part.repartition_sources)]
    return max((count for count in known if count is not None), default=None)


def _copartition(
    names: set[str], fixed: set[str], repartition: set[str], count_of: Callable[[str], int]
) -> dict[str, int]:
    """Return the common partition count of copartitioned topics for the repartition topics among them. Topics in
    ``fixed`` have a count that the topology gives. Raises ConfigurationError if the counts of source topics and those
    of topics in ``fixed`` differ."""
    counts = {name: count_of(name) for name in sorted(names)}
    flexible = {name: count for name, count in counts.items() if name in repartition}
    others = {name: count for name, count in counts.items() if name not in repartition}
    deciding = others or {name: count for name, count in counts.items() if name in fixed}
    if len(set(deciding.values())) > 1:
        raise _incorrect(f"Following topics do not have the same number of partitions: [{_java_map(deciding)}]")
    if not flexible:
        return {}
    wanted = next(iter(deciding.values())) if deciding else max(flexible.values())
    for name, count in flexible.items():
        if name in fixed and count != wanted:
            raise _incorrect(
                f"Number of partitions [{count}] of repartition topic [{name}] doesn't match number of partitions "
                f"[{wanted}] of the source topic."
            )
    return dict.fromkeys(flexible, wanted)


def _java_map(counts: Mapping[str, int]) -> str:
    return "{" + ", ".join(f"{name}={count}" for name, count in sorted(counts.items())) + "}"


def _incorrect(detail: str) -> ConfigurationError:
    return ConfigurationError(Status(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail))


def _configure(part: Subtopology, existing: PartitionCounts, counts: Mapping[str, int]) -> ConfiguredSubtopology:
    return ConfiguredSubtopology(
        part.subtopology_id,
        max(_count(name, existing, counts) for name in part.inputs),
        part.inputs,
        part.source_topics,
        part.repartition_sinks,
        tuple(_with_count(topic, counts) for topic in part.repartition_sources),
        tuple(_with_count(topic, counts) for topic in part.changelogs),
    )


def _with_count(topic: InternalTopic, counts: Mapping[str, int]) -> InternalTopic:
    return InternalTopic(topic.name, topic.partitions or counts[topic.name], topic.replication_factor, topic.configs)


def _find_missing(parts: Iterable[ConfiguredSubtopology], existing: PartitionCounts) -> tuple[InternalTopic, ...]:
    wanted = {topic.name: topic for part in parts for topic in (*part.repartition_sources, *part.changelogs)}
    missing = []
    for name, topic in sorted(wanted.items()):
        found = existing(name)
        if found is None:
            missing.append(topic)
        elif found != topic.partitions:
            raise _incorrect(
                f"Existing topic {name} has different number of partitions: expected {topic.partitions}, found {found}"
            )
    return tuple(missing)


def refused_names(
    topology: Topology, is_internal: Callable[[str], bool], check_name: Callable[[str], None]
) -> str | None:
    """Return the reason why names of topics are refused, None if all are valid."""
    names = topology.named_topics
    internal = [name for name in names if is_internal(name)]
    if internal:
        return f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
    invalid = []
    for name in names:
        try:
            check_name(name)
        except KafkaError:
            invalid.append(name)
    return f"Topic names {','.join(invalid)} are not valid topic names." if invalid else None
