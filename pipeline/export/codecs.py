"""The choice of a codec for each column of a Parquet file: zstd, or none if zstd would hardly make it smaller.

Values that are encrypted, compressed or random do not get smaller, and compressing them takes more time than all other
work on them. So a sample of the file's first row group is written to memory, and its footer says how much zstd saved in
each column. Readers find the codec in the footer, as always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

ZSTD_LEVEL = 1
SAMPLE_BYTES = 1024 * 1024
"""About the size of a page, which is what zstd compresses at once."""
EVIDENCE_BYTES = 64 * 1024
"""A column with fewer bytes in the sample is compressed in any case."""
MIN_SAVING = 0.05
"""The share of a column's bytes that zstd must save, so that the column is compressed."""
_NONE, _ZSTD = "none", "zstd"
ENCODING: dict[str, Any] = {
    "use_dictionary": ["topic", "partition", "timestampType"],
    "write_statistics": ["topic", "partition", "offset", "timestamp"],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
}
"""Arguments of ``ParquetWriter`` for the columns of records."""

Codecs = dict[str, str]
"""Path of a column within the schema (``headers.list.element.key``) -> codec."""


def choose_codecs(table: pa.Table) -> Codecs:
    """Return the codecs for a file that begins with these rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = min(table.num_rows, max(1, table.num_rows * SAMPLE_BYTES // max(1, table.nbytes)))
    sample = table.slice((table.num_rows - rows) // 2, rows)
    stream = pa.BufferOutputStream()
    pq.write_table(sample, stream, compression=_ZSTD, compression_level=ZSTD_LEVEL, **ENCODING)
    group = pq.read_metadata(pa.BufferReader(stream.getvalue())).row_group(0)
    return {column.path_in_schema: _ZSTD if _is_worth(column) else _NONE for column in _columns(group)}


def codecs_of(group: pq.RowGroupMetaData) -> Codecs:
    """Return the codecs of a written row group."""
    return {
        column.path_in_schema: _NONE if column.compression == "UNCOMPRESSED" else _ZSTD for column in _columns(group)
    }


def compression_of(codecs: Codecs) -> dict[str, Any]:
    """Return the arguments of ``ParquetWriter`` for codecs."""
    levels = {path: ZSTD_LEVEL for path, codec in codecs.items() if codec == _ZSTD}
    return {"compression": codecs, "compression_level": levels or None}


def _is_worth(column: pq.ColumnChunkMetaData) -> bool:
    raw, compressed = int(column.total_uncompressed_size), int(column.total_compressed_size)
    return raw < EVIDENCE_BYTES or compressed < (1 - MIN_SAVING) * raw


def _columns(group: pq.RowGroupMetaData) -> list[pq.ColumnChunkMetaData]:
    return [group.column(number) for number in range(group.num_columns)]
