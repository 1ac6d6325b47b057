"""The options of the source: names, defaults, precedence, and a clear line for each error."""

from __future__ import annotations

import pickle
import re

import pytest

from tidelog.pipeline.errors import CorruptBatchError, DataLossError, OptionError
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.offset_json import EARLIEST, LATEST, from_json, to_json
from tidelog.pipeline.options.options import DEFAULT_BYTES_PER_TASK, SourceOptions, parse_options
from tidelog.pipeline.options.row_filter import RowFilter

PLACE = {"path": "/data", "subscribe": "orders"}


def parsed(**given: str) -> SourceOptions:
    return parse_options({**PLACE, **{name.replace("_", "."): value for name, value in given.items()}})


def stream(**given: str) -> SourceOptions:
    return parse_options({**PLACE, **given}, streaming=True)


class TestDefaults:
    def test_a_batch_reads_everything(self) -> None:
        options = parsed()
        assert (options.starting.default, options.ending.default) == (EARLIEST, LATEST)
        assert options.fail_on_data_loss
        assert not options.read_committed
        assert not options.include_headers
        assert options.bytes_per_task == DEFAULT_BYTES_PER_TASK
        assert options.wanted == Columns.default()

    def test_a_stream_begins_at_the_end(self) -> None:
        assert stream().starting.default == LATEST

    def test_every_record_counts(self) -> None:
        assert parsed().row_filter == RowFilter()
        asked = parsed(minTimestamp="-1", maxTimestamp="5", key="k")
        assert asked.row_filter == RowFilter(-1, 5, b"k")

    def test_names_are_case_insensitive(self) -> None:
        assert parsed(FAILONDATALOSS="False").fail_on_data_loss is False


class TestTopics:
    def test_several_topics_separated_by_commas(self) -> None:
        choice = parsed(subscribe="a, b,,a").choice
        assert choice.topics == ("a", "b")
        assert choice.matches("b", 7)
        assert not choice.matches("c", 0)

    def test_a_pattern_matches_whole_names(self) -> None:
        choice = parse_options({"path": "/d", "subscribePattern": "or.*s"}).choice
        assert choice.matches("orders", 0)
        assert not choice.matches("orders-2", 0)

    def test_partitions(self) -> None:
        choice = parse_options({"path": "/d", "assign": '{"a":[0,2]}'}).choice
        assert [choice.matches("a", n) for n in range(3)] == [True, False, True]


