"""Options of a table, which its schema contains: they survive Spark's JSON, and options of the query override them."""

from __future__ import annotations

import importlib.util
import traceback
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from pyspark_tidelog import DefaultSource
from tidelog.pipeline.errors import OptionError, PipelineError, SelectionError
from tidelog.pipeline.options.columns import SPARK_TYPES, Columns
from tidelog.pipeline.options.table_options import (
    options_of_statement,
    options_of_table,
    refuse_options_beside_table,
    schema_with_options,
)


def test_a_statements_options_are_distinguished_from_a_readers() -> None:
    assert options_of_statement({"path": "/data", "subscribe": "t"}) is None
    given = {"option.subscribe": "t", "Option.includeHeaders": "true", "path": "file:/data", "owner": "me"}
    assert options_of_statement(given) == {"subscribe": "t", "includeHeaders": "true", "path": "file:/data"}


def test_the_schema_carries_them_and_has_the_sources_types() -> None:
    schema = schema_with_options(Columns.default(headers=True), {"path": "/data", "startingOffsets": '{"t":{"0":1}}'})
    kept = StructType.fromJson(schema.jsonValue())
    assert {field.name: field.dataType.simpleString() for field in kept.fields} == SPARK_TYPES
    assert options_of_table(kept, {}) == {"path": "/data", "startingoffsets": '{"t":{"0":1}}'}
    assert options_of_table(kept, {"Path": "/other"})["path"] == "/other"


def test_a_schema_of_its_own_carries_nothing() -> None:
    assert options_of_table(StructType().add("key", "binary"), {"Subscribe": "t"}) == {"subscribe": "t"}


def test_a_batch_has_the_options_of_its_table_alone() -> None:
    schema = schema_with_options(Columns.default(), {"path": "/data", "subscribe": "t"})
    for options in ({}, {"Path": "/data"}, {"subscribe": "t"}):
        refuse_options_beside_table(schema, options)
    for options in ({"path": "/other"}, {"startingOffsets": "earliest"}):
        with pytest.raises(OptionError, match=f"option {next(iter(options))} is given for a query on a table"):
            refuse_options_beside_table(schema, options)
    refuse_options_beside_table(StructType().add("key", "binary"), {"path": "/data"})


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"subscribe": "t"}, "key value topic partition offset timestamp timestampType"),
        ({"subscribe": "t", "columns": "offset, key"}, "offset key"),
        ({"includeheaders": "TRUE"}, "key value topic partition offset timestamp timestampType headers"),
    ],
)
def test_both_kinds_of_schema_have_the_same_columns(options: dict[str, str], names: str) -> None:
    plain = DefaultSource(options).schema()
    assert isinstance(plain, str)
    assert [column.split()[0] for column in plain.split(", ")] == names.split()
    of_table = DefaultSource({f"option.{name}": value for name, value in options.items()}).schema()
    assert isinstance(of_table, StructType)
    assert of_table.names == names.split()


def test_wrong_options_of_a_stream_are_reported_when_spark_asks() -> None:
    """Spark 4.2 hides what ``streamReader`` raises behind an UnboundLocalError of its own."""
    for options in ({"path": "/data", "subscribe": "t", "endingOffsets": "latest"}, {"path": "/data", "topc": "t"}):
        refused = DefaultSource(options).streamReader(StructType().add("key", "binary"))
        for ask in (
            refused.initialOffset,
            lambda refused=refused: refused.latestOffset({}, ReadAllAvailable()),
            lambda refused=refused: refused.partitions({}, {}),
            lambda refused=refused: refused.read(InputPartition(0)),
        ):
            with pytest.raises(OptionError, match=r"option (endingOffsets is not for this kind|topc is unknown)"):
                ask()


def test_methods_that_spark_calls_raise_errors_without_tidelogs_frames(tmp_path: Path) -> None:
    source = DefaultSource({"path": str(tmp_path / "missing"), "subscribe": "t"})
    reader = source.reader(StructType().add("key", "binary"))
    with pytest.raises(SelectionError, match="does not exist") as caught:
        reader.partitions()
    assert len(traceback.extract_tb(caught.value.__traceback__)) == 2  # this test and what Spark called
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_missing_package_is_reported_before_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    source = DefaultSource({"path": "/data", "subscribe": "t"})
    for ask in (
        source.schema,
        lambda: source.writer(StructType(), overwrite=False),
        lambda: source.streamWriter(StructType(), overwrite=False),
    ):
        with pytest.raises(PipelineError, match=r"pyarrow is not installed for .*python.*: expected pip install"):
            ask()
