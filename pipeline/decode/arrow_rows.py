"""The conversion of blocks of decoded positions to Arrow record batches, without a Python object per record.

Compiled code copies the bytes of keys and values from the block's buffer to the end of the column's data. Those of
headers are copied once more if they come from several blocks. Offsets and times are copied as columns; topic and
partition are made once and sliced. Buffers given to Arrow are not used again.

Arrays are built from buffers: ``pyarrow.array`` and ``pyarrow.scalar`` import pandas if it is installed, which takes a
worker of Spark half a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.pipeline.decode import columns, layout
from tidelog.pipeline.decode.column_reader import Block
from tidelog.pipeline.errors import MalformedTimestampError
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.plan.rows import SegmentSlice

#: Capacity of an Arrow batch in rows, and in bytes of keys, values and headers; it is yielded when half full of either.
#: Spark's JVM reads small rows faster in large batches, and large values faster in small ones.
BATCH_ROWS = 16 * 1024
BATCH_BYTES = 4 * 1024 * 1024
_MAX_MILLISECONDS = ((1 << 63) - 1) // 1000
_MIN_MILLISECONDS = -((1 << 63) // 1000)


class _ByteColumn:
    """A binary or string column that grows block by block."""

    def __init__(self, rows: int) -> None:
        self._offsets = np.zeros(rows + 1, np.int32)
        self._validity = np.zeros((rows + 7) // 8, np.uint8)
        self._data = _allocate(0)
        self._nulls = 0
        self._rows = 0

    @property
    def size(self) -> int:
        return int(self._offsets[self._rows])

    def add(self, buffer: Any, starts: Any, sizes: Any, span: tuple[int, int]) -> None:
        """Append the fields of rows ``span``."""
        first, last = span
        used = self.size
        needed = used + int(columns.total_size(sizes[first:last]))
        if needed > len(self._data):
            # The column seldom grows again: a batch is yielded at half of BATCH_BYTES. Unused pages are never touched.
            data = _allocate(max(needed + BATCH_BYTES // 2, 2 * len(self._data)))
            data[:used] = self._data[:used]
            self._data = data
        where = np.array([first, last, self._rows], np.int64)
        self._nulls += int(columns.gather(buffer, starts, sizes, where, self._offsets, self._validity, self._data))
        self._rows += last - first

    def array(self, arrow_type: Any) -> Any:
        """Build an Arrow array from the fields added so far."""
        validity = pa.py_buffer(self._validity) if self._nulls else None
        data = pa.py_buffer(self._data[: self.size])
        return pa.Array.from_buffers(arrow_type, self._rows, [validity, pa.py_buffer(self._offsets), data], self._nulls)


def _allocate(size: int) -> Any:
    """Allocate bytes of Arrow's pool, which reuses the memory of freed batches: fresh pages cost more than the copy."""
    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


