"""The writer of an exported table's Parquet files. A file that grows keeps every byte that it had.

    the file as it was       row groups | footer
    the file as it grows     row groups | footer | more row groups | footer of all

One rename gives the grown file the name of the earlier one. So a reader that listed or planned the earlier file, and
opens it later, finds what it planned: the same row groups at the same positions, and a footer where the file
ended. A later reader finds the footer of all row groups. The first row groups are encoded again, because PyArrow cannot
copy them as bytes. The writer checks that the bytes are equal, and otherwise does not let the file grow.

Offsets and timestamps are delta-encoded, and constant columns have dictionaries. Keys and values are plain:
dictionaries and statistics of them would take more time than all other work together. ``codecs`` chooses by the first
row group which columns are compressed by zstd; a file that grows keeps that choice. The file is synced row group by row
group.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from tidelog.pipeline.errors import one_line
from tidelog.pipeline.export.codecs import ENCODING, Codecs, choose_codecs, codecs_of, compression_of
from tidelog.pipeline.export.early_sync import FileSync, NoSync
from tidelog.pipeline.export.store import LOCAL, TableStore
from tidelog.pipeline.job_errors import JobError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: A row group ends with the batch at which its rows have so many bytes in memory; the last one of a ``write`` may be
#: smaller.
ROW_GROUP_BYTES = 32 * 1024 * 1024
#: Each growth adds a row group and a footer to a file; with this many row groups it grows no more.
MAX_ROW_GROUPS = 64
_COMPARED_BYTES = 1024 * 1024


@contextmanager
def name_unreadable(path: str) -> Iterator[None]:
    """Turn an error of reading a table's file inside ``with`` into a JobError that names the file."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise JobError(f"{path} cannot be read: it is missing") from error
    except (pa.ArrowException, OSError) as error:
        raise JobError(f"{path} cannot be read: {one_line(error)}") from error


class RowWriter:
    """A file that is being written. ``rows`` and ``largest_timestamp`` (ms, -1 without rows) cover the rows of
    ``write``.

    After an error of the constructor or any method it leaves no file, open descriptor or thread.
    """

    def __init__(self, path: str, schema: pa.Schema, origin: Mapping[str, str], store: TableStore = LOCAL) -> None:
        self.rows = 0
        self.largest_timestamp = -1
        self._path = path
        self._part = store.part_of(path)
        self._schema = schema.with_metadata(dict(origin))
        self._store = store
        self._writer: pq.ParquetWriter | None = None
        self._sync: FileSync = NoSync()
        self._sink = store.open_output(self._part)
        with self.give_up_on_error():
            self._sync = store.begin_sync(self._part)

    def _begin(self, codecs: Codecs) -> pq.ParquetWriter:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(self._sink, self._schema, **compression_of(codecs), **ENCODING)
        return self._writer

    def begin_with(self, earlier: str) -> bool:
        """Write the rows of the file at ``earlier`` first, with equal bytes; False if that is not possible.

        After False only ``give_up`` may be called. Raises JobError when that file has other columns or cannot be read,
        OSError when the new one cannot be written.
        """
        with self.give_up_on_error(), _open_earlier(earlier) as (source, file):
            if file.schema_arrow.names == self._schema.names[: len(file.schema_arrow.names)]:
                if not file.schema_arrow.equals(self._schema):
                    return False  # the table has more columns now, or a column has a wider type
            else:
                found, expected = (", ".join(names) for names in (file.schema_arrow.names, self._schema.names))
                raise JobError(f"{earlier} has the columns {found}: expected {expected} (the headers option)")
            if file.num_row_groups >= MAX_ROW_GROUPS:
                return False
            self._begin(codecs_of(file.metadata.row_group(0)))
            for number in range(file.num_row_groups):
                self._copy(source, _start_of(file.metadata.row_group(number)))
                with name_unreadable(earlier):
                    group = file.read_row_group(number).cast(self._schema)
                self._write_group(group)
            self._copy(source, os.fstat(source.fileno()).st_size)
            return self._is_equal_to(source)

    def _copy(self, source: BinaryIO, end: int) -> None:
        """Copy the bytes of footers between the current position and ``end``."""
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
        """Write rows, in row groups of about ``ROW_GROUP_BYTES``."""
        with self.give_up_on_error():
            for group in _row_groups(batches):
                self._write_batches(group)

    def _write_batches(self, group: list[pa.RecordBatch]) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        table = pa.Table.from_batches(group)
        latest: Any = pc.max(table.column("timestamp").cast(pa.int64())).as_py()
        self.rows += table.num_rows
        if latest is not None:  # only rows of other writers may have no time
            self.largest_timestamp = max(self.largest_timestamp, latest // 1000)
        self._write_group(table.cast(self._schema))

    def _write_group(self, table: pa.Table) -> None:
        writer = self._writer or self._begin(choose_codecs(table))
        writer.write_table(table.combine_chunks())  # pages end where chunks end: a single chunk makes equal pages
        self._sync.begin_sync()

    def close(self) -> None:
        """Finish the file, which has rows, and wait until it is on disk. Raises OSError."""
        with self.give_up_on_error():
            self._close_files()
            self._sync.end()
            self._store.put_in_place(self._part, self._path)

    def give_up(self) -> None:
        """Remove the unfinished file. Raises OSError after all steps were tried: a full disk has no room for a footer
        either."""
        with ExitStack() as ends:  # the last one first
            ends.callback(self._store.remove, self._part)
            ends.callback(self._sync.give_up)
            ends.callback(self._close_files)

    @contextmanager
    def give_up_on_error(self) -> Iterator[None]:
        """Call ``give_up`` if the work inside ``with`` fails; its error is raised, not that of ``give_up``."""
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


@contextmanager
def _open_earlier(path: str) -> Iterator[tuple[BinaryIO, pq.ParquetFile]]:
    """Open the file that grows. Raises JobError."""
    import pyarrow.parquet as pq

    with ExitStack() as opened:
        with name_unreadable(path):
            source = opened.enter_context(open(path, "rb"))
            file = opened.enter_context(pq.ParquetFile(source))
        yield source, file


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
