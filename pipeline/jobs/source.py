"""The logs a job reads: data directories, topics, and whether records of open and aborted transactions count."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.client.connection import PLAIN
from tidelog.client.security import Security
from tidelog.pipeline.options.offset_json import EARLIEST, LATEST
from tidelog.pipeline.options.options import OffsetSpec, SourceOptions, TopicChoice, parse_options
from tidelog.pipeline.plan.log_watch import Partition
from tidelog.pipeline.plan.request import find_bounds
from tidelog.pipeline.plan.selection import PartitionDirectory, find_partitions

ALL_PATTERN = "(?!__).*"
"""Every topic but the broker's own."""
ALL_TOPICS = TopicChoice(pattern=ALL_PATTERN)


@dataclass(frozen=True, slots=True)
class LogSource:
    """Topics of data directories. ``bootstrap`` asks a broker for the ends instead of the files."""

    paths: tuple[str, ...]
    choice: TopicChoice = ALL_TOPICS
    bootstrap: str | None = None
    read_committed: bool = True
    security: Security = field(default=PLAIN, repr=False, compare=False, kw_only=True)

    def directories(self) -> list[PartitionDirectory]:
        """Find the partitions' directories, by topic and partition. Raises SelectionError."""
        return find_partitions(self.paths, self.choice)

    def partitions(self, *, accepts_damage: bool = False) -> list[Partition]:
        """Find the partitions with their bounds; ``accepts_damage``: also those whose metadata cannot be read, without
        their topic id. Raises PipelineError.
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
            ),
            accepts_damage=accepts_damage,
        )


def choose(topics: str | None, pattern: str | None, assign: str | None) -> TopicChoice:
    """Parse the choice of a command line: comma separated names, a pattern, or partitions in JSON; all topics without.

    Raises OptionError.
    """
    given = {"subscribe": topics, "subscribePattern": pattern, "assign": assign}
    options = {name: text for name, text in given.items() if text is not None}
    if not options:
        return ALL_TOPICS
    return parse_options({"path": ".", **options}).choice