class ArrowRows:
    """Builder of record batches in the schema of ``wanted`` from the blocks of one slice. One thread."""

    def __init__(self, piece: SegmentSlice, wanted: Columns) -> None:
        self._piece = piece
        self._wanted = wanted
        self._schema = wanted.arrow_schema()
        self._constants: dict[str, Any] = {}
        self._begin(BATCH_ROWS)

    def _begin(self, capacity: int) -> None:
        self._capacity = capacity
        self._rows = 0
        self._numbers = {
            name: np.empty(capacity, dtype)
            for name, dtype in (("offset", np.int64), ("timestamp", np.int64), ("timestampType", np.int32))
            if name in self._wanted
        }
        self._bytes = {name: _ByteColumn(capacity) for name in ("key", "value") if name in self._wanted}
        self._headers = _Headers(capacity) if "headers" in self._wanted else None

    def add(self, block: Block) -> Iterator[Any]:
        """Append a block, and yield each record batch that is full."""
        if self._rows and self._rows + block.rows > self._capacity:
            yield self.finish()
        if block.rows > self._capacity:
            self._begin(block.rows)
        rows = slice(self._rows, self._rows + block.rows)
        span = (block.first, block.last)
        for name, target in self._numbers.items():
            target[rows] = block.table[_NUMBERS[name], block.first : block.last]
        for name, column in self._bytes.items():
            start, size = _BYTES[name]
            column.add(block.buffer, block.table[start], block.table[size], span)
        if self._headers is not None:
            self._headers.add(block)
        self._rows += block.rows
        if self._rows >= BATCH_ROWS // 2 or self._size >= BATCH_BYTES // 2:
            yield self.finish()

    def finish(self) -> Any:
        """Build a record batch of the rows so far, which may be empty."""
        rows = self._rows
        arrays = [self._array(name, rows) for name in self._wanted.names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._begin(BATCH_ROWS)
        return batch

    @property
    def _size(self) -> int:
        """Bytes of keys, values and headers that wait for :meth:`finish`."""
        headers = 0 if self._headers is None else self._headers.size
        return headers + sum(column.size for column in self._bytes.values())

    @property
    def rows(self) -> int:
        """Number of rows that wait for :meth:`finish`."""
        return self._rows

    def _array(self, name: str, rows: int) -> Any:
        arrow_type = self._schema.field(name).type
        if name in self._bytes:
            return self._bytes[name].array(arrow_type)
        if name == "headers":
            assert self._headers is not None
            return self._headers.array(arrow_type, rows)
        if name in ("topic", "partition"):
            return self._constant(name, rows)
        numbers = self._numbers[name][:rows]
        if name == "timestamp":
            numbers = self._microseconds(numbers)
        return pa.Array.from_buffers(arrow_type, rows, [None, pa.py_buffer(numbers)], 0)

    def _constant(self, name: str, rows: int) -> Any:
        """Return a column of one value, which batches share: a longer batch makes it at least twice as long."""
        known = self._constants.get(name)
        if known is None or len(known) < rows:
            count = max(rows, 2 * len(known or ()))
            known = _same_text(self._piece.topic, count) if name == "topic" else _same(self._piece.partition, count)
            self._constants[name] = known
        return known[:rows]

    def _microseconds(self, milliseconds: Any) -> Any:
        if milliseconds.size and (milliseconds.max() > _MAX_MILLISECONDS or milliseconds.min() < _MIN_MILLISECONDS):
            self._refuse(milliseconds)
        return milliseconds * 1000

    def _refuse(self, milliseconds: Any) -> None:
        bad = int(np.argmax((milliseconds > _MAX_MILLISECONDS) | (milliseconds < _MIN_MILLISECONDS)))
        piece = self._piece
        where = f"offset {self._numbers['offset'][bad]}" if "offset" in self._numbers else f"file {piece.path}"
        raise MalformedTimestampError(
            f"{piece.topic}-{piece.partition}, {where}: timestamp {milliseconds[bad]} ms does not fit microseconds in "
            "64 bits (read without the column timestamp, or leave the record out by its offset)"
        )


def _same(number: int, rows: int) -> Any:
    """Build an array of 32-bit integers that are all ``number``."""
    return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(np.full(rows, number, np.int32))], 0)


def _same_text(text: str, rows: int) -> Any:
    """Build an array of strings that are all ``text``."""
    data = text.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(data * rows)], 0)


class _Headers:
    """The headers column: a list of (name, value) per row, null where a record has none."""

    def __init__(self, rows: int) -> None:
        self._counts = np.zeros(rows, np.int64)
        self._rows = 0
        self.size = 0
        """Bytes of all names and values."""
        self._names: list[Any] = []
        self._values: list[Any] = []

    def add(self, block: Block) -> None:
        """Append the headers of a block's rows."""
        counts = block.table[layout.HEADERS, block.first : block.last]
        self._counts[self._rows : self._rows + block.rows] = counts
        self._rows += block.rows
        total = int(counts.sum())
        if not total:
            return
        fields = np.zeros((4, total), np.int64)
        columns.header_fields(block.buffer, block.table, np.array([block.first, block.last, 0], np.int64), fields)
        for target, start, size, arrow_type in (
            (self._names, fields[0], fields[1], pa.string()),
            (self._values, fields[2], fields[3], pa.binary()),
        ):
            column = _ByteColumn(total)
            column.add(block.buffer, start, size, (0, total))
            self.size += column.size
            target.append(column.array(arrow_type))

    def array(self, arrow_type: Any, rows: int) -> Any:
        """Build the column; names that are not UTF-8 get replacement characters, as Kafka's clients read them."""
        counts = self._counts[:rows]
        names = pa.concat_arrays(self._names) if self._names else pa.nulls(0, pa.string())
        values = pa.concat_arrays(self._values) if self._values else pa.nulls(0, pa.binary())
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        validity = np.packbits(counts > 0, bitorder="little")
        items = pa.StructArray.from_arrays([_valid_text(names), values], fields=list(arrow_type.value_type))
        nulls = int(rows - np.count_nonzero(counts))
        buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(arrow_type, rows, buffers, nulls, children=[items])


def _valid_text(names: Any) -> Any:
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        raw = names.view(pa.binary()).to_pylist()
        return pa.array([name.decode("utf-8", "replace") for name in raw], pa.string())
    return names


_NUMBERS = {"offset": layout.OFFSET, "timestamp": layout.TIMESTAMP, "timestampType": layout.TIMESTAMP_TYPE}
_BYTES = {"key": (layout.KEY_START, layout.KEY_SIZE), "value": (layout.VALUE_START, layout.VALUE_SIZE)}
