"""The comparison of a log with the table it was exported to, range by range: the offsets that differ.

    the table's rows of a range of offsets, hashed      -> (offset, hash)
    the log's records of that range, hashed             -> (offset, hash)        -> missing, extra, different, twice

*Missing* rows are in the log and not in the table. *Extra* rows are in the table and not in the log: they are not a
fault if the log was compacted, otherwise they are a finding. Offsets below the log start cannot be compared.
Headers are not compared. Hashes are those of :mod:`tidelog.pipeline.engine.reference`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tidelog.pipeline.decode.decode import Isolation, ReadOptions, read_slice
from tidelog.pipeline.engine.engine import engine
from tidelog.pipeline.engine.reference import ByteArray, IntegerArray, WordArray
from tidelog.pipeline.errors import CorruptBatchError, MalformedTimestampError, PipelineError, one_line
from tidelog.pipeline.files.delta_address import DeltaAddress, delta_errors
from tidelog.pipeline.files.iceberg_errors import iceberg_errors
from tidelog.pipeline.options.columns import Columns, calendar_mask
from tidelog.pipeline.plan.plan import SegmentSlice

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SHOWN_OFFSETS = 10
_COLUMNS = Columns(("key", "value", "offset", "timestamp"))


@dataclass(frozen=True, slots=True)
class IcebergRows:
    """The rows of the newest snapshot in a metadata file of an Iceberg table.

    ``metadata``: location of the metadata file. ``properties``: pyiceberg's properties of the table's file system.
    ``by_time``: the table is partitioned by time, so records with times outside of the calendar are dead letters.
    """

    metadata: str
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    by_time: bool = False


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """A version of a Delta table at a path or an address. ``files``: names of its files that may have the rows of a
    range; None: all."""

    path: str
    version: int
    files: frozenset[str] | None = None


Rows = str | IcebergRows | DeltaRows | None
"""The rows of a range: in a Parquet file, in a version of a table, or none."""
Letters = IcebergRows | tuple[str, ...]
"""The dead letters of a table: rows of an Iceberg table, or Parquet files."""


@dataclass(frozen=True, slots=True)
class ComparePlan:
    """One range of a partition to compare: the table's ``rows``, and the ``slices`` of the log.

    ``latest``: the table has the latest record of each key. ``letters``: the table's dead letters, for records that
    cannot be rows.
    """

    topic: str
    partition: int
    start: int
    end: int
    rows: Rows
    slices: tuple[SegmentSlice, ...]
    read_committed: bool = True
    latest: bool = False
    letters: Letters = ()

    @property
    def size(self) -> int:
        """Bytes of the log to read."""
        return sum(piece.size_bytes for piece in self.slices)


@dataclass(slots=True)
class Comparison:
    """Differences between table and log in a range: counts, and the first offsets of each kind (``shown``).

    ``unreadable``: why the table, the log or the dead letters cannot be read; the counts are not complete then.
    ``no_rows``: offsets of records that cannot be rows of the table, until they are looked up among the dead letters.
    """

    topic: str
    partition: int
    start: int
    end: int
    log_rows: int = 0
    table_rows: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    twice: int = 0
    unreadable: str = ""
    shown: dict[str, list[int]] = field(default_factory=dict)
    no_rows: list[IntegerArray] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """True when table and log have the same records."""
        return not (self.missing or self.extra or self.different or self.twice or self.unreadable)

    def note(self, kind: str, offsets: IntegerArray) -> int:
        """Keep the first offsets of a kind; returns the number of all."""
        if len(offsets):
            self.shown[kind] = offsets[:SHOWN_OFFSETS].tolist()
        return len(offsets)


def compare(plan: ComparePlan) -> Comparison:
    """Compare one range; damage on either side becomes part of the result. Raises PipelineError, OSError."""
    import pyarrow as pa

    found = Comparison(plan.topic, plan.partition, plan.start, plan.end)
    try:
        table_offsets, table_hashes = _hash_batches(table_batches(plan), plan)
    except (pa.ArrowException, OSError) as error:
        found.unreadable = unreadable_table(plan, error)
        return found
    try:
        log_offsets, log_hashes = _hash_batches(log_batches(plan, found), plan)
    except (CorruptBatchError, MalformedTimestampError) as error:
        found.unreadable = unreadable_log(error)
        return found
    found.table_rows, found.log_rows = len(table_offsets), len(log_offsets)
    order = np.argsort(table_offsets, kind="stable")
    table_offsets, table_hashes = table_offsets[order], table_hashes[order]
    again = table_offsets[1:] == table_offsets[:-1]
    found.twice = found.note("twice", table_offsets[1:][again])
    first = np.concatenate(([True], ~again)) if len(table_offsets) else np.zeros(0, np.bool_)
    table_offsets, table_hashes = table_offsets[first], table_hashes[first]
    found.missing = found.note("missing", np.setdiff1d(log_offsets, table_offsets))
    found.extra = found.note("extra", np.setdiff1d(table_offsets, log_offsets))
    both, at_log, at_table = np.intersect1d(log_offsets, table_offsets, return_indices=True)
    found.different = found.note("different", both[log_hashes[at_log] != table_hashes[at_table]])
    return found


def unreadable_table(plan: ComparePlan, error: Exception) -> str:
    """Write the message for a table that cannot be read."""
    origin = plan.rows if isinstance(plan.rows, str) else "its snapshot"
    return f"the table's rows cannot be read from {origin}: {one_line(error)}"


def unreadable_log(error: PipelineError) -> str:
    """Write the message for a log that cannot be read."""
    return f"the log's records cannot be read: {error}"


def log_batches(plan: ComparePlan, found: Comparison) -> Iterator[pa.RecordBatch]:
    """Yield the log's records of the plan's range that can be rows: key, value, offset, timestamp. The others are added
    to ``found.no_rows``. With ``plan.read_committed`` only committed records are read. Raises PipelineError.
    """
    isolation = Isolation.READ_COMMITTED if plan.read_committed else Isolation.READ_UNCOMMITTED
    by_time = isinstance(plan.rows, IcebergRows) and plan.rows.by_time
    for piece in plan.slices:
        for batch in read_slice(piece, _COLUMNS, options=ReadOptions(isolation, looks_for_holes=False)):
            if by_time:
                batch = _select_fitting(calendar_mask(batch), batch, found)
            if plan.latest:
                batch = _select_fitting(batch.column("key").is_valid(), batch, found)
            yield batch


def _select_fitting(fit: Any, batch: pa.RecordBatch, found: Comparison) -> pa.RecordBatch:
    """Return the records that fit, and add the others to ``found.no_rows``."""
    import pyarrow.compute as pc

    if pc.all(fit).as_py():
        return batch
    found.no_rows.append(batch.filter(pc.invert(fit)).column("offset").to_numpy())
    return batch.filter(fit)


def table_batches(plan: ComparePlan) -> Iterator[pa.RecordBatch]:
    """Yield the table's rows with the columns of ``log_batches``, at least those in the plan's range. Raises
    ArrowException, OSError, PipelineError."""
    schema = _COLUMNS.arrow_schema()
    if plan.rows is None:
        return
    for batch in _batches_of(plan, plan.rows):
        yield batch.select(list(_COLUMNS.names)).cast(schema)


def _batches_of(plan: ComparePlan, rows: str | IcebergRows | DeltaRows) -> Iterator[pa.RecordBatch]:
    if isinstance(rows, str):
        return _file_batches(rows)
    if isinstance(rows, IcebergRows):
        return iceberg_batches(rows, _COLUMNS.names, write_filter(plan, _lowest(plan)))
    return delta_batches(rows, _COLUMNS.names, _delta_filter(plan))


def write_filter(plan: ComparePlan, lowest: int) -> str:
    """Write the filter of a plan's rows from offset ``lowest`` on. A topic's name has no quotes."""
    partition_filter = f"topic == '{plan.topic}' and partition == {plan.partition}"
    return f"{partition_filter} and offset >= {lowest} and offset < {plan.end}"


def _file_batches(path: str) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        yield from columns_of(file, _COLUMNS.names)


def columns_of(file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of a file's rows. Raises ArrowException, also for a missing column, and OSError."""
    import pyarrow as pa

    missing = [name for name in columns if name not in file.schema_arrow.names]
    if missing:
        raise pa.ArrowInvalid(f"it has no column {missing[0]}")
    yield from file.iter_batches(columns=list(columns))


