"""Spark's data source ``tidelog``. PySpark finds it without registration: a package ``pyspark_<format>`` with a
``DefaultSource``.

The code is in ``tidelog.pipeline``; each part is imported when Spark needs it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from tidelog.pipeline.errors import PipelineError, hide_frames
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """``format("tidelog")``: batch and streaming source, batch and streaming sink."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "tidelog"

    @hide_frames
    def schema(self) -> StructType | str:
        """Return the columns of Spark's Kafka source, or those of the option ``columns``.

        Raises OptionError, and PipelineError without PyArrow.
        """
        ensure_arrow()
        from tidelog.pipeline.options.table_options import options_of_statement, schema_with_options

        of_table = options_of_statement(self.options)
        if of_table is None:
            return _columns_asked_for(self.options).ddl()
        return schema_with_options(_columns_asked_for(of_table), of_table)

    @hide_frames
    def reader(self, schema: StructType) -> DataSourceReader:
        """Build the batch reader of these columns. Raises OptionError."""
        from tidelog.pipeline.options.table_options import refuse_options_beside_table
        from tidelog.pipeline.source.reader import TidelogReader

        refuse_options_beside_table(schema, self.options)
        return TidelogReader(parse_options(self._options_with(schema)), _columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Build the stream reader of these columns; for wrong options, a reader that only raises their error."""
        from tidelog.pipeline.source.stream_reader import RefusedStreamReader, TidelogStreamReader

        try:
            options = parse_options(self._options_with(schema), streaming=True)
            return TidelogStreamReader(options, _columns_of(schema))
        except PipelineError as error:  # Spark 4.2 replaces an error raised here by an UnboundLocalError of its own
            return RefusedStreamReader(error)

    @hide_frames
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Build the batch sink. Raises OptionError, StagingError, and PipelineError without PyArrow."""
        ensure_arrow()
        from tidelog.pipeline.sink.sink import TidelogBatchWriter

        return TidelogBatchWriter(self.options, schema, overwrite)

    @hide_frames
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Build the streaming sink. Raises OptionError, and PipelineError without PyArrow."""
        ensure_arrow()
        from tidelog.pipeline.sink.sink import TidelogStreamWriter

        return TidelogStreamWriter(self.options, schema, overwrite)

    def _options_with(self, schema: StructType) -> Mapping[str, str]:
        """Return the options, merged into those of the table that the schema comes from."""
        from tidelog.pipeline.options.table_options import options_of_table

        return options_of_table(schema, self.options)


def ensure_arrow() -> None:
    """Raise PipelineError if PyArrow is not installed: Spark's own error does not say how to install it."""
    if importlib.util.find_spec("pyarrow") is None:
        raise PipelineError(
            f"pyarrow is not installed for {sys.executable}, with which Spark runs Python (PYSPARK_PYTHON, else "
            "python3 of PATH): expected pip install 'tidelog[spark]' there"
        )


def _columns_asked_for(options: Mapping[str, str]) -> Columns:
    given = {name.lower(): value for name, value in options.items()}
    if "columns" in given:
        return Columns(tuple(name.strip() for name in given["columns"].split(",")))
    return Columns.default(headers=given.get("includeheaders", "").lower() == "true")


def _columns_of(schema: StructType) -> Columns:
    return Columns.of_fields((field.name, field.dataType.simpleString()) for field in schema.fields)
