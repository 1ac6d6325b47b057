"""The ranges of offsets that an audit compares between logs and a table: of Parquet files, of Iceberg or of Delta.

    Parquet          one range for each file in the manifest, and one for each gap between files
    Iceberg, Delta   ranges of RANGE_OFFSETS at most, also divided where a file begins or ends that still has an
                     export's name; the rows of each are read from the newest snapshot, so files may have been rewritten

A table of the latest values is compared as one range for each partition. In all cases the ranges of a partition cover
the offsets in the table's state, from the log's start on. Rows outside of the offsets in the state are found by a scan
(``tidelog.pipeline.jobs.reports.foreign_rows``).

An Iceberg or Delta table has no column for the topic's id. If a topic was deleted and created again, rows of the old
topic look like those of the new one. A table is refused if the names of its files show both. In a folder of Parquet
files, the manifest has the topic's id of each file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidelog.pipeline.audit.table import ComparePlan, DeltaRows, IcebergRows, Letters, Rows
from tidelog.pipeline.errors import TopicRecreatedError
from tidelog.pipeline.export.file import short_topic
from tidelog.pipeline.export.manifest import DATA, DEAD_LETTER, UPSERT, ExportTable, Manifest, PartitionState, id_text
from tidelog.pipeline.files.remote import is_remote
from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.jobs.reports.foreign_rows import FolderScan, SnapshotScan, recorded_ranges
from tidelog.pipeline.jobs.source import LogSource
from tidelog.pipeline.plan.log_watch import Partition
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, plan_range
from tidelog.pipeline.plan.selection import PartitionDirectory

if TYPE_CHECKING:
    from tidelog.pipeline.jobs.iceberg import IcebergTarget

#: Limit of a range of an append-only Iceberg or Delta table: for each offset 16 bytes are kept in memory, for log and
#: table alike.
RANGE_OFFSETS = 4_000_000
_FILE = re.compile(
    r"(?P<topic>.+)-(?P<id>-|[\w-]{22})-(?P<partition>\d+)-(?P<start>\d+)-(?P<end>\d+)"
    r"(-[0-9a-f]{32}(-[0-9a-f]{8})?|-r[0-9a-f]{8})?(-[hd]-?\d+)?\.parquet"
)


class TableRange(NamedTuple):
    """Offsets from ``start`` to below ``end``, and the table's rows of them; None: the table has no file for them."""

    start: int
    end: int
    rows: Rows


class AuditedTable(Protocol):
    """A table that exports have written."""

    @property
    def name(self) -> str:
        """Name of the table in messages."""

    @property
    def manifest(self) -> Manifest:
        """State of the table: topics, their ids, and their exported offsets."""

    @property
    def foreign(self) -> tuple[str, ...]:
        """Files in the table's folders that its manifest does not list; readers of the folders read them too."""

    @property
    def letters(self) -> Letters:
        """Dead letters of records that cannot be rows of the table."""

    @property
    def scan(self) -> SnapshotScan | FolderScan:
        """The scan for rows that no export recorded."""

    def ranges(self, directory: PartitionDirectory, state: PartitionState) -> list[TableRange]:
        """Return the ranges that cover a partition's ``state``, in order. Raises TopicRecreatedError."""


def open_table(name: str, iceberg: IcebergTarget | None) -> AuditedTable:
    """Open the table at a path or in a catalog.

    Raises BadRequestError when no export has committed to it, other PipelineErrors, OSError.
    """
    table = _open_any(name, iceberg)
    if not table.manifest.version:
        raise BadRequestError(f"{name} has no version yet: expected a table that an export has committed to")
    return table


def _open_any(name: str, iceberg: IcebergTarget | None) -> AuditedTable:
    if iceberg is not None:
        return _SnapshotTable.of_iceberg(iceberg)
    is_delta = is_remote(name) or os.path.isdir(os.path.join(name, "_delta_log"))
    return _SnapshotTable.of_delta(name) if is_delta else _ParquetTable.open(name)


def compare_plans(partition: Partition, table: AuditedTable, source: LogSource) -> list[ComparePlan]:
    """Plan the comparison of one partition; empty when the table does not have it. Raises TopicRecreatedError, and the
    other errors of ``plan_range``.
    """
    directory = partition.directory
    topic = table.manifest.topics.get(directory.topic)
    state = None if topic is None else topic.partitions.get(directory.partition)
    if topic is None or state is None:
        return []
    if topic.topic_id != id_text(directory.topic_id):
        raise TopicRecreatedError(
            f"topic {directory.topic} was deleted and created again: the table holds id {topic.topic_id}, the log has "
            f"{id_text(directory.topic_id)}"
        )
    plans = []
    for begin, end, rows in table.ranges(directory, state):
        begin = max(begin, partition.bounds.start)
        if begin < end:
            request = ReadRequest((), 1 << 40, looks_for_holes=False)
            pieces = tuple(plan_range(OffsetRange(directory, begin, end), request))
            plans.append(
                ComparePlan(
                    directory.topic,
                    directory.partition,
                    begin,
                    end,
                    rows,
                    pieces,
                    source.read_committed,
                    latest=table.manifest.mode == UPSERT,
                    letters=_letters_in(table.letters, directory, begin, end),
                )
            )
    return plans


def _letters_in(letters: Letters, directory: PartitionDirectory, begin: int, end: int) -> Letters:
    """Select the files that may have dead letters of a range, by their names, so that a plan is sent with these alone.

    The rows of an Iceberg table are returned unchanged.
    """
    if isinstance(letters, IcebergRows):
        return letters
    matches = ((path, _FILE.fullmatch(os.path.basename(path))) for path in letters)
    return tuple(path for path, match in matches if match is None or _is_in(match, directory, begin, end))