def iceberg_batches(rows: IcebergRows, columns: Sequence[str], chosen: str | None = None) -> Iterator[pa.RecordBatch]:
    """Read columns of the rows, without deleted rows, as a reader of the table sees them. ``chosen``: a filter.

    The snapshot is not named: with its id the scan would use the columns of the time when it was made.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.table import StaticTable

    with iceberg_errors(f"Iceberg table of {rows.metadata}"):
        table = StaticTable.from_metadata(rows.metadata, dict(rows.properties))
        found = table.scan(chosen or AlwaysTrue(), selected_fields=tuple(columns)).to_arrow_batch_reader()
    yield from found


def _delta_filter(plan: ComparePlan) -> Any:
    import pyarrow.dataset as ds

    chosen: Any = (ds.field("topic") == plan.topic) & (ds.field("partition") == plan.partition)
    return chosen & (ds.field("offset") >= _lowest(plan)) & (ds.field("offset") < plan.end)


def _lowest(plan: ComparePlan) -> int:
    """Return the lowest offset to read from the table: the latest row of a key may lie before the log's start."""
    return 0 if plan.latest else plan.start


def delta_batches(rows: DeltaRows, columns: Sequence[str], chosen: Any = None) -> Iterator[pa.RecordBatch]:
    """Read columns of the rows of a version. ``chosen``: a filter."""
    address = DeltaAddress.of(rows.path)
    with delta_errors(address):
        dataset: Any = address.open(rows.version).to_pyarrow_dataset()
    if rows.files is not None:
        dataset = _select_files(dataset, rows.files)
    yield from dataset.to_batches(columns=list(columns), filter=chosen)


