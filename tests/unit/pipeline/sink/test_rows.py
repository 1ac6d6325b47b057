"""Arrow rows encoded to record batches: every row once, in order, in the partition that Kafka's producer would
choose."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.build_reference import murmur2
from tests.support.depth import DEPTH
from tidelog.pipeline.errors import OptionError
from tidelog.pipeline.options.sink_options import SinkOptions
from tidelog.pipeline.sink.rows import BatchBuilder, RowError, sink_columns
from tidelog.protocol.record.record_batch import Record, RecordBatch

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TYPES = {
    "value": pa.binary(),
    "key": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "headers": HEADERS,
    "timestamp": pa.timestamp("us", tz="UTC"),
}
WHEN = datetime(2024, 5, 6, 7, 8, 9, 123_999, tzinfo=UTC)
WHEN_MS = int(WHEN.timestamp() * 1000)


def rows(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns, schema=pa.schema([(name, TYPES[name]) for name in columns]))


def build(
    arrow: Iterable[pa.RecordBatch], *, partitions: int = 1, first: int = 0, **options: Any
) -> dict[tuple[str, int], list[Record]]:
    """Build the records of each topic-partition, offsets counted through."""
    arrow = list(arrow)
    settings_ = SinkOptions(bootstrap="", staging=Path(), **options)
    builder = BatchBuilder(
        options=settings_,
        columns=sink_columns([(name, _spark_type(name)) for name in arrow[0].schema.names], settings_),
        partitions_of=lambda _topic: partitions,
        first=first,
        keyless_bytes={},
    )
    found: dict[tuple[str, int], list[Record]] = {}
    for batch in builder.batches(arrow):
        view = RecordBatch(batch.data)
        view.ensure_valid()
        assert view.record_count == batch.records
        found.setdefault((batch.topic, batch.partition), []).extend(view.records())
    return found


def _spark_type(name: str) -> str:
    return {
        "partition": "int",
        "headers": "array<struct<key:string,value:binary>>",
        "timestamp": "timestamp",
        "topic": "string",
    }.get(name, "binary")


def test_a_row_becomes_a_record_with_all_it_has() -> None:
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    found = build([rows(key=[b"k"], value=[b"v"], headers=[headers], timestamp=[WHEN], topic=["t"])])
    ((record,),) = found.values()
    assert record == Record(0, WHEN_MS, b"k", b"v", (("a", b"1"), ("a", None)))


def test_nulls_stay_nulls_and_a_null_time_is_now() -> None:
    found = build([rows(key=[None], value=[None], headers=[None], timestamp=[None])], topic="t")
    ((record,),) = found.values()
    assert (record.key, record.value, tuple(record.headers)) == (None, None, ())
    assert record.timestamp > WHEN_MS


def test_headers_may_be_left_out() -> None:
    found = build([rows(value=[b"v"], headers=[[{"key": "a", "value": b"1"}]])], topic="t", include_headers=False)
    assert not found["t", 0][0].headers


keys = st.none() | st.binary(max_size=12)


@settings(deadline=None, max_examples=60 * DEPTH)
@given(
    st.lists(st.lists(st.tuples(keys, st.binary(max_size=40), st.sampled_from("ab")), max_size=12), max_size=4),
    st.integers(1, 5),
    st.sampled_from([64, 300, 10_000]),
)
def test_every_row_comes_once_in_order_where_its_key_says(
    parts: list[list[tuple[bytes | None, bytes, str]]], partitions: int, size: int
) -> None:
    arrow = [
        rows(key=[r[0] for r in part], value=[r[1] for r in part], topic=[r[2] for r in part]) for part in [*parts, []]
    ]
    found = build(arrow, partitions=partitions, batch_bytes=size, buffer_bytes=size)
    expected: dict[tuple[str, int, bytes], list[bytes]] = {}
    for key, value, topic in (row for part in parts for row in part):
        if key is not None:
            partition = (murmur2(key) & 0x7FFFFFFF) % partitions
            expected.setdefault((topic, partition, key), []).append(value)
    got: dict[tuple[str, int, bytes], list[bytes]] = {}
    for (topic, partition), records in found.items():
        assert 0 <= partition < partitions
        for record in records:
            if record.key is not None:
                got.setdefault((topic, partition, record.key), []).append(record.value or b"")
    assert got == expected
    keyless = sorted(r[1] for part in parts for r in part if r[0] is None)
    assert sorted(r.value or b"" for records in found.values() for r in records if r.key is None) == keyless


def test_rows_without_key_fill_one_partition_after_the_other() -> None:
    arrow = [rows(value=[b"v" * 100] * 20), rows(value=[b"v" * 100] * 20)]
    found = build(arrow, partitions=3, first=1, topic="t", batch_bytes=1120, buffer_bytes=1)
    assert [len(found["t", number]) for number in (1, 2, 0)] == [9 + 10, 10 + 1, 10]


def test_a_partition_that_is_given_is_obeyed() -> None:
    found = build([rows(key=[b"21"] * 3, value=[b"a", b"b", b"c"], partition=[2, None, 0])], partitions=3, topic="t")
    by_key = (murmur2(b"21") & 0x7FFFFFFF) % 3
    assert {r.value: p for (_, p), records in found.items() for r in records} == {b"a": 2, b"b": by_key, b"c": 0}


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_partition_that_is_not_there_is_refused(partition: int) -> None:
    with pytest.raises(RowError, match=f"partition {partition} of topic t: expected 0 to 2"):
        build([rows(value=[b"v"], partition=[partition])], partitions=3, topic="t")


def test_a_null_topic_is_refused() -> None:
    with pytest.raises(RowError, match="topic is null in 1 rows"):
        build([rows(value=[b"v", b"w"], topic=["t", None])])


def test_a_header_without_name_is_refused() -> None:
    with pytest.raises(RowError, match="1 headers have a null key"):
        build([rows(value=[b"v"], headers=[[{"key": None, "value": b""}]])], topic="t")


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ([("key", "string")], "column value is missing"),
        ([("value", "bigint")], "column value has type bigint: expected string or binary"),
        ([("value", "string"), ("extra", "int")], "column extra cannot be written"),
        ([("value", "string"), ("VALUE", "string")], "column VALUE appears twice"),
        ([("value", "string")], "no topic: expected the option topic or a column topic"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(fields: list[tuple[str, str]], line: str) -> None:
    with pytest.raises(OptionError, match=line):
        sink_columns(fields, SinkOptions(bootstrap="", staging=Path()))


def test_rows_of_the_source_can_be_written_unchanged() -> None:
    source = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    types = ["binary", "binary", "string", "int", "bigint", "timestamp", "int"]
    places = sink_columns(zip(source, types, strict=True), SinkOptions(bootstrap="", staging=Path()))
    assert places == {"key": 0, "value": 1, "topic": 2, "partition": 3, "timestamp": 5}


def test_the_option_topic_overrides_the_column() -> None:
    assert set(build([rows(value=[b"v"], topic=["a"])], topic="b")) == {("b", 0)}
