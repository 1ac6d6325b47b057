"""The sink's options: names, defaults, and a clear line for each error."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tidelog.pipeline.errors import OptionError
from tidelog.pipeline.options.sink_options import DEFAULT_BATCH_BYTES, SinkOptions, parse_sink_options

REQUIRED = {"kafka.bootstrap.servers": "h:1", "stagingPath": "/shared"}


def test_options_that_are_not_set_have_defaults() -> None:
    assert parse_sink_options(REQUIRED, streaming=False) == SinkOptions(bootstrap="h:1", staging=Path("/shared"))
    assert SinkOptions("", Path()).batch_bytes == DEFAULT_BATCH_BYTES < 1 << 20


def test_names_are_read_without_regard_to_case() -> None:
    given = {**REQUIRED, "kafka.Batch.Size": "64k", "INCLUDEHEADERS": "false", "Topic": "t", "compression": "ZSTD"}
    options = parse_sink_options(given, streaming=True)
    assert (options.batch_bytes, options.include_headers, options.topic, options.codec) == (65536, False, "t", 4)


def test_a_stream_stages_below_its_checkpoint() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "checkpointLocation": "file:///a%20b/c"}
    assert parse_sink_options(given, streaming=True).staging == Path("/a b/c/tidelog-staging")


def test_a_batch_write_may_have_an_application_id_and_version() -> None:
    options = parse_sink_options({**REQUIRED, "txnAppId": "orders_2", "txnVersion": "17"}, streaming=False)
    assert (options.application, options.version) == ("orders_2", 17)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"topc": "x"}, "option topc is unknown: the nearest is topic"),
        ({"kafka.bootstrap.servers": " "}, "option kafka.bootstrap.servers is missing: expected HOST:PORT"),
        ({"topic": " "}, "option topic is empty"),
        ({"compression": "brotli"}, "compression=brotli: expected one of none, gzip, snappy, lz4, zstd"),
        ({"compression": "lz4", "kafka.compression.type": "gzip"}, "compression=lz4 contradicts"),
        ({"includeHeaders": "maybe"}, "includeHeaders=maybe: expected true or false"),
        ({"kafka.batch.size": "0"}, "kafka.batch.size=0: expected a size"),
        ({"stagingPath": "s3://bucket/x"}, "stagingPath=s3://bucket/x: expected a directory that is mounted"),
        ({"stagingPath": ""}, "option stagingPath is empty"),
        ({"kafka.acks": "1"}, "kafka.acks=1: expected all"),
        ({"kafka.security.protocol": "SASL_SSL"}, "options kafka.sasl.*: "),
        ({"kafka.ssl.truststore.type": "JKS"}, "option kafka.ssl.truststore.type=JKS: expected PEM"),
        ({"txnAppId": "a"}, "txnAppId and txnVersion: expected both or none"),
        ({"txnAppId": "../a", "txnVersion": "1"}, "txnAppId=../a: expected letters, digits"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion=-1: expected a whole number from 0 to"),
        ({"txnAppId": "a", "txnVersion": str(2**63)}, f"expected a whole number from 0 to {2**63 - 1}"),
        ({"kafka.transaction.timeout.ms": str(2**31)}, f"expected a whole number from 1 to {2**31 - 1}"),
        ({"kafka.request.timeout.ms": str(2**31)}, f"expected a whole number from 1 to {2**31 - 1}"),
        ({"kafka.batch.size": "2g"}, f"kafka.batch.size=2g: expected a size of 1 to {2**31 - 1} bytes"),
    ],
)
def test_each_mistake_is_one_clear_line(changes: dict[str, str], line: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_sink_options({**REQUIRED, **changes}, streaming=False)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_security_is_that_of_kafkas_clients_and_tasks_get_it() -> None:
    given = {
        **REQUIRED, "kafka.security.protocol": "SASL_SSL", "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.sasl.mechanism": "SCRAM-SHA-512", "kafka.sasl.username": "ann", "kafka.sasl.password": "hush",
    }  # fmt: skip
    options = parse_sink_options(given, streaming=True)
    assert "hush" not in repr(options)
    sent = pickle.loads(pickle.dumps(options)).security
    assert (sent.protocol, sent.credentials) == ("SASL_SSL", options.security.credentials)
    assert sent.credentials.password == "hush"


def test_tuning_options_of_a_producer_are_accepted() -> None:
    tuned = {**REQUIRED, "kafka.linger.ms": "50", "kafka.acks": "all", "kafka.security.protocol": "PLAINTEXT"}
    assert parse_sink_options(tuned, streaming=True) == parse_sink_options(REQUIRED, streaming=True)


def test_without_a_place_to_stage_nothing_begins() -> None:
    with pytest.raises(OptionError, match="option stagingPath is missing"):
        parse_sink_options({"kafka.bootstrap.servers": "h:1"}, streaming=False)


def test_a_stream_has_its_id_from_the_checkpoint() -> None:
    with pytest.raises(OptionError, match="txnAppId is unknown"):
        parse_sink_options({**REQUIRED, "txnAppId": "a", "txnVersion": "1"}, streaming=True)
