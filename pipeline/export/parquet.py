"""The writer of an exported table's Parquet files. A file that grows keeps every byte that it had.

    the file as it was       row groups | footer
    the file as it grows     row groups | footer | more row groups | footer of all

The grown file takes the other's name by one rename. So a reader that has listed, measured or planned the file before,
and opens it later, finds what it planned: the same row groups at the same positions, and a footer where the file
ended. A later reader finds the footer of all. The first row groups are written again, since PyArrow cannot copy
them as bytes. The writer checks that they came out the same, and otherwise leaves the file as it is.

Offsets and times are delta-coded, the constant columns dictionaries; keys and values go as they are: dictionaries and
statistics of them cost more time than everything else together. ``codecs`` chooses by the first row group which columns
zstd makes smaller; a file that grows keeps its choice. It goes to the disk row group by row group.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from tidelog.pipeline.export.codecs import ENCODING, Codecs, choose_codecs, codecs_of, compression_of
from tidelog.pipeline.export.store import LOCAL, TableStore
from tidelog.pipeline.job_errors import JobError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Rows are collected to row groups of about this many bytes in memory.
ROW_GROUP_BYTES = 32 * 1024 * 1024
#: Each time it grows, a file gets a row group and keeps a footer: with so many it grows no more.
MOST_ROW_GROUPS = 64
_COMPARED_BYTES = 1024 * 1024


class RowWriter:
    """One file that is being written. ``rows`` and ``largest_timestamp`` (ms, -1 without rows) are of ``write``.

    After an error of any method nothing is left of it: no file, open descriptor or thread.
    """

    def __init__(self, path: str, schema: pa.Schema, origin: Mapping[str, str], store: TableStore = LOCAL) -> None:
        self.rows = 0
        self.largest_timestamp = -1
        self._path = path
        self._part = store.part_of(path)
        self._schema = schema.with_metadata(dict(origin))
        self._store = store
        self._sink = store.open_output(self._part)
        self._sync = store.begin_sync(self._part)
        self._writer: pq.ParquetWriter | None = None

    def _begin(self, codecs: Codecs) -> pq.ParquetWriter:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(self._sink, self._schema, **compression_of(codecs), **ENCODING)
        return self._writer

    def begin_with(self, earlier: str) -> bool:
        """Take over the bytes of the file at ``earlier``; false when they cannot be, and this writer is of no use.

        Raises JobError when that file has other columns.
        """
        import pyarrow.parquet as pq

        with self.or_nothing(), open(earlier, "rb") as source, pq.ParquetFile(source) as file:
            if file.schema_arrow.names == self._schema.names[: len(file.schema_arrow.names)]:
                if not file.schema_arrow.equals(self._schema):
                    return False  # the table has got wider
            else:
                found, expected = (", ".join(names) for names in (file.schema_arrow.names, self._schema.names))
                raise JobError(f"{earlier} has the columns {found}: expected {expected} (the headers option)")
            if file.num_row_groups >= MOST_ROW_GROUPS:
                return False
            self._begin(codecs_of(file.metadata.row_group(0)))
            for number in range(file.num_row_groups):
                self._copy(source, _start_of(file.metadata.row_group(number)))
                self._write_group(file.read_row_group(number).cast(self._schema))
            self._copy(source, os.fstat(source.fileno()).st_size)
            return self._is_equal_to(source)

    def _copy(self, source: BinaryIO, end: int) -> None:
        """Take over the footers that lie between here and ``end``."""
        begin = self._sink.tell()
        source.seek(begin)
        self._sink.write(source.read(max(0, end - begin)))
        self._sink.flush()

    def _is_equal_to(self, source: BinaryIO) -> bool:
        source.seek(0)
        with open(self._part, "rb") as mine:
            while piece := source.read(_COMPARED_BYTES):
                if mine.read(len(piece)) != piece:
                    return False
            return not mine.read(1)

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows, in row groups of ``ROW_GROUP_BYTES``."""
        with self.or_nothing():
            for group in _row_groups(batches):
                self._write_batches(group)

    def _write_batches(self, group: list[pa.RecordBatch]) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        table = pa.Table.from_batches(group)
        latest: Any = pc.max(table.column("timestamp").cast(pa.int64()))
        self.rows += table.num_rows
        self.largest_timestamp = max(self.largest_timestamp, latest.as_py() // 1000)
        self._write_group(table.cast(self._schema))

    def _write_group(self, table: pa.Table) -> None:
        writer = self._writer or self._begin(choose_codecs(table))
        writer.write_table(table.combine_chunks())  # pages end where pieces end: one piece makes equal pages
        self._sync.go_on()

    def close(self) -> None:
        """End the file, which has rows; it is on disk then. Raises OSError."""
        with self.or_nothing():
            self._close_files()
            self._sync.end()
            self._store.put_in_place(self._part, self._path)

    def give_up(self) -> None:
        """End without a file. Raises OSError, at the end: a full disk has no room for a footer either."""
        with ExitStack() as ends:  # the last one first
            ends.callback(self._store.remove, self._part)
            ends.callback(self._sync.give_up)
            ends.callback(self._close_files)

    @contextmanager
    def or_nothing(self) -> Iterator[None]:
        """Give up where the work inside fails; its error is the one to tell."""
        try:
            yield
        except BaseException:
            with suppress(OSError):
                self.give_up()
            raise

    def _close_files(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self._sink.close()


def _start_of(group: pq.RowGroupMetaData) -> int:
    """Return the position of a row group's first page."""
    first = group.column(0)
    return int(first.dictionary_page_offset if first.has_dictionary_page else first.data_page_offset)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            group.append(batch)
            size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