class TestPrecedence:
    def test_one_time_counts_before_times_by_partition_and_these_before_offsets(self) -> None:
        by_offset = {"startingOffsets": '{"orders":{"0":5}}'}
        by_times = {"startingOffsetsByTimestamp": '{"orders":{"0":1000}}'}
        assert parsed(**by_offset).starting.offsets == {"orders": {0: 5}}
        assert parsed(**by_offset, **by_times).starting.timestamps == {"orders": {0: 1000}}
        both = parsed(**by_offset, **by_times, startingTimestamp="7").starting
        assert (both.timestamp, both.timestamps, both.offsets) == (7, None, None)
        assert parsed(endingTimestamp="9", endingOffsets="latest").ending.timestamp == 9


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscrib": "a"}, "option subscrib is unknown: the nearest is subscribe"),
        ({"kafka.isolation.levl": "x"}, "option kafka.isolation.levl is unknown: the nearest is kafka.isolation.level"),
        ({"subscribe": "a", "assign": "{}"}, "expected exactly one of the options subscribe, assign, subscribePattern, "
         "found subscribe and assign"),
        ({}, "expected exactly one of the options subscribe, assign, subscribePattern, found none"),
        ({"subscribe": " , "}, "subscribe= , : expected topics"),
        ({"assign": "[" * 60_000}, "[: expected JSON such as"),
        ({"assign": "[1]"}, "assign=[1]: expected JSON such as"),
        ({"assign": '{"a":"12"}'}, 'assign={"a":"12"}: expected JSON such as'),
        ({"assign": '{"a":[true]}'}, 'assign={"a":[true]}: expected JSON such as'),
        ({"assign": '{"a":[Infinity]}'}, 'assign={"a":[Infinity]}: expected JSON such as'),
        ({"subscribe": "a", "startingOffsets": '{"a":' + "[" * 5000}, ": expected JSON such as"),
        ({"subscribePattern": "(" * 5000 + ")" * 5000}, ": expected a regular expression: it is nested too deeply"),
        ({"subscribePattern": "a{99999999999999999999}"}, ": expected a regular expression: "),
        ({"subscribePattern": "("}, "subscribePattern=(: expected a regular expression"),
        ({"subscribe": "a", "path": " "}, "option path is missing"),
        ({"subscribe": "a", "pushFilters": "true"}, "option pushFilters is withdrawn: "),
        ({"subscribe": "a", "minTimestamp": "noon"}, "minTimestamp=noon: expected milliseconds since 1970"),
        ({"subscribe": "a", "maxTimestamp": str(1 << 63)}, f"maxTimestamp={1 << 63}: expected milliseconds"),
        ({"subscribe": "a", "path": "ftp://b/c"}, "path ftp://b/c: expected a directory, or an address that begins"),
        ({"subscribe": "a", "path": "s3://id:secret@b/c"}, "path s3://...@b/c: expected no credentials in it"),
        ({"subscribe": "a", "kafka.security.protocol": "TLS"}, "kafka.security.protocol=TLS: expected PLAINTEXT, SSL"),
        ({"subscribe": "a", "failOnDataLoss": "no"}, "failOnDataLoss=no: expected true or false"),
        ({"subscribe": "a", "minPartitions": "0"}, "minPartitions=0: expected a whole number from 1 to"),
        ({"subscribe": "a", "minPartitions": "9" * 5000}, "expected a whole number from 1 to 9223372036854775807"),
        ({"subscribe": "a", "bytesPerTask": "1x"}, "bytesPerTask=1x: expected a size"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "startingOffsets: a batch cannot start at latest"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-1}}'}, "startingOffsets: a batch cannot start at latest"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "endingOffsets: a batch cannot end at earliest"),
        ({"subscribe": "a", "startingOffsets": "first"}, "startingOffsets=first: expected JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-3}}'}, "startingOffsets: a-0 has -3: expected -2 or more"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"-1":5}}'}, "startingOffsets: partition -1 of a: expected 0 or "
         "more"),
        ({"subscribe": "a", "startingTimestamp": "today"}, "startingTimestamp=today: expected milliseconds"),
        ({"subscribe": "a", "startingTimestamp": "9" * 5000}, "expected milliseconds"),
        ({"subscribe": "a", "minTimestamp": "9" * 5000}, "expected milliseconds since 1970"),
        ({"subscribe": "a", "maxTimestamp": "-" + "9" * 5000}, "expected milliseconds since 1970"),
        ({"subscribe": "a", "startingTimestamp": "٣"}, "expected milliseconds"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "x"}, "startingOffsetsByTimestampStrategy=x"),
        ({"subscribe": "a", "kafka.isolation.level": "dirty"}, "kafka.isolation.level=dirty: expected read_unc"),
        ({"subscribe": "a", "columns": "offset,size"}, "column 'size' is unknown: expected some of key, value"),
        ({"subscribe": "a", "columns": "offset", "includeHeaders": "true"}, "includeHeaders=true contradicts"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger is not for this kind of read: "
         "streams only"),
    ],
)  # fmt: skip
def test_wrong_options_are_errors(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        parse_options({"path": "/data", **given})


def test_options_that_a_stream_accepts_and_refuses() -> None:
    options = stream(maxOffsetsPerTrigger="10", maxBytesPerTrigger="2m", maxTriggerDelay="15m")
    assert (options.max_offsets_per_trigger, options.max_bytes_per_trigger) == (10, 2 << 20)
    assert options.max_trigger_delay_ms == 900_000
    with pytest.raises(OptionError, match="endingOffsets is not for this kind of read: batch only"):
        stream(endingOffsets="latest")
    with pytest.raises(OptionError, match="maxTriggerDelay=soon: expected a time"):
        stream(maxTriggerDelay="soon")
    with pytest.raises(OptionError, match="expected a time such as"):
        stream(maxTriggerDelay="9" * 5000)


def test_options_of_a_consumer_have_no_effect() -> None:
    assert parsed(kafka_max_poll_records="5", groupIdPrefix="x") == parsed()


def test_a_schema_chooses_columns_of_the_right_types() -> None:
    assert Columns.of_fields([("offset", "bigint"), ("value", "binary")]).names == ("offset", "value")
    with pytest.raises(OptionError, match="column offset has type int in the schema: expected bigint"):
        Columns.of_fields([("offset", "int")])
    with pytest.raises(OptionError, match="expected each column at most once"):
        Columns(("offset", "offset"))
    assert Columns(("offset", "timestamp")).ddl() == "offset bigint, timestamp timestamp"
    assert "key" in Columns.default()
    assert "headers" not in Columns.default()


def test_offsets_are_written_as_spark_writes_them() -> None:
    text = to_json({"b": {1: 5, 0: -1}, "a": {10: 2, 2: -2}})
    assert text == '{"a":{"2":-2,"10":2},"b":{"0":-1,"1":5}}'
    assert from_json(text) == {"a": {2: -2, 10: 2}, "b": {0: -1, 1: 5}}
    nested = '{"a":' * 60_000
    types = ("", "[]", nested, '{"a":1}', '{"a":{"x":1}}', '{"a":{"0":"1"}}', '{"a":{"0":true}}')
    for wrong in (*types, '{"a":{"-1":0}}'):
        with pytest.raises(OptionError):
            from_json(wrong)


def test_errors_travel_from_executors() -> None:
    for error in (CorruptBatchError("/d/t-0/0.log", 7, 3, "why"), DataLossError("gone"), OptionError("x")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ("/a, /b", ("/a", "/b")),
        ("file:/a,/b", ("/a", "/b")),
        ("file:///a/b", ("/a/b",)),
        ("data", ("data",)),
    ],
)
def test_several_paths_and_file_addresses_are_accepted(given: str, paths: tuple[str, ...]) -> None:
    assert parse_options({"path": given, "subscribe": "t"}).paths == paths
