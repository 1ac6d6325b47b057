"""The options of ``format("tidelog")`` for reading: names, defaults and precedence of Spark's Kafka source, and our
own.

    which topics      exactly one of subscribe, assign, subscribePattern
    where to begin    the first that is given: startingTimestamp, startingOffsetsByTimestamp, startingOffsets
    where to end      the first that is given: endingTimestamp, endingOffsetsByTimestamp, endingOffsets
    defaults          batch: earliest to latest; stream: from latest; failOnDataLoss true; read_uncommitted

Our own: ``path`` (data directories, comma separated), ``columns``, ``key``, ``minTimestamp``, ``maxTimestamp``,
``bytesPerTask``, ``maxBytesPerTrigger``, ``commitGroup``. Names are case-insensitive, as all Spark options are. An
unknown name is an error that says the nearest known one. Options that tune a Kafka consumer are accepted
without effect: there is no consumer.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidelog.client.connection import PLAIN, ClientError
from tidelog.client.security import Security, known_keys
from tidelog.pipeline.errors import OptionError
from tidelog.pipeline.files.remote import is_remote
from tidelog.pipeline.files.storage import resolve_path
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.offset_json import EARLIEST, LATEST, PartitionOffsets, from_json
from tidelog.pipeline.options.row_filter import MAX_TIME, MIN_TIME, RowFilter
from tidelog.protocol.foreign_text import compile_pattern, decode_json

#: Topics of the brokers themselves; a pattern never matches them, as in Spark's Kafka source.
INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"))
DEFAULT_BYTES_PER_TASK = 128 * 1024 * 1024

_COMMON = (
    "path", "subscribe", "assign", "subscribePattern", "startingOffsets", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "includeHeaders", "failOnDataLoss",
    "minPartitions", "maxRecordsPerPartition", "kafka.bootstrap.servers", "kafka.isolation.level", "columns", "key",
    "minTimestamp", "maxTimestamp", "bytesPerTask",
)  # fmt: skip
_BATCH = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger", "commitGroup")
#: Options of Spark's Kafka source that mean nothing without a consumer. They are accepted, so that a query of that
#: source needs no change but the format.
_WITHOUT_EFFECT = (
    "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix",
    "kafka.group.id", "kafka.client.id", "kafka.max.poll.records", "kafka.fetch.min.bytes", "kafka.fetch.max.bytes",
    "kafka.fetch.max.wait.ms", "kafka.max.partition.fetch.bytes", "kafka.receive.buffer.bytes",
    "kafka.request.timeout.ms", "kafka.session.timeout.ms", "kafka.default.api.timeout.ms", "kafka.check.crcs",
    "kafka.heartbeat.interval.ms", "kafka.max.poll.interval.ms", "kafka.metadata.max.age.ms", "kafka.client.rack",
    "kafka.connections.max.idle.ms", "kafka.reconnect.backoff.ms", "kafka.reconnect.backoff.max.ms",
    "kafka.retry.backoff.ms", "kafka.retry.backoff.max.ms", "kafka.send.buffer.bytes", "kafka.client.dns.lookup",
    "kafka.socket.connection.setup.timeout.ms", "kafka.socket.connection.setup.timeout.max.ms",
    "kafka.allow.auto.create.topics",
)  # fmt: skip
SECURITY = tuple(sorted(f"kafka.{key}" for key in known_keys()))
"""Options of TLS and SASL for the connection to the brokers: the keys of Kafka's clients after ``kafka.``."""
_STRATEGIES = ("subscribe", "assign", "subscribePattern")
MAX_INT, MAX_LONG = (1 << 31) - 1, (1 << 63) - 1
"""Largest values of Kafka's types INT and LONG."""
_WHOLE = re.compile(r"\d{1,19}", re.ASCII)
_SIZE = re.compile(r"(\d{1,19})\s*([kmg]?)i?b?", re.IGNORECASE | re.ASCII)
_DURATION = re.compile(r"(\d{1,19})\s*(ms|s|m|min|h|d)?", re.IGNORECASE | re.ASCII)
_TIMESTAMP = re.compile(r"-?\d{1,19}", re.ASCII)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MILLISECONDS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """The choice of topics: names (subscribe), a pattern (subscribePattern), or topics with partitions (assign)."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[tuple[str, int], ...] | None = None

    def matches(self, topic: str, partition: int) -> bool:
        """Return whether the partition is chosen."""
        if self.pattern is not None:
            return topic not in INTERNAL_TOPICS and re.fullmatch(self.pattern, topic) is not None
        if self.partitions is not None:
            return (topic, partition) in self.partitions
        return topic in self.topics


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Start or end of reading; exactly one of the four is given. ``option`` is the option's name, for errors.

    ``default``: EARLIEST or LATEST for all partitions. ``offsets``, ``timestamps`` (ms): by partition; each chosen
    partition must be named. ``timestamp``: one time in ms for all.
    """

    option: str
    default: int | None = None
    offsets: PartitionOffsets | None = None
    timestamps: PartitionOffsets | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of a read, checked. Sizes in bytes, times in ms; None: not given.

    ``replicated``: (topic, partition) of partitions of which ``paths`` may have one of several replicas. Without a
    broker, they are read up to the high watermark in their data directory's checkpoint.
    """

    paths: tuple[str, ...]
    choice: TopicChoice
    starting: OffsetSpec
    ending: OffsetSpec
    timestamp_strategy: Literal["error", "latest"] = "error"
    include_headers: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    bootstrap: str | None = None
    security: Security = field(default=PLAIN, repr=False, compare=False)
    read_committed: bool = False
    columns: Columns | None = None
    key: bytes | None = None
    min_timestamp: int = MIN_TIME
    max_timestamp: int = MAX_TIME
    bytes_per_task: int = DEFAULT_BYTES_PER_TASK
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int | None = None
    max_bytes_per_trigger: int | None = None
    commit_group: str | None = None
    replicated: frozenset[tuple[str, int]] = frozenset()

    @property
    def wanted(self) -> Columns:
        """The columns of the source's schema."""
        return self.columns or Columns.default(headers=self.include_headers)

    @property
    def row_filter(self) -> RowFilter:
        """The filter of records that the options give."""
        return RowFilter(self.min_timestamp, self.max_timestamp, self.key)


