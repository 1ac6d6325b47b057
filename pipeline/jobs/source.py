"""The logs that a job reads: data directories, topics, and whether it reads only committed records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.client.connection import PLAIN
from tidelog.client.security import Security
from tidelog.pipeline.options.offset_json import EARLIEST, LATEST
from tidelog.pipeline.options.options import OffsetSpec, SourceOptions, TopicChoice, parse_options
from tidelog.pipeline.plan.log_watch import Partition
from tidelog.pipeline.plan.request import find_bounds
from tidelog.pipeline.plan.selection import PartitionDirectory, PartitionFinder, find_partitions

ALL_PATTERN = "(?!__).*"
"""Every topic but the broker's own, whose names begin with ``__``."""
ALL_TOPICS = TopicChoice(pattern=ALL_PATTERN)


@dataclass(frozen=True, slots=True)
class LogSource:
    """Topics in data directories. With ``bootstrap`` the ends come from a broker, otherwise from the files.

    ``replicated``: a function that returns the partitions that have several replicas, called at each look-up of the
    ends (``SourceOptions.replicated``).
    """

    paths: tuple[str, ...]
    choice: TopicChoice = ALL_TOPICS
    bootstrap: str | None = None
    read_committed: bool = True
    security: Security = field(default=PLAIN, repr=False, compare=False, kw_only=True)
    replicated: Callable[[], frozenset[tuple[str, int]]] = field(default=frozenset, compare=False, kw_only=True)

    def topics(self) -> list[str]:
        """Find the names of the topics. Raises SelectionError, other PipelineErrors."""
        found = PartitionFinder(self.paths, self.choice).find_replicas()
        return sorted({replicas[0].topic for replicas in found})

    def directories(self) -> list[PartitionDirectory]:
        """Find the partitions' directories, by topic and partition. Raises SelectionError, other PipelineErrors."""
        return find_partitions(self.paths, self.choice)

    def partitions(self, *, accepts_damage: bool = False) -> list[Partition]:
        """Find the partitions with their bounds: log start, log end and last stable offset. ``accepts_damage``: a
        partition whose metadata cannot be read has no topic id, and checkpoints may be unreadable. Raises
        PipelineError.
        """
        return find_bounds(
            SourceOptions(
                paths=self.paths,
                choice=self.choice,
                starting=OffsetSpec("startingOffsets", EARLIEST),
                ending=OffsetSpec("endingOffsets", LATEST),
                bootstrap=self.bootstrap,
                read_committed=self.read_committed,
                security=self.security,
                replicated=self.replicated(),
            ),
            accepts_damage=accepts_damage,
        )


def choose(topics: str | None, pattern: str | None, assign: str | None) -> TopicChoice:
    """Parse the topics of a command line: comma separated names, a pattern, or partitions in JSON; without any, all
    topics but the broker's own.

    Raises OptionError.
    """
    given = {"subscribe": topics, "subscribePattern": pattern, "assign": assign}
    options = {name: text for name, text in given.items() if text is not None}
    if not options:
        return ALL_TOPICS
    return parse_options({"path": ".", **options}).choice
