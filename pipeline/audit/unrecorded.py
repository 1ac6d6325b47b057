"""Rows of a table that no export recorded, which a comparison by ranges of offsets cannot find.

    recorded     topic, partition -> the ranges of offsets in the table's state
    rows         topic, partition, offset of each -> those outside the ranges: count and lowest offsets per partition

A row is outside if its offset is not in a recorded range, its partition is not in the state, or its topic, partition
or offset is null. Compaction does not explain such a row: an export never writes offsets that it does not record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.audit.table import SHOWN_OFFSETS

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("topic", "partition", "offset")
PartitionKey = tuple[str | None, int | None]
"""A row's topic and partition, each of which may be null."""
RecordedRanges = Mapping[PartitionKey, tuple[tuple[int, int], ...]]
"""The recorded ranges of each topic and partition: from the first offset to below the second."""


@dataclass(frozen=True, slots=True)
class UnrecordedRows:
    """Rows of one topic and partition outside its recorded offsets: their number, and the lowest offsets."""

    topic: str | None
    partition: int | None
    rows: int
    offsets: tuple[int, ...]


def find_outside(batches: Iterable[pa.RecordBatch], recorded: RecordedRanges) -> list[UnrecordedRows]:
    """Count the rows of ``batches`` (topic, partition, offset) outside the recorded ranges, by topic and partition."""
    return sum_partitions(rows for batch in batches for rows in _outside_of(batch, recorded))


def _outside_of(batch: pa.RecordBatch, recorded: RecordedRanges) -> Iterator[UnrecordedRows]:
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    table = pa.Table.from_batches([batch]).select(list(COLUMNS)).cast(schema)
    wanted: Any = [("offset", "min"), ("offset", "max"), ("offset", "count"), ([], "count_all")]
    for group in table.group_by(["topic", "partition"], use_threads=False).aggregate(wanted).to_pylist():
        partition = group["topic"], group["partition"]
        ranges = recorded.get(partition, ())
        is_whole = group["offset_count"] == group["count_all"]
        if is_whole and any(start <= group["offset_min"] and group["offset_max"] < end for start, end in ranges):
            continue
        is_of_group: Any = pc.and_(
            _equals(table.column("topic"), partition[0]), _equals(table.column("partition"), partition[1])
        )
        offsets = table.filter(is_of_group).column("offset").to_pylist()
        outside = [one for one in offsets if one is None or not any(start <= one < end for start, end in ranges)]
        if outside:
            shown = sorted(one for one in outside if one is not None)[:SHOWN_OFFSETS]
            yield UnrecordedRows(*partition, len(outside), tuple(shown))


def _equals(column: Any, value: Any) -> Any:
    """Compare a column with a value; the result has no nulls, because null equals null here."""
    import pyarrow.compute as pc

    if value is None:
        return column.is_null()
    equal: Any = pc.equal(column, value)
    return equal.fill_null(False)


def sum_partitions(found: Iterable[UnrecordedRows]) -> list[UnrecordedRows]:
    """Sum up to one entry for each topic and partition, in order. Rows without a topic come last, and among those
    of a topic the ones without a partition."""
    found_partitions: dict[PartitionKey, UnrecordedRows] = {}
    for one in found:
        partition = one.topic, one.partition
        known = found_partitions.get(partition, UnrecordedRows(*partition, 0, ()))
        shown = sorted((*known.offsets, *one.offsets))[:SHOWN_OFFSETS]
        found_partitions[partition] = UnrecordedRows(*partition, known.rows + one.rows, tuple(shown))
    return sorted(
        found_partitions.values(), key=lambda one: (one.topic is None, one.topic, one.partition is None, one.partition)
    )
