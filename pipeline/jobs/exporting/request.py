"""The request of an export, the ends of its logs, and its result."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tidelog.pipeline.export.file import FileResult
from tidelog.pipeline.export.manifest import APPEND, Manifest
from tidelog.pipeline.jobs.source import LogSource
from tidelog.pipeline.plan.log_watch import Partition
from tidelog.pipeline.plan.rows import LostRange
from tidelog.pipeline.values.columns import ValueColumns
from tidelog.pipeline.values.registry import Registry

DEFAULT_FILE_BYTES = 256 * 1024 * 1024
#: 16 GB of the log, or ten minutes of work: about the most that is repeated after a run was killed.
DEFAULT_COMMIT_FILES = 64
DEFAULT_COMMIT_MINUTES = 10.0


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Request of an export: ``table`` is a directory, or the address of a Delta table. An export to Iceberg ignores it.

    ``file_bytes``: bytes of the log per file. ``headers``: whether the table has a column for headers.
    ``keep_damaged``: damaged batches become dead letters; otherwise they end the job. ``commit_files``: files per
    commit, with at most about ``commit_minutes`` of work. ``split_by`` hour or day: each file has rows of a single hour
    or day. ``mode``: a row for each record (``append``), or for the latest of each key (``upsert``). ``values``: json
    or registry, for value columns; ``registry`` has their schemas. ``columns``: decoder of the value columns, set by
    ``choose_value_columns``.
    """

    source: LogSource
    table: str
    file_bytes: int = DEFAULT_FILE_BYTES
    headers: bool = True
    restart_recreated: bool = False
    fail_on_data_loss: bool = True
    keep_damaged: bool = True
    commit_files: int = DEFAULT_COMMIT_FILES
    commit_minutes: float = DEFAULT_COMMIT_MINUTES
    split_by: str = ""
    mode: str = APPEND
    values: str = ""
    registry: Registry | None = None
    columns: ValueColumns | None = None


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Result of an export. ``committed`` false: there was nothing new, or no value from which to infer value columns.
    ``manifest`` is the table's newest version.

    ``looked_ms``: when the run looked up the logs; ``starts`` and ``ends``: their bounds then. ``exhausted``: each
    (topic, partition) whose records up to the log's end at that time are all in the table. ``files`` and ``size``:
    of the files that the tasks wrote; one that grew counts whole. ``rows``: those that are new in these files.
    ``lost``: ranges that this run found missing.
    """

    manifest: Manifest
    committed: bool
    looked_ms: int
    exhausted: frozenset[tuple[str, int]]
    files: int = 0
    rows: int = 0
    size: int = 0
    dead_letters: int = 0
    starts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)
    lost: tuple[LostRange, ...] = ()

    def lag(self) -> dict[tuple[str, int], int]:
        """Map (topic, partition) to the number of the log's offsets that the table lacks, such as those from the first
        open transaction on."""
        exported = self.manifest.offsets()
        return {
            (topic, partition): max(
                0, end - max(self.starts[topic, partition], exported.get(topic, {}).get(partition, 0))
            )
            for (topic, partition), end in self.ends.items()
        }

    def complete_through(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Map topic and partition to (largest record time in ms, offset): every committed record below the offset was
        exported, or was lost before.
        """
        return {
            name: {p: (s.complete_timestamp, s.end) for p, s in topic.partitions.items()}
            for name, topic in self.manifest.topics.items()
        }

    def incomplete(self, before_ms: int) -> list[str]:
        """List the partitions of which the table may lack a record with a time before ``before_ms``.

        A partition is complete when this run read it to its end at that time or later. A record of that time or later
        in the table also makes it complete. With LogAppendTime no earlier record can follow. With CreateTime producers
        choose the times, so allow for the delay that records may have. A partition of the source that the table does
        not have yet is complete only if it has no record.
        """
        through = dict.fromkeys(self.ends, -1) | {
            (name, partition): timestamp
            for name, partitions in self.complete_through().items()
            for partition, (timestamp, _) in partitions.items()
        }
        return [
            f"{name}-{partition}"
            for (name, partition), timestamp in sorted(through.items())
            if timestamp < before_ms and not (self.looked_ms >= before_ms and (name, partition) in self.exhausted)
        ]


@dataclass(frozen=True, slots=True)
class Look:
    """Partitions of an export's source with their bounds, and the time in ms when they were looked up."""

    partitions: list[Partition]
    when_ms: int

    @classmethod
    def take(cls, source: LogSource) -> Look:
        """Look up the partitions and their bounds now. Raises PipelineError."""
        now = time.time_ns() // 1_000_000
        return cls(source.partitions(), now)

    def unchanged_result(self, manifest: Manifest) -> ExportResult:
        """Build the result of a run that found nothing new."""
        return ExportResult(
            manifest,
            committed=False,
            looked_ms=self.when_ms,
            exhausted=self._find_exhausted(),
            starts=self._starts(),
            ends=self._ends(),
        )

    def postponed_result(self, manifest: Manifest) -> ExportResult:
        """Build the result of a run that left all records to a later one: only a partition without records is
        exhausted."""
        empty = (p for p in self.partitions if p.bounds.start >= p.bounds.end)
        exhausted = frozenset((p.directory.topic, p.directory.partition) for p in empty)
        return replace(self.unchanged_result(manifest), exhausted=exhausted)

    def result(self, before: Manifest, after: Manifest, results: Iterable[FileResult]) -> ExportResult:
        """Build the result of a run that committed ``after`` to a table with the state ``before``."""
        results = list(results)
        files = [file for result in results for file in result.files]
        letters = sum(result.dead_letters.rows for result in results if result.dead_letters is not None)
        return ExportResult(
            after,
            committed=True,
            looked_ms=self.when_ms,
            exhausted=self._find_exhausted(),
            files=len(files),
            rows=sum(result.rows for result in results),
            size=sum(file.size for file in files),
            dead_letters=letters,
            starts=self._starts(),
            ends=self._ends(),
            lost=tuple(_newly_lost(before, after)),
        )

    def _starts(self) -> dict[tuple[str, int], int]:
        return {(p.directory.topic, p.directory.partition): p.bounds.start for p in self.partitions}

    def _ends(self) -> dict[tuple[str, int], int]:
        return {(p.directory.topic, p.directory.partition): p.bounds.end for p in self.partitions}

    def _find_exhausted(self) -> frozenset[tuple[str, int]]:
        return frozenset((p.directory.topic, p.directory.partition) for p in self.partitions if p.end == p.bounds.end)


def _newly_lost(before: Manifest, after: Manifest) -> Iterator[LostRange]:
    """Yield the ranges that are lost in ``after`` and not in ``before``."""
    for name, topic in after.topics.items():
        earlier = before.topics.get(name)
        known = earlier.partitions if earlier is not None and earlier.topic_id == topic.topic_id else {}
        for number, state in topic.partitions.items():
            noted = known[number].lost if number in known else ()
            yield from (LostRange(name, number, start, end) for start, end in state.lost if (start, end) not in noted)