def parse_options(options: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
    """Check and parse the options of a batch read, or of a stream. Raises OptionError."""
    known = (*_COMMON, *(_STREAM if streaming else _BATCH))
    _refuse_push_filters(options)
    given = checked_names(options, (*known, *_WITHOUT_EFFECT, *SECURITY), refused=_BATCH if streaming else _STREAM)
    bounds = _Bounds(given, streaming)
    _check_columns(given)
    columns = given.get("columns")
    key = given.get("key")
    return SourceOptions(
        paths=_paths(given),
        choice=_choice(given),
        starting=bounds.parse_start(),
        ending=bounds.parse_end(),
        timestamp_strategy=_strategy(given),
        include_headers=parse_boolean(given, "includeHeaders", False),
        fail_on_data_loss=parse_boolean(given, "failOnDataLoss", True),
        min_partitions=parse_positive(given, "minPartitions"),
        max_records_per_partition=parse_positive(given, "maxRecordsPerPartition"),
        bootstrap=given.get("kafka.bootstrap.servers"),
        security=security_of(given),
        read_committed=_is_read_committed(given),
        columns=None if columns is None else Columns(tuple(name.strip() for name in columns.split(","))),
        key=None if key is None else key.encode(),
        min_timestamp=_milliseconds(given, "minTimestamp", MIN_TIME),
        max_timestamp=_milliseconds(given, "maxTimestamp", MAX_TIME),
        bytes_per_task=size_in_bytes(given, "bytesPerTask") or DEFAULT_BYTES_PER_TASK,
        max_offsets_per_trigger=parse_positive(given, "maxOffsetsPerTrigger"),
        min_offsets_per_trigger=parse_positive(given, "minOffsetsPerTrigger"),
        max_trigger_delay_ms=_duration(given, "maxTriggerDelay"),
        max_bytes_per_trigger=size_in_bytes(given, "maxBytesPerTrigger"),
        commit_group=given.get("commitGroup"),
    )


def security_of(given: Mapping[str, str]) -> Security:
    """Collect the settings of the connection to the brokers. Raises OptionError."""
    try:
        return Security({name.removeprefix("kafka."): given[name] for name in SECURITY if name in given})
    except ClientError as error:
        raise OptionError(f"option kafka.{error}" if "=" in str(error) else f"options kafka.sasl.*: {error}") from error


def checked_names(options: Mapping[str, str], known: Iterable[str], refused: Iterable[str] = ()) -> dict[str, str]:
    """Return ``options`` with their names spelled as in ``known``. Raises OptionError for one that is not there.
    ``refused`` are the options of the other mode (batch or stream), which get an error of their own.
    """
    spelled = {name.lower(): name for name in known}
    other_mode = {name.lower(): name for name in refused}
    given = {}
    for name, value in options.items():
        lower = name.lower()
        if lower in spelled:
            given[spelled[lower]] = str(value)
        elif lower in other_mode:
            raise OptionError(f"option {other_mode[lower]} is not for this kind of read: {_mode_of(other_mode[lower])}")
        else:
            raise OptionError(f"option {name} is unknown{_suggest_nearest(lower, spelled)}")
    return given


def _mode_of(name: str) -> str:
    return "streams only" if name in _STREAM else "batch only"


def _suggest_nearest(name: str, spelled: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(name, spelled, n=1, cutoff=0.0)
    return f": the nearest is {spelled[close[0]]}" if close else ""


def parse_boolean(given: Mapping[str, str], name: str, default: bool) -> bool:
    """Parse ``true`` or ``false``. Raises OptionError."""
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name}={given[name]}: expected true or false")
    return text == "true"


def parse_positive(given: Mapping[str, str], name: str, largest: int = MAX_LONG) -> int | None:
    """Parse a whole number from 1 to ``largest``, None when not given. Raises OptionError."""
    text = given.get(name)
    if text is None:
        return None
    if not _WHOLE.fullmatch(text.strip()) or not 1 <= int(text) <= largest:
        raise OptionError(f"{name}={text}: expected a whole number from 1 to {largest}")
    return int(text)


def size_in_bytes(given: Mapping[str, str], name: str, largest: int = MAX_LONG) -> int | None:
    """Parse a size in bytes, up to ``largest``, such as 1048576, 512k, 64m, 1g; None when not given. Raises
    OptionError."""
    text = given.get(name)
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    size = 0 if match is None else int(match[1]) * _UNITS[match[2].lower()]
    if not 1 <= size <= largest:
        raise OptionError(f"{name}={text}: expected a size of 1 to {largest} bytes, such as 1048576, 512k, 64m or 1g")
    return size


def _duration(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"{name}={text}: expected a time such as 15m, 30s or 500ms")
    return int(match[1]) * _MILLISECONDS[(match[2] or "").lower()]


def _milliseconds(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default)).strip()
    if not _TIMESTAMP.fullmatch(text) or not MIN_TIME <= int(text) <= MAX_TIME:
        raise OptionError(f"{name}={text}: expected milliseconds since 1970")
    return int(text)


