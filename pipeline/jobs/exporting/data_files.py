"""Descriptions of an Iceberg table's data files for its manifests, read from the footers of Parquet files.

This module replaces pyiceberg's own ``add_files``, which converts the bounds of timestamps to Python's ``datetime``.
That ends with the year 9999, but producers that count in microseconds write later times. Here bounds stay numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.io.fileformat import DataFileStatistics
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Transaction
    from pyiceberg.table.metadata import TableMetadata

TIME = "timestamp"
#: With this setting pyiceberg computes no bounds of the column; ``_statistics`` adds them.
_COUNTS = {f"write.metadata.metrics.column.{TIME}": "counts"}


def add_files(transaction: Transaction, io: FileIO, paths: Iterable[str], summary: dict[str, str]) -> None:
    """Append files; the table must not have them yet. Raises ValueError when a file does not fit the table's schema or
    spec, OSError."""
    from pyiceberg.table import TableProperties

    metadata = transaction.table_metadata
    if metadata.name_mapping() is None:
        mapping = metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
    files, update = data_files(io, metadata, paths), transaction.update_snapshot(snapshot_properties=summary)
    with update.merge_append() if _is_merging(metadata) else update.fast_append() as append:
        for file in files:
            append.append_data_file(file)


def _is_merging(metadata: TableMetadata) -> bool:
    from pyiceberg.table import TableProperties
    from pyiceberg.utils.properties import property_as_bool

    default = TableProperties.MANIFEST_MERGE_ENABLED_DEFAULT
    return bool(property_as_bool(metadata.properties, TableProperties.MANIFEST_MERGE_ENABLED, default))


def data_files(io: FileIO, metadata: TableMetadata, paths: Iterable[str]) -> list[DataFile]:
    """Describe the files, several at a time. Raises ValueError when one does not fit the table's schema or spec,
    OSError."""
    from pyiceberg.utils.concurrent import ExecutorFactory

    return list(ExecutorFactory.get_or_create().map(lambda path: _data_file(io, metadata, path), paths))


def _data_file(io: FileIO, metadata: TableMetadata, path: str) -> DataFile:
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    file, schema = io.new_input(path), metadata.schema()
    with file.open() as stream:
        footer = pq.read_metadata(stream)
    found = footer.schema.to_arrow_schema()
    _check_pyarrow_schema_compatible(schema, found, format_version=metadata.format_version)
    statistics = _statistics(footer, metadata)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=statistics.partition(metadata.spec(), schema),
        file_size_in_bytes=len(file),
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _statistics(footer: Any, metadata: TableMetadata) -> DataFileStatistics:
    """Collect pyiceberg's statistics; the bounds of timestamps are the footer's numbers."""
    from pyiceberg.io.pyarrow import (
        StatsAggregator,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.types import TimestamptzType

    schema = metadata.schema()
    plan = compute_statistics_plan(schema, {**metadata.properties, **_COUNTS})
    statistics = data_file_statistics_from_parquet_metadata(footer, plan, parquet_path_to_id_mapping(schema))
    time = schema.find_field(TIME)
    bounds = StatsAggregator(TimestamptzType(), "INT64")
    column = next(number for number in range(footer.num_columns) if footer.schema.column(number).path == TIME)
    for number in range(footer.num_row_groups):
        found = footer.row_group(number).column(column).statistics
        bounds.update_min(found.min_raw)
        bounds.update_max(found.max_raw)
    statistics.column_aggregates[time.field_id] = bounds
    return statistics
