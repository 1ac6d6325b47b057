"""The ranges of offsets that an audit compares between the logs and a table, of Parquet files or of Iceberg.

    Parquet    the manifest names the files and their ranges: one range per file, and one for each stretch without files
    Iceberg    the newest snapshot holds the rows, also after its files were rewritten: ranges between the borders of
               those that still have an export's name, and not longer than RANGE_OFFSETS

A table of the latest values is compared as one range for each partition. Either way the ranges of a partition cover
all that its table says it has, from the log's start on. Rows outside of what it says are looked for by a scan
(``tidelog.pipeline.jobs.reports.foreign_rows``). An Iceberg table
has no column for the topic's id, so rows of a topic that was deleted and created again look like those of its
successor: a table that has files of both is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidelog.pipeline.audit.table import ComparePlan, DeltaRows, IcebergRows, Letters, Rows
from tidelog.pipeline.errors import TopicRecreatedError
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

#: Two columns of eight bytes for each offset are held, on both sides.
RANGE_OFFSETS = 4_000_000
_FILE = re.compile(
    r"(?P<topic>.+)-(?P<id>-|[\w-]{22})-(?P<partition>\d+)-(?P<start>\d+)-(?P<end>\d+)"
    r"(-[0-9a-f]{32}(-[0-9a-f]{8})?|-r[0-9a-f]{8})?(-[hd]-?\d+)?\.parquet"
)


class TableRange(NamedTuple):
    """Offsets from ``start`` to below ``end`` and where the table's rows of them are; None: it has no file there."""

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
        """Topics, their ids, and the offsets that the table has of them."""

    @property
    def foreign(self) -> tuple[str, ...]:
        """Files that readers of the table take for its own, and that no export wrote."""

    @property
    def letters(self) -> Letters:
        """Dead letters of records that cannot be rows of the table."""

    @property
    def scan(self) -> SnapshotScan | FolderScan:
        """The plan that looks for rows which no export recorded."""

    def ranges(self, directory: PartitionDirectory, state: PartitionState) -> list[TableRange]:
        """Find the ranges that cover ``state`` of a partition, in order. Raises TopicRecreatedError."""


def open_table(name: str, iceberg: IcebergTarget | None) -> AuditedTable:
    """Open the table at a path, or of a catalog. Raises BadRequestError when no export has committed to it,
    JobError.
    """
    table = _opened(name, iceberg)
    if not table.manifest.version:
        raise BadRequestError(f"{name} has no version yet: expected a table that an export has committed to")
    return table


def _opened(name: str, iceberg: IcebergTarget | None) -> AuditedTable:
    if iceberg is not None:
        return _SnapshotTable.of_iceberg(iceberg)
    is_delta = is_remote(name) or os.path.isdir(os.path.join(name, "_delta_log"))
    return _SnapshotTable.of_delta(name) if is_delta else _ParquetTable.open(name)


def compare_plans(partition: Partition, table: AuditedTable, source: LogSource) -> list[ComparePlan]:
    """Plan the ranges of one partition to compare; none when the table does not have it. Raises TopicRecreatedError."""
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
    """Choose the files that may have dead letters of a range, by their names: each plan is sent with those it has."""
    if isinstance(letters, IcebergRows):
        return letters
    matches = ((path, _FILE.fullmatch(os.path.basename(path))) for path in letters)
    return tuple(path for path, match in matches if match is None or _is_in(match, directory, begin, end))


def _is_in(match: re.Match[str], directory: PartitionDirectory, begin: int, end: int) -> bool:
    is_here = (match["topic"], int(match["partition"])) == (directory.topic, directory.partition)
    return is_here and int(match["start"]) < end and begin < int(match["end"])


@dataclass(frozen=True, slots=True)
class _ParquetTable:
    name: str
    manifest: Manifest
    table: ExportTable
    foreign: tuple[str, ...]
    letters: Letters = ()  # every record may be a row of a folder

    @classmethod
    def open(cls, path: str) -> _ParquetTable:
        table = ExportTable(path)
        there = {folder: table.names_in(folder) for folder in (DATA, DEAD_LETTER)}
        manifest = table.read()  # after the listing: an export commits a file before it moves it there
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
    foreign: tuple[str, ...] = ()  # a snapshot names its files: no reader opens others

    @classmethod
    def of_iceberg(cls, target: IcebergTarget) -> _SnapshotTable:
        """Load the newest snapshot. Raises what ``look_at`` raises."""
        from tidelog.pipeline.jobs.iceberg import look_at

        found = look_at(target)
        rows = IcebergRows(found.metadata, found.snapshot, found.properties, found.by_time)
        letters = () if found.letters is None else IcebergRows(*found.letters, found.properties)
        return cls(target.name, found.manifest, rows, found.files, letters)

    @classmethod
    def of_delta(cls, path: str) -> _SnapshotTable:
        """Load the newest version. Raises JobError, MissingPackageError."""
        from tidelog.pipeline.jobs.exporting.delta import look_at

        manifest, version, files, letters = look_at(path)
        rows = DeltaRows(path if is_remote(path) else os.path.abspath(path), version)
        return cls(path, manifest, rows, files, letters)

    @property
    def scan(self) -> SnapshotScan:
        recorded = {**recorded_ranges(self.manifest)}
        for name, topic in self.manifest.topics.items():  # states of older versions name no earlier topics
            for match in _match_names(self.files, name):
                if match["id"] != topic.topic_id:
                    place = name, int(match["partition"])
                    recorded[place] = (*recorded.get(place, ()), (int(match["start"]), int(match["end"])))
        return SnapshotScan(self.name, self.rows, recorded)

    def ranges(self, directory: PartitionDirectory, state: PartitionState) -> list[TableRange]:
        if self.manifest.mode == UPSERT:  # a key's record may be anywhere
            return [TableRange(state.start, state.end, self.rows)]
        borders = set(range(state.start, state.end, RANGE_OFFSETS)) | {state.start, state.end}
        for match in _match_names(self.files, directory.topic):
            if match["id"] != id_text(directory.topic_id):
                raise TopicRecreatedError(
                    f"{self.name} has rows of an earlier topic {directory.topic} (id {match['id']}) as well, which "
                    "cannot be told from those of today's: expected a table of one topic's life"
                )
            if int(match["partition"]) == directory.partition:
                borders |= {int(match["start"]), int(match["end"])}
        inside = sorted(border for border in borders if state.start <= border <= state.end)
        return [TableRange(start, end, self.rows) for start, end in pairwise(inside)]


def _match_names(files: Iterable[str], topic: str) -> list[re.Match[str]]:
    """Match the files of a topic that have the name an export gave them."""
    matches = (_FILE.fullmatch(os.path.basename(file)) for file in files)
    return [match for match in matches if match is not None and match["topic"] == topic]
