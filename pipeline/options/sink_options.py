"""The options of ``format("tidelog")`` for writing: names of Spark's Kafka sink and of Kafka's producer, and our own.

    kafka.bootstrap.servers   HOST:PORT, comma separated                               required
    topic                     the topic of all rows; without it the column ``topic`` names each row's
    stagingPath               directory that driver and executors share, by default
                              tidelog-staging below a stream's checkpointLocation
    includeHeaders            false leaves a column ``headers`` unwritten                true
    compression               none, gzip, snappy, lz4, zstd (or kafka.compression.type)  none
    kafka.batch.size          bytes of a batch before compression                        900k
    kafka.buffer.memory       bytes of rows a task gathers before it builds batches      32m
    kafka.transaction.timeout.ms   when the broker aborts the transaction of a dead driver  300000
    kafka.request.timeout.ms  how long to wait for a response before another attempt     30000
    kafka.delivery.timeout.ms how long publishing is attempted                           120000
    txnAppId, txnVersion      batch writes: the writer's name and a growing number; a write whose number is not
                              above the last published one is skipped

Names are case-insensitive; an unknown one is an error that names the nearest. Options that tune a Kafka producer are
accepted without effect; those that would weaken the guarantees (acks below all) are refused. TLS and SASL are
configured as for Kafka's clients, by the keys of ``tidelog.client.security``: ``kafka.security.protocol`` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidelog.client.connection import PLAIN
from tidelog.client.security import Security
from tidelog.pipeline.errors import OptionError
from tidelog.pipeline.options.options import (
    MAX_INT,
    MAX_LONG,
    SECURITY,
    checked_names,
    parse_boolean,
    parse_positive,
    security_of,
    size_in_bytes,
)

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_KNOWN = (
    "kafka.bootstrap.servers", "topic", "stagingPath", "checkpointLocation", "includeHeaders", "compression",
    "kafka.compression.type", "kafka.batch.size", "kafka.buffer.memory", "kafka.transaction.timeout.ms",
    "kafka.request.timeout.ms", "kafka.delivery.timeout.ms",
)  # fmt: skip
_BATCH_ONLY = ("txnAppId", "txnVersion")
#: Options of Spark itself, accepted without effect; Spark passes ``queryName`` to the sink of a named query.
_OF_SPARK = ("queryName", "mergeSchema")
#: Options that mean nothing without a producer. They are accepted, so that a query of Spark's Kafka sink needs no
#: change but the format.
_WITHOUT_EFFECT = (
    "kafka.linger.ms", "kafka.client.id", "kafka.retries", "kafka.retry.backoff.ms", "kafka.max.block.ms",
    "kafka.max.request.size", "kafka.max.in.flight.requests.per.connection", "kafka.send.buffer.bytes",
    "kafka.receive.buffer.bytes", "kafka.metadata.max.age.ms",
)  # fmt: skip
#: Options that have one value: giving that value is allowed, any other is refused.
_FIXED = {
    "kafka.acks": ("all", "-1"),
    "kafka.enable.idempotence": ("true",),
}
_APPLICATION = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_STAGING_BELOW_CHECKPOINT = "tidelog-staging"
DEFAULT_BATCH_BYTES = 900 * 1024
"""A batch of this size and its header stay below Kafka's default ``max.message.bytes`` of 1 MiB."""
DEFAULT_BUFFER_BYTES = 32 * 1024 * 1024
DEFAULT_TRANSACTION_TIMEOUT_MS = 300_000
DEFAULT_REQUEST_TIMEOUT_MS = 30_000
DEFAULT_DELIVERY_TIMEOUT_MS = 120_000


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of a write, checked. Sizes in bytes, times in ms."""

    bootstrap: str
    staging: Path
    security: Security = field(default=PLAIN, repr=False, compare=False, kw_only=True)
    topic: str | None = None
    include_headers: bool = True
    codec: int = 0
    batch_bytes: int = DEFAULT_BATCH_BYTES
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS
    request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS
    delivery_timeout_ms: int = DEFAULT_DELIVERY_TIMEOUT_MS
    application: str | None = None
    version: int = 0


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Check and parse the options of a write. Raises OptionError."""
    known = (*_KNOWN, *SECURITY, *_OF_SPARK, *_WITHOUT_EFFECT, *_FIXED, *(() if streaming else _BATCH_ONLY))
    given = checked_names(options, known)
    for name, allowed in _FIXED.items():
        if given.get(name, allowed[0]).lower() not in allowed:
            raise OptionError(f"{name}={given[name]}: expected {allowed[0]}, the only value that this sink supports")
    application, version = given.get("txnAppId"), given.get("txnVersion")
    if (application is None) != (version is None):
        raise OptionError("txnAppId and txnVersion: expected both or none")
    if application is not None and not _APPLICATION.fullmatch(application):
        raise OptionError(
            f"txnAppId={application}: expected letters, digits, dots, dashes, underscores; up to 200, no dot at first"
        )
    if not given.get("kafka.bootstrap.servers", "").strip():
        raise OptionError("option kafka.bootstrap.servers is missing: expected HOST:PORT of the broker to write to")
    return SinkOptions(
        bootstrap=given["kafka.bootstrap.servers"],
        security=security_of(given),
        staging=_parse_staging(given),
        topic=_topic(given),
        include_headers=parse_boolean(given, "includeHeaders", True),
        codec=_codec(given),
        batch_bytes=size_in_bytes(given, "kafka.batch.size", MAX_INT) or DEFAULT_BATCH_BYTES,
        buffer_bytes=size_in_bytes(given, "kafka.buffer.memory") or DEFAULT_BUFFER_BYTES,
        transaction_timeout_ms=_timeout(given, "kafka.transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS),
        request_timeout_ms=_timeout(given, "kafka.request.timeout.ms", DEFAULT_REQUEST_TIMEOUT_MS),
        delivery_timeout_ms=_timeout(given, "kafka.delivery.timeout.ms", DEFAULT_DELIVERY_TIMEOUT_MS),
        application=application,
        version=_version(version),
    )


def _timeout(given: Mapping[str, str], name: str, default: int) -> int:
    return parse_positive(given, name, MAX_INT) or default


def _topic(given: Mapping[str, str]) -> str | None:
    topic = given.get("topic")
    if topic is not None and not topic.strip():
        raise OptionError("option topic is empty: expected a topic, or leave it out and give a column topic")
    return topic


def _codec(given: Mapping[str, str]) -> int:
    short, full = given.get("compression"), given.get("kafka.compression.type")
    if short is not None and full is not None and short != full:
        raise OptionError(f"compression={short} contradicts kafka.compression.type={full}")
    name = short or full or "none"
    if name.lower() not in _CODECS:
        raise OptionError(f"compression={name}: expected one of {', '.join(_CODECS)}")
    return _CODECS.index(name.lower())


def _version(text: str | None) -> int:
    if text is None:
        return 0
    if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > MAX_LONG:
        raise OptionError(f"txnVersion={text}: expected a whole number from 0 to {MAX_LONG}")
    return int(text)


def _parse_staging(given: Mapping[str, str]) -> Path:
    if "stagingPath" in given:
        return _local_path("stagingPath", given["stagingPath"])
    if "checkpointLocation" in given:
        return _local_path("checkpointLocation", given["checkpointLocation"]) / _STAGING_BELOW_CHECKPOINT
    raise OptionError(
        "option stagingPath is missing: expected a directory that the driver and all executors share "
        "(a stream takes one below its option checkpointLocation)"
    )


def _local_path(option: str, text: str) -> Path:
    """Return the path, or that of a ``file:`` address, of a directory where tasks write and the driver reads plain
    files."""
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        text = unquote(parts.path)
    elif "://" in text or parts.scheme == "file":
        raise OptionError(f"{option}={text}: expected a directory that is mounted; give one as stagingPath")
    if not text.strip():
        raise OptionError(f"option {option} is empty: expected a directory")
    return Path(text).absolute()