def _is_in(match: re.Match[str], directory: PartitionDirectory, begin: int, end: int) -> bool:
    is_here = _is_named(match, directory.topic) and int(match["partition"]) == directory.partition
    return is_here and int(match["start"]) < end and begin < int(match["end"])


@dataclass(frozen=True, slots=True)
class _ParquetTable:
    name: str
    manifest: Manifest
    table: ExportTable
    foreign: tuple[str, ...]
    letters: Letters = ()  # none are looked up: every record that can be decoded can be a row in a folder

    @classmethod
    def open(cls, path: str) -> _ParquetTable:
        table = ExportTable(path)
        there = {folder: table.names_in(folder) for folder in (DATA, DEAD_LETTER)}
        manifest = table.read()  # after the listing: an export commits files before it moves them to the folders
        own = {DATA: manifest.files, DEAD_LETTER: manifest.dead_letters}
        foreign = [
            table.directory(folder, name)
            for folder, names in there.items()
            for name in sorted(names - {file.name for file in own[folder]})
        ]
        return cls(path, manifest, table, tuple(foreign))

    @property
    def scan(self) -> FolderScan:
        return FolderScan(self.table.path, self.manifest.files)

    def ranges(self, directory: PartitionDirectory, state: PartitionState) -> list[TableRange]:
        identity = (directory.topic, id_text(directory.topic_id), directory.partition)
        files = [file for file in self.manifest.files if (file.topic, file.topic_id, file.partition) == identity]
        found: list[TableRange] = []
        position = state.start
        for file in sorted(files, key=lambda file: file.start):
            if file.start > position:
                found.append(TableRange(position, file.start, None))
            found.append(TableRange(file.start, file.end, self.table.directory(DATA, file.name)))
            position = file.end
        if position < state.end:
            found.append(TableRange(position, state.end, None))
        return found


@dataclass(frozen=True, slots=True)
class _SnapshotTable:
    """A table of Iceberg or Delta as it is at one moment."""

    name: str
    manifest: Manifest
    rows: IcebergRows | DeltaRows
    files: tuple[str, ...]
    letters: Letters = ()
    foreign: tuple[str, ...] = ()  # readers open only the files that a snapshot names

    @classmethod
    def of_iceberg(cls, target: IcebergTarget) -> _SnapshotTable:
        """Load the newest snapshot. Raises the errors of ``read_newest_snapshot``."""
        from tidelog.pipeline.jobs.iceberg import read_newest_snapshot

        found = read_newest_snapshot(target)
        rows = IcebergRows(found.metadata, found.properties, found.by_time)
        letters = () if found.letters is None else IcebergRows(found.letters, found.properties)
        return cls(target.name, found.manifest, rows, found.files, letters)

    @classmethod
    def of_delta(cls, path: str) -> _SnapshotTable:
        """Load the newest version. Raises the errors of ``read_newest_version``."""
        from tidelog.pipeline.jobs.exporting.delta import read_newest_version

        manifest, version, files, letters = read_newest_version(path)
        rows = DeltaRows(path if is_remote(path) else os.path.abspath(path), version)
        return cls(path, manifest, rows, files, letters)

    @property
    def scan(self) -> SnapshotScan:
        recorded = {**recorded_ranges(self.manifest)}
        for name, topic in self.manifest.topics.items():  # states that older releases wrote do not list deleted topics
            for match in _match_names(self.files, name):
                if match["id"] != topic.topic_id:
                    partition = name, int(match["partition"])
                    recorded[partition] = (*recorded.get(partition, ()), (int(match["start"]), int(match["end"])))
        return SnapshotScan(self.name, self.rows, recorded)

    def ranges(self, directory: PartitionDirectory, state: PartitionState) -> list[TableRange]:
        if self.manifest.mode == UPSERT:  # the latest record of a key may be at any offset
            return [TableRange(state.start, state.end, self.rows)]
        borders = set(range(state.start, state.end, RANGE_OFFSETS)) | {state.start, state.end}
        for match in _match_names(self.files, directory.topic):
            if match["id"] != id_text(directory.topic_id):
                raise TopicRecreatedError(
                    f"{self.name} also has rows of a deleted topic {directory.topic} (id {match['id']}), which look "
                    "like rows of the topic that exists: expected a table without them"
                )
            if int(match["partition"]) == directory.partition:
                borders |= {int(match["start"]), int(match["end"])}
        inside = sorted(border for border in borders if state.start <= border <= state.end)
        return [
            TableRange(start, end, rows) for (start, end), rows in self._with_rows(directory, list(pairwise(inside)))
        ]

    def _with_rows(
        self, directory: PartitionDirectory, ranges: list[tuple[int, int]]
    ) -> Iterator[tuple[tuple[int, int], IcebergRows | DeltaRows]]:
        """Yield each range with the table's rows. ``DeltaRows`` name the files to read: those whose export name has
        offsets of the range, and all with other names. Iceberg finds files by its metadata."""
        names = {os.path.basename(file) for file in self.files}
        matches = [(name, _FILE.fullmatch(name)) for name in names]
        for start, end in ranges:
            if isinstance(self.rows, IcebergRows):
                yield (start, end), self.rows
            else:
                chosen = (name for name, match in matches if match is None or _is_in(match, directory, start, end))
                yield (start, end), replace(self.rows, files=frozenset(chosen))


def _match_names(files: Iterable[str], topic: str) -> list[re.Match[str]]:
    """Match the names of a topic's files that still have the name of an export."""
    matches = (_FILE.fullmatch(os.path.basename(file)) for file in files)
    return [match for match in matches if match is not None and _is_named(match, topic)]


def _is_named(match: re.Match[str], topic: str) -> bool:
    return match["topic"] in (topic, short_topic(topic))