def _select_files(dataset: Any, names: frozenset[str]) -> Any:
    import pyarrow.dataset as ds

    fragments = [one for one in dataset.get_fragments() if os.path.basename(one.path) in names]
    return ds.FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)


def _hash_batches(batches: Iterator[pa.RecordBatch], plan: ComparePlan) -> tuple[IntegerArray, WordArray]:
    """Compute offsets and hashes of the rows within the plan's range."""
    offsets: list[IntegerArray] = [np.zeros(0, np.int64)]
    hashes: list[WordArray] = [np.zeros(0, np.uint64)]
    for batch in batches:
        found_offsets, found = hash_batch(batch)
        inside = (found_offsets >= plan.start) & (found_offsets < plan.end)
        offsets.append(found_offsets[inside])
        hashes.append(found[inside])
    return np.concatenate(offsets), np.concatenate(hashes)


def hash_batch(batch: pa.RecordBatch) -> tuple[IntegerArray, WordArray]:
    """Compute offsets and hashes of an Arrow batch with the columns key, value, offset, timestamp."""
    import pyarrow as pa

    offsets = batch.column("offset").to_numpy()
    times = batch.column("timestamp").cast(pa.int64()).to_numpy() // 1000
    key, value = _binary(batch.column("key")), _binary(batch.column("value"))
    return offsets, engine().hash_columns((offsets, times), key, value)


def _binary(column: Any) -> tuple[ByteArray, IntegerArray, ByteArray]:
    """Split a binary Arrow array into bytes, int64 starts (one more than rows), and validity."""
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    there = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return content, starts, there
