"""Options of ``CREATE TABLE ... USING tidelog OPTIONS (...)``, carried from the statement to the table's readers.

Spark asks a Python source for the schema of a new table with the statement's options, spelled ``option.<name>``, and
keeps that schema in its catalogue. The reader of a query on the table gets this schema and the query's own options, but
none of the table's (Spark 4.2). The catalogue keeps names, types and metadata of a schema; so the options are carried
as metadata of the first column. Spark writes them into Parquet files that have this column, too: so a table takes no
option that holds a secret.

A batch query's own options (``SELECT ... FROM t WITH (...)``, ``spark.read.option(...).table("t")``) are refused: a
statement that names a table twice has one source for both, created with the options of the mention that Spark plans
first. A stream's own options (``spark.readStream.option(...).table("t")``) override the table's, because a stream has a
source of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.pipeline.errors import OptionError
from tidelog.pipeline.options.columns import Columns
from tidelog.protocol.foreign_text import decode_json

_PREFIX = "option."
_KEY = "tidelog.options"
_SECRET = re.compile(r"password|passphrase|secret|jaas|\.key$", re.IGNORECASE)
"""Options that hold secrets, of any version of Kafka's clients."""
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


def options_of_statement(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a ``CREATE TABLE`` statement; None for any other, and without options. ``path`` is as Spark
    resolved it. Raises OptionError for an option that holds a secret."""
    given = {name[len(_PREFIX) :]: value for name, value in options.items() if name.lower().startswith(_PREFIX)}
    if not given:
        return None
    for name in filter(is_secret, given):
        raise OptionError(
            f"option {name} is not for CREATE TABLE: Spark writes a table's options into its catalogue and into files "
            "made from the table; expected CREATE TEMPORARY VIEW with the option, or spark.read.format('tidelog')"
        )
    return {**given, **{name: value for name, value in options.items() if name.lower() == "path"}}


def is_secret(name: str) -> bool:
    """Return whether an option holds a secret."""
    return _SECRET.search(name) is not None


def schema_with_options(columns: Columns, options: Mapping[str, str]) -> StructType:
    """Build the schema of the columns, with the options as metadata of the first."""
    first, *rest = [StructField(name, _TYPES[name]) for name in columns.names]
    return StructType([StructField(first.name, first.dataType, metadata={_KEY: json.dumps(dict(options))}), *rest])


def options_of_table(schema: StructType, options: Mapping[str, str]) -> Mapping[str, str]:
    """Merge a query's ``options`` into those that the table's schema carries; the query's options override them."""
    return {**_list_carried(schema.fields), **{name.lower(): value for name, value in options.items()}}


def refuse_options_beside_table(schema: StructType, options: Mapping[str, str]) -> None:
    """Raise OptionError for a query's option that differs from the options in the table's schema."""
    carried = _list_carried(schema.fields)
    for name, value in options.items():
        if carried and carried.get(name.lower()) != value:
            raise OptionError(
                f"option {name} is given for a query on a table: Spark 4.2 applies the options of one mention of a "
                "table in a statement to all; expected a table created with the option, or "
                "spark.read.format('tidelog')"
            )


def _list_carried(fields: Iterable[StructField]) -> dict[str, str]:
    carried: dict[str, str] = {}
    for field in fields:
        text = (field.metadata or {}).get(_KEY)
        if isinstance(text, str):
            carried |= {name.lower(): value for name, value in decode_json(text).items()}
    return carried
