"""The scan of a table for rows that no export recorded, over all its topics, even if the audit is about a few.

A snapshot of Iceberg or Delta does not change during the scan. Files of a folder of Parquet files may grow meanwhile: a
new manifest is committed before the longer file replaces the old one. So if a file has rows outside of its offsets in
the manifest, the manifest is read again while the file is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.pipeline.audit.table import DeltaRows, IcebergRows, columns_of, delta_batches, iceberg_batches
from tidelog.pipeline.audit.unrecorded import (
    COLUMNS,
    PartitionKey,
    RecordedRanges,
    UnrecordedRows,
    find_outside,
    sum_partitions,
)
from tidelog.pipeline.errors import one_line
from tidelog.pipeline.export.manifest import DATA, ExportTable, Manifest, TableFile

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SnapshotScan:
    """A scan of one version of an Iceberg or Delta table."""

    name: str
    rows: IcebergRows | DeltaRows
    recorded: RecordedRanges

    @property
    def size(self) -> int:
        """Bytes to read: 0, as they are not known."""
        return 0


@dataclass(frozen=True, slots=True)
class FolderScan:
    """A scan of a folder's Parquet files, each of which is checked against its own range of offsets."""

    path: str
    files: tuple[TableFile, ...]

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(file.size for file in self.files)


@dataclass(slots=True)
class ScanResult:
    """Unrecorded rows by topic and partition; and ``unread``, pairs of a file or table that cannot be read and the
    reason."""

    unrecorded: list[UnrecordedRows] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)


def recorded_ranges(manifest: Manifest) -> RecordedRanges:
    """Collect the ranges of offsets in a table's state, including those of deleted topics of the same name."""
    found: dict[PartitionKey, list[tuple[int, int]]] = {}
    for earlier in manifest.earlier:
        found.setdefault((earlier.topic, earlier.partition), []).append((earlier.start, earlier.end))
    for name, topic in manifest.topics.items():
        for number, state in topic.partitions.items():
            found.setdefault((name, number), []).append((state.start, state.end))
    return {partition: tuple(ranges) for partition, ranges in found.items()}


def scan(plan: SnapshotScan | FolderScan) -> ScanResult:
    """Check topic, partition and offset of every row of a table. Raises PipelineError."""
    import pyarrow as pa

    found = ScanResult()
    if isinstance(plan, FolderScan):
        for file in plan.files:
            _scan_file(plan.path, file, found)
        found.unrecorded = sum_partitions(found.unrecorded)
        return found
    try:
        found.unrecorded = find_outside(_batches_of(plan.rows), plan.recorded)
    except (pa.ArrowException, OSError) as error:
        found.unread.append((plan.name, one_line(error)))
    return found


def _batches_of(rows: IcebergRows | DeltaRows) -> Iterator[pa.RecordBatch]:
    return iceberg_batches(rows, COLUMNS) if isinstance(rows, IcebergRows) else delta_batches(rows, COLUMNS)


def _scan_file(table: str, file: TableFile, found: ScanResult) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = ExportTable(table).directory(DATA, file.name)
    try:
        with pq.ParquetFile(path) as opened:
            outside = find_outside(columns_of(opened, COLUMNS), _range_of(file))
            if outside:
                newest = next((one for one in ExportTable(table).read().files if one.name == file.name), file)
                outside = find_outside(columns_of(opened, COLUMNS), _range_of(newest))
    except (pa.ArrowException, OSError) as error:
        found.unread.append((path, one_line(error)))
    else:
        found.unrecorded += outside


def _range_of(file: TableFile) -> RecordedRanges:
    return {(file.topic, file.partition): ((file.start, file.end),)}
