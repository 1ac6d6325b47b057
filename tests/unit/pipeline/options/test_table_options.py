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
from tidelog.client.security import known_keys
from tidelog.pipeline.errors import OptionError, PipelineError, SelectionError
from tidelog.pipeline.options.columns import SPARK_TYPES, Columns
from tidelog.pipeline.options.table_options import (
    is_secret,
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


SECRETS = (
    "kafka.sasl.jaas.config",
    "kafka.sasl.password",
    "kafka.sasl.oauthbearer.client.credentials.client.secret",
    "kafka.sasl.oauthbearer.assertion.private.key.passphrase",
    "kafka.ssl.key.password",
    "kafka.ssl.keystore.key",
    "kafka.ssl.keystore.password",
    "kafka.ssl.truststore.password",
)


@pytest.mark.parametrize("name", SECRETS)
def test_a_table_has_no_secrets(name: str) -> None:
    """Spark writes the metadata of a column, and so the options, into each file of a table made from this one."""
    for spelled in (name, name.upper()):
        source = DefaultSource({"option.path": "/data", "option.subscribe": "t", f"option.{spelled}": "hunter2"})
        with pytest.raises(
            OptionError, match=f"option {spelled} is not for CREATE TABLE: .* TEMPORARY VIEW"
        ) as refused:
            source.schema()
        assert "hunter2" not in str(refused.value)
        assert isinstance(DefaultSource({"path": "/data", "subscribe": "t", spelled: "hunter2"}).schema(), str)


def test_each_option_that_a_table_may_have_is_known_to_hold_no_secret() -> None:
    """A new secret key of a profile must not get into tables unseen: it is added to one of the two lists."""
    expected = {"security.protocol", "sasl.mechanism", "sasl.username", "ssl.endpoint.identification.algorithm"}
    expected |= {f"ssl.{store}.{what}" for store in ("truststore", "keystore") for what in ("type", "location")}
    expected |= {"ssl.truststore.certificates", "sasl.login.callback.handler.class", "sasl.oauthbearer.scope"}
    expected |= {"sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.client.credentials.client.id"}
    expected |= {"sasl.oauthbearer.header.urlencode"}
    assert {key for key in known_keys() if not is_secret(f"kafka.{key}")} == expected


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
