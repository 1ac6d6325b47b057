"""Internal topics of a topology, and their numbers of partitions."""

from __future__ import annotations

import time

import pytest

from tidelog.broker.coordinator.group.streams.topology import (
    ConfiguredTopology,
    CopartitionGroup,
    InternalTopic,
    StatusCode,
    Subtopology,
    Topology,
    configure,
)
from tidelog.protocol.errors import StreamsInvalidTopologyError


def configure_parts(*parts: Subtopology, **existing: int) -> ConfiguredTopology:
    return configure(Topology(0, parts), existing.get)


def sizes(found: ConfiguredTopology) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in found.missing}


def test_numbers_of_partitions_follow_from_the_topics_before_a_repartition_topic() -> None:
    found = configure_parts(
        Subtopology("0", ("few", "many"), repartition_sinks=("first",)),
        Subtopology("1", repartition_sources=(InternalTopic("first"),), repartition_sinks=("second",)),
        Subtopology("2", repartition_sources=(InternalTopic("second"),), changelogs=(InternalTopic("state"),)),
        few=2,
        many=5,
    )
    assert sizes(found) == {"first": 5, "second": 5, "state": 5}
    assert {part.subtopology_id: part.tasks for part in (found.subtopologies or {}).values()} == dict.fromkeys("012", 5)


def test_a_long_chain_of_subtopologies_takes_a_short_turn() -> None:
    """The last one of the list reads the source: each pass over all found the count of one topic, 0.7 s in all."""
    length = 1_300
    chain = [
        Subtopology(str(n), repartition_sources=(InternalTopic(f"r{n + 1}"),), repartition_sinks=(f"r{n}",))
        for n in range(length)
    ]
    last = Subtopology(str(length), ("source",), repartition_sinks=(f"r{length}",))
    reader = Subtopology("reader", repartition_sources=(InternalTopic("r0"),))
    began = time.process_time()
    found = configure_parts(*chain, last, reader, source=4)
    assert time.process_time() - began < 0.2
    assert sizes(found) == {f"r{n}": 4 for n in range(length + 1)}


def test_copartitioned_topics_get_the_same_number_of_partitions() -> None:
    group = CopartitionGroup((0,), (), (0,))
    writer = Subtopology("0", ("many",), repartition_sinks=("words",))
    reader = Subtopology("1", ("few",), repartition_sources=(InternalTopic("words"),), copartition_groups=(group,))
    assert sizes(configure_parts(writer, reader, many=5, few=2)) == {"words": 2}
    fixed = Subtopology("1", ("few",), repartition_sources=(InternalTopic("words", 3),), copartition_groups=(group,))
    problem = configure_parts(writer, fixed, many=5, few=2).problem
    assert problem is not None
    assert problem == (
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        "Number of partitions [3] of repartition topic [words] doesn't match number of partitions [2] of the source "
        "topic.",
    )


def test_sources_that_are_read_together_must_be_alike() -> None:
    part = Subtopology("0", ("a", "b"), copartition_groups=(CopartitionGroup((0, 1)),))
    assert configure_parts(part, a=2, b=2).is_ready
    problem = configure_parts(part, a=2, b=3).problem
    assert problem is not None
    assert problem.detail == "Following topics do not have the same number of partitions: [{a=2, b=3}]"


def test_repartition_topics_that_are_read_together_have_the_largest_number_of_partitions() -> None:
    both = (InternalTopic("x"), InternalTopic("y"))
    parts = (
        Subtopology("0", ("few",), repartition_sinks=("x",)),
        Subtopology("1", ("many",), repartition_sinks=("y",)),
        Subtopology("2", repartition_sources=both, copartition_groups=(CopartitionGroup((), (), (0, 1)),)),
    )
    assert sizes(configure_parts(*parts, few=2, many=5)) == {"x": 5, "y": 5}


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((Subtopology("0", ("a",), repartition_sources=(InternalTopic("x"),)),), "never used as a sink topic"),
        (
            (Subtopology("0", repartition_sources=(InternalTopic("x"),), repartition_sinks=("x",)),),
            "There may be loops in the topology",
        ),
    ],
)
def test_a_topology_whose_numbers_of_partitions_cannot_be_computed_is_refused(
    parts: tuple[Subtopology, ...], text: str
) -> None:
    with pytest.raises(StreamsInvalidTopologyError, match=text):
        configure_parts(*parts, a=1)


def test_many_missing_topics_are_summed_up() -> None:
    problem = configure_parts(Subtopology("0", tuple("abcde"))).problem
    assert problem == (StatusCode.MISSING_SOURCE_TOPICS, "Source topics a, b, c and 2 additional topics are missing.")
