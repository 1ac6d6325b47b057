"""Encoder of Arrow rows into record batches: the sink's columns, the partition of each row, batches per partition.

Columns are those of Spark's Kafka sink, and ``timestamp``; names without regard to case:

    value      string or binary, required             key      string or binary
    topic      string, unless the option names one    headers  array<struct<key: string, value: binary>>
    partition  int; null: as Kafka's producer does    timestamp  timestamp, null: now

``offset`` and ``timestampType`` of the sources are ignored, because a log assigns them itself. Any other column is an
error, because it would be lost.

A row without partition goes to the partition that Kafka's producer would choose: by murmur2 of its key; without a key,
to one partition until a batch is full, then to the next. Rows are gathered up to ``kafka.buffer.memory``. Their numbers
are sorted by topic-partition, and sections are built for each (``tidelog.pipeline.sink.build``), without Python code
per row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.pipeline.errors import OptionError, PipelineError
from tidelog.pipeline.options.sink_options import SinkOptions
from tidelog.pipeline.sink.build import ByteColumn, RecordColumns, byte_column, encode, key_hashes, read_only, take
from tidelog.protocol.record.record_batch import BatchOptions, BatchTimes, assemble_batch

if TYPE_CHECKING:
    from tidelog.pipeline.sink.build import IntegerArray

_BYTES = ("string", "binary")
_HEADERS = "array<struct<key:string,value:binary>>"
_TYPES = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "headers": (_HEADERS,),
    "timestamp": ("timestamp",),
}
_OF_SOURCES = ("offset", "timestamptype")
#: Approximate bytes of a record besides key and value, to decide when a batch of rows without keys is full.
_RECORD_OVERHEAD = 12


class RowError(PipelineError):
    """A row cannot become a record."""


class BuiltBatch(NamedTuple):
    """A record batch ready for its partition, but without producer id, epoch, sequence and transactional bit."""

    topic: str
    partition: int
    data: bytearray
    records: int


def sink_columns(fields: Iterable[tuple[str, str]], options: SinkOptions) -> dict[str, int]:
    """Map each column to its index among ``fields`` (name, Spark type). Raises OptionError."""
    indices: dict[str, int] = {}
    for index, (name, spark_type) in enumerate(fields):
        lower = name.lower()
        if lower in _OF_SOURCES:
            continue
        if lower not in _TYPES:
            raise OptionError(f"column {name} cannot be written: expected some of {', '.join(_TYPES)}")
        if spark_type not in _TYPES[lower]:
            raise OptionError(f"column {name} has type {spark_type}: expected {' or '.join(_TYPES[lower])}")
        if lower in indices:
            raise OptionError(f"column {name} appears twice")
        indices[lower] = index
    if "value" not in indices:
        raise OptionError("column value is missing: expected a column value of type string or binary")
    if "topic" not in indices and options.topic is None:
        raise OptionError("no topic: expected the option topic or a column topic")
    if options.topic is not None:
        indices.pop("topic", None)
    if not options.include_headers:
        indices.pop("headers", None)
    return indices


@dataclass(slots=True)
class BatchBuilder:
    """Builder of the batches of one task attempt.

    ``partitions_of`` returns a topic's number of partitions. ``first`` modulo that number is the first partition for
    rows without key; tasks and small batches begin with different ones. ``keyless_bytes``: the bytes of such rows so
    far, by topic.
    """

    options: SinkOptions
    columns: dict[str, int]
    partitions_of: Callable[[str], int]
    first: int
    keyless_bytes: dict[str, int]

    def batches(self, arrow: Iterable[pa.RecordBatch]) -> Iterator[BuiltBatch]:
        """Yield all batches of the task's rows. Raises RowError, and the errors of ``partitions_of``."""
        gathered: list[pa.RecordBatch] = []
        size = 0
        for part in arrow:
            gathered.append(part)
            size += part.nbytes
            if size >= self.options.buffer_bytes:
                yield from self._build(gathered)
                gathered, size = [], 0
        yield from self._build(gathered)

    def _build(self, gathered: list[pa.RecordBatch]) -> Iterator[BuiltBatch]:
        gathered = [part for part in gathered if part.num_rows]
        if not gathered:
            return
        table = pa.Table.from_batches(gathered)
        columns = self._record_columns(table)
        topics, codes = self._topics(table)
        partitions = self._partitions(table, columns, topics, codes)
        order = np.argsort(codes << 32 | partitions, kind="stable")
        targets = (codes << 32 | partitions)[order]
        bounds = [0, *(np.flatnonzero(np.diff(targets)) + 1).tolist(), len(order)]
        for begin, end in pairwise(bounds):
            topic, partition = topics[int(targets[begin]) >> 32], int(targets[begin]) & 0xFFFFFFFF
            yield from self._partition_batches(columns, read_only(order[begin:end]), topic, partition)

    def _partition_batches(
        self, columns: RecordColumns, rows: IntegerArray, topic: str, partition: int
    ) -> Iterator[BuiltBatch]:
        first = 0
        while first < len(rows):
            taken = take(columns, rows, first, self.options.batch_bytes)
            data = assemble_batch(
                encode(columns, rows, first, taken),
                BatchOptions(compression=self.options.codec),
                base_offset=0,
                last_offset_delta=taken.rows - 1,
                times=BatchTimes(taken.base_timestamp, taken.max_timestamp),
                count=taken.rows,
            )
            yield BuiltBatch(topic, partition, data, taken.rows)
            first += taken.rows

    def _column(self, table: pa.Table, name: str) -> Any:
        """Return the column as one array, or None if the rows do not have it."""
        index = self.columns.get(name)
        return None if index is None else _as_one(table.column(index))

    def _record_columns(self, table: pa.Table) -> RecordColumns:
        rows = table.num_rows
        starts, counts, header_key, header_value = _headers(self._column(table, "headers"), rows)
        return RecordColumns(
            key=_bytes_of(self._column(table, "key"), rows),
            value=_bytes_of(self._column(table, "value"), rows),
            timestamp=_timestamps(self._column(table, "timestamp"), rows),
            header_start=starts,
            header_count=counts,
            header_key=header_key,
            header_value=header_value,
        )

    def _topics(self, table: pa.Table) -> tuple[list[str], IntegerArray]:
        """Return the topics of these rows and, per row, the index of its topic."""
        if self.options.topic is not None:
            return [self.options.topic], np.zeros(table.num_rows, np.int64)
        column = self._column(table, "topic")
        if column.null_count:
            raise RowError(f"topic is null in {column.null_count} rows: expected a topic in each, or the option topic")
        encoded = column.dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)

    def _partitions(
        self, table: pa.Table, columns: RecordColumns, topics: list[str], codes: IntegerArray
    ) -> IntegerArray:
        counts = np.array([self.partitions_of(topic) for topic in topics], np.int64)[codes]
        asked = self._column(table, "partition")
        hashes = key_hashes(columns.key)
        chosen: IntegerArray = hashes % counts
        for code in np.unique(codes[hashes < 0]).tolist():
            self._assign_keyless(columns, np.flatnonzero((hashes < 0) & (codes == code)), topics[code], counts, chosen)
        if asked is None:
            return chosen
        given = asked.is_valid().to_numpy(zero_copy_only=False)
        wanted = asked.fill_null(0).to_numpy().astype(np.int64)
        outside = np.flatnonzero(given & ((wanted < 0) | (wanted >= counts)))
        if outside.size:
            row = outside[0]
            raise RowError(
                f"partition {wanted[row]} of topic {topics[int(codes[row])]}: expected 0 to {counts[row] - 1}"
            )
        return np.where(given, wanted, chosen)

    def _assign_keyless(
        self, columns: RecordColumns, rows: IntegerArray, topic: str, counts: IntegerArray, chosen: IntegerArray
    ) -> None:
        """Choose a partition until its rows fill a batch, then the next one; later calls continue the last batch."""
        ends = np.cumsum(np.maximum(columns.value.length[rows], 0) + _RECORD_OVERHEAD)
        ends += self.keyless_bytes.get(topic, 0)
        chosen[rows] = (ends // self.options.batch_bytes + self.first) % counts[rows]
        self.keyless_bytes[topic] = int(ends[-1])


def _as_one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _bytes_of(column: pa.Array | None, rows: int) -> ByteColumn:
    """Convert a string or binary array to a column of bytes; None gives nulls."""
    if column is None:
        return byte_column(b"", np.zeros(rows, np.int64), np.full(rows, -1, np.int64))
    large = column.cast(pa.large_binary())
    _validity, offset_buffer, data = large.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[large.offset : large.offset + len(large) + 1]
    lengths = np.diff(offsets)
    if large.null_count:
        lengths[large.is_null().to_numpy(zero_copy_only=False)] = -1
    return byte_column(b"" if data is None else data, offsets[:-1], lengths)


def _timestamps(column: pa.Array | None, rows: int) -> IntegerArray:
    """Return timestamps in ms, rounded down; nulls become the current time."""
    now = time.time_ns() // 1_000_000
    if column is None:
        return read_only(np.full(rows, now, np.int64))
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return read_only(micros.fill_null(now * 1000).to_numpy() // 1000)


def _headers(column: pa.Array | None, rows: int) -> tuple[IntegerArray, IntegerArray, ByteColumn, ByteColumn]:
    """Return each row's first header and number of headers, and all names and values. Raises RowError on a null
    name."""
    if column is None:
        none = read_only(np.zeros(rows, np.int64))
        return none, none, _bytes_of(None, 0), _bytes_of(None, 0)
    offsets = column.offsets.to_numpy().astype(np.int64)
    counts = np.diff(offsets)
    if column.null_count:
        counts[column.is_null().to_numpy(zero_copy_only=False)] = 0
    names, values = column.values.flatten()
    if names.null_count:
        raise RowError(f"{names.null_count} headers have a null key: expected a name for each")
    return read_only(offsets[:-1]), read_only(counts), _bytes_of(names, len(names)), _bytes_of(values, len(values))