def _refuse_push_filters(options: Mapping[str, str]) -> None:
    """Raise OptionError for ``pushFilters`` of earlier versions: Spark applied the filters of one query to others."""
    if any(name.lower() == "pushfilters" for name in options):
        raise OptionError(
            "option pushFilters is withdrawn: Spark 4.2 would apply the filters of one query to all queries over the "
            "same source; expected assign, startingOffsets, endingOffsets, minTimestamp, maxTimestamp or key"
        )


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    paths = tuple(_parse_path(path.strip()) for path in given.get("path", "").split(",") if path.strip())
    if not paths:
        raise OptionError(
            "option path is missing: expected the data directories (log.dirs), comma separated "
            "(CREATE TABLE passes its options on only if the statement names no columns)"
        )
    return paths


def _parse_path(path: str) -> str:
    """Return a path without change, and an address such as ``file:/data``, into which Spark turns a table's path, as a
    path. The address of an object store is only checked.
    """
    found = resolve_path(path)
    return path if is_remote(found) or not path.startswith("file:") else found


def _choice(given: Mapping[str, str]) -> TopicChoice:
    named = [name for name in _STRATEGIES if name in given]
    if len(named) != 1:
        found = " and ".join(named) or "none"
        raise OptionError(f"expected exactly one of the options {', '.join(_STRATEGIES)}, found {found}")
    value = given[named[0]]
    if named[0] == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise OptionError(f"subscribe={value}: expected topics, comma separated")
        return TopicChoice(topics=topics)
    if named[0] == "assign":
        return _parse_assignment(value)
    try:
        compile_pattern(value)
    except ValueError as error:
        raise OptionError(f"subscribePattern={value}: expected a regular expression: {error}") from None
    return TopicChoice(pattern=value)


