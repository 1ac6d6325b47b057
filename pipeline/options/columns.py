"""The columns of ``format("tidelog")``: those of Spark's Kafka source, in its order.

    key binary | value binary | topic string | partition int | offset bigint | timestamp timestamp | timestampType int
    | headers array<struct<key: string, value: binary>>            the last one with includeHeaders=true only

``timestampType``: 0 create time, 1 log append time, -1 for magic 0, which has no timestamps (-1 ms then). Importing
this module imports neither pyarrow nor pyspark.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from tidelog.pipeline.errors import OptionError
from tidelog.pipeline.job_errors import JobError

NAMES = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
#: The start of the year 1 and the end of the year 9999 in microseconds since 1970: tables that are partitioned by time
#: cannot have other hours or days.
CALENDAR_START, CALENDAR_END = -62_135_596_800_000_000, 253_402_300_800_000_000
#: Columns of an exported table that an audit needs.
COMPARED = ("topic", "partition", "offset", "timestamp", "key", "value")
#: Column -> its type in Spark's DDL.
SPARK_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


def calendar_mask(batch: Any) -> Any:
    """Compute which rows of an Arrow batch have a time from CALENDAR_START to before CALENDAR_END: an array of
    booleans."""
    import pyarrow as pa
    import pyarrow.compute as pc

    times = batch.column("timestamp").cast(pa.int64())
    return pc.and_(pc.greater_equal(times, CALENDAR_START), pc.less(times, CALENDAR_END))


def require_columns(table: str, found: Container[str], wanted: Iterable[str]) -> None:
    """Raise JobError if a table does not have a wanted column."""
    missing = [name for name in wanted if name not in found]
    if missing:
        raise JobError(f"{table} has no column {missing[0]}: expected the columns of an export")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that a reader wants, in its order. Raises OptionError without columns, and for an unknown or repeated
    name."""

    names: tuple[str, ...] = NAMES[:-1]

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in NAMES:
                raise OptionError(f"column {name!r} is unknown: expected some of {', '.join(NAMES)}")
        if len(set(self.names)) != len(self.names) or not self.names:
            raise OptionError(
                f"columns {', '.join(self.names) or '(none)'}: expected each column at most once, one at least"
            )

    @classmethod
    def default(cls, *, headers: bool = False) -> Columns:
        """Return every column; ``headers`` only if it is set."""
        return cls(NAMES if headers else NAMES[:-1])

    @classmethod
    def of_fields(cls, fields: Iterable[tuple[str, str]]) -> Columns:
        """Parse the (name, Spark type) pairs of a user's schema.

        Raises OptionError as the class does, and when a type is not the column's.
        """
        pairs = list(fields)
        columns = cls(tuple(name for name, _ in pairs))
        for name, spark_type in pairs:
            if spark_type != SPARK_TYPES[name]:
                raise OptionError(f"column {name} has type {spark_type} in the schema: expected {SPARK_TYPES[name]}")
        return columns

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def ddl(self) -> str:
        """Write the schema as Spark reads it from text."""
        return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in self.names)

    def arrow_schema(self) -> Any:
        """Build the ``pyarrow.Schema`` that PySpark demands of batches; it refuses any other."""
        import pyarrow as pa

        header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        types = {
            "key": pa.binary(),
            "value": pa.binary(),
            "topic": pa.string(),
            "partition": pa.int32(),
            "offset": pa.int64(),
            "timestamp": pa.timestamp("us", tz="UTC"),
            "timestampType": pa.int32(),
            "headers": pa.list_(pa.field("element", header)),
        }
        return pa.schema([pa.field(name, types[name]) for name in self.names])
