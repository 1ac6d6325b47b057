"""Found by PySpark by its name: a package ``pyspark_<format>`` that exports ``DefaultSource`` needs no registration.

The code lives in ``pipeline``; each part is imported when Spark asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pipeline.columns import Columns
from pipeline.options import parse_options

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
        """The format's name."""
        return "tidelog"

    def schema(self) -> str:
        """The columns of Spark's Kafka source, or those of the option ``columns``. Raises OptionError."""
        names = {name.lower() for name in self.options}
        columns = self.options.get("columns")
        if columns is not None:
            return Columns(tuple(name.strip() for name in columns.split(","))).ddl()
        has_headers = "includeheaders" in names and self.options.get("includeheaders", "").lower() == "true"
        return Columns.all(headers=has_headers).ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader of these columns. Raises OptionError."""
        from pipeline.reader import FilteringReader, TidelogReader

        options = parse_options(self.options)
        kind = FilteringReader if options.push_filters else TidelogReader
        return kind(options, _columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The stream reader of these columns. Raises OptionError."""
        from pipeline.stream_reader import TidelogStreamReader

        return TidelogStreamReader(parse_options(self.options, streaming=True), _columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The batch sink. Raises OptionError."""
        from pipeline.sink import TidelogBatchWriter

        return TidelogBatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """The streaming sink. Raises OptionError."""
        from pipeline.sink import TidelogStreamWriter

        return TidelogStreamWriter(self.options, schema, overwrite)


def _columns_of(schema: StructType) -> Columns:
    return Columns.of_fields((field.name, field.dataType.simpleString()) for field in schema.fields)