def _parse_assignment(text: str) -> TopicChoice:
    try:
        parsed = decode_json(text)
        partitions = tuple((topic, number) for topic, numbers in parsed.items() for number in numbers)
        if any(type(number) is not int for _, number in partitions):
            raise TypeError
    except (ValueError, TypeError, AttributeError):
        partitions = ()
    if not partitions:
        raise OptionError(f'assign={text}: expected JSON such as {{"topicA":[0,1],"topicB":[2,4]}}')
    return TopicChoice(partitions=partitions)


def _strategy(given: Mapping[str, str]) -> Literal["error", "latest"]:
    text = given.get("startingOffsetsByTimestampStrategy", "error").lower()
    if text == "error":
        return "error"
    if text == "latest":
        return "latest"
    raise OptionError(f"startingOffsetsByTimestampStrategy={text}: expected error or latest")


def _is_read_committed(given: Mapping[str, str]) -> bool:
    text = given.get("kafka.isolation.level", "read_uncommitted").lower()
    if text not in ("read_uncommitted", "read_committed"):
        raise OptionError(f"kafka.isolation.level={text}: expected read_uncommitted or read_committed")
    return text == "read_committed"


def _check_columns(given: Mapping[str, str]) -> None:
    if "columns" in given and parse_boolean(given, "includeHeaders", False) and "headers" not in given["columns"]:
        raise OptionError(f"includeHeaders=true contradicts columns={given['columns']}: add headers to columns")


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Parser of where reading starts and ends: of the options ``starting...`` and ``ending...``."""

    given: Mapping[str, str]
    streaming: bool

    def parse_start(self) -> OffsetSpec:
        default = "latest" if self.streaming else "earliest"
        spec = self._spec("starting", default)
        if not self.streaming and (spec.default == LATEST or _has_offset(spec, LATEST)):
            raise OptionError(f"{spec.option}: a batch cannot start at latest (-1): expected earliest or offsets")
        return spec

    def parse_end(self) -> OffsetSpec:
        spec = self._spec("ending", "latest")
        if spec.default == EARLIEST or _has_offset(spec, EARLIEST):
            raise OptionError(f"{spec.option}: a batch cannot end at earliest (-2): expected latest or offsets")
        return spec

    def _spec(self, side: str, default: str) -> OffsetSpec:
        by_time, by_partition, by_offset = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
        if by_time in self.given:
            text = self.given[by_time].strip()
            if not _WHOLE.fullmatch(text):
                raise OptionError(f"{by_time}={text}: expected milliseconds since 1970")
            return OffsetSpec(by_time, timestamp=int(text))
        if by_partition in self.given:
            return OffsetSpec(by_partition, timestamps=from_json(self.given[by_partition], by_partition, smallest=0))
        text = self.given.get(by_offset, default).strip()
        if text.lower() in ("earliest", "latest"):
            return OffsetSpec(by_offset, default=EARLIEST if text.lower() == "earliest" else LATEST)
        return OffsetSpec(by_offset, offsets=from_json(text, by_offset))


def _has_offset(spec: OffsetSpec, offset: int) -> bool:
    return any(offset in partitions.values() for partitions in (spec.offsets or {}).values())
