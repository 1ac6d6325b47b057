"""Topic-level configuration: every key that Kafka knows for a topic, and Tidelog's own ``index.keys*`` and
``index.tag.*``, each declared once, with the server keys that give its default.

CreateTopics, AlterConfigs, DescribeConfigs and ``docs/configuration.md`` use ``TOPIC_CONFIG_DEF``. ``SYNONYMS`` has
the server keys that give a topic key its default, in Kafka's order, and converts units (``log.retention.hours`` to
milliseconds). :class:`LogConfig` holds the values of one topic as attributes, parsed once, so that the produce path
looks up no names.

Source: TopicConfig and ServerTopicConfigSynonyms of Kafka 4.3, and of 3.9 for the keys that 4.0 dropped with the old
formats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.protocol.config_def import Check, ConfigDef, ConfigKey, ConfigType, Importance, between, each_of, one_of
from tidelog.protocol.record.compression import CompressionType

if TYPE_CHECKING:
    from tidelog.log.validation.params import ValidationParams

MAX_LONG = 2**63 - 1
_HOUR_MS = 3_600_000
_WEEK_MS = 168 * _HOUR_MS
_MEDIUM, _LOW = Importance.MEDIUM, Importance.LOW
_VERSION_PATTERN = re.compile(r"(\d+)\.(\d+)(?:\.\d+)*(?:-IV\d+)?")


def message_format_magic(version: str) -> int:
    """Return the record format of a Kafka version: 0 before 0.10, 1 before 0.11, 2 since. Raises ValueError."""
    match = _VERSION_PATTERN.fullmatch(version)
    if match is None:
        raise ValueError(f"not a version: {version!r}")
    major, minor = int(match[1]), int(match[2])
    if (major, minor) < (0, 10):
        return 0
    return 1 if (major, minor) < (0, 11) else 2


def _is_version(value: Any) -> bool:
    return isinstance(value, str) and _VERSION_PATTERN.fullmatch(value) is not None


_VERSION = Check(_is_version, "a Kafka version such as 0.9.0, 0.10.2 or 3.0")
_GZIP_LEVEL = Check(lambda level: level == -1 or 1 <= level <= 9, "1 to 9 or -1")


def _key(
    name: str, kind: ConfigType, default: Any, check: Check | None, doc: str, importance: Importance = _MEDIUM
) -> ConfigKey:
    return ConfigKey(name, kind, default, check, importance, doc, dynamic=True)


_INT, _LONG, _BOOLEAN = ConfigType.INT, ConfigType.LONG, ConfigType.BOOLEAN
_STRING, _LIST, _DOUBLE = ConfigType.STRING, ConfigType.LIST, ConfigType.DOUBLE

TOPIC_CONFIG_DEF = ConfigDef(
    (
        _key(
            "cleanup.policy",
            _LIST,
            ("delete",),
            each_of("compact", "delete"),
            "What happens to old segments: delete them by age and size, compact them by key, or both.",
        ),
        _key("compression.gzip.level", _INT, -1, _GZIP_LEVEL, "Level of gzip when the broker compresses."),
        _key("compression.lz4.level", _INT, 9, between(1, 17), "Level of lz4 when the broker compresses."),
        _key(
            "compression.type",
            _STRING,
            "producer",
            one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            "Codec of stored batches; producer keeps the codec that the producer chose.",
        ),
        _key("compression.zstd.level", _INT, 3, between(-131072, 22), "Level of zstd when the broker compresses."),
        _key(
            "delete.retention.ms",
            _LONG,
            24 * _HOUR_MS,
            between(0),
            "How long tombstones of a compacted topic stay readable, in ms.",
        ),
        _key(
            "file.delete.delay.ms",
            _LONG,
            60_000,
            between(0),
            "How long deleted files stay on disk for their readers, in ms.",
        ),
        _key(
            "flush.messages",
            _LONG,
            MAX_LONG,
            between(1),
            "Records after which the log is synced to disk; 1 makes every acknowledgement wait for the (grouped) sync.",
        ),
        _key("flush.ms", _LONG, MAX_LONG, between(0), "Milliseconds after which the log is synced to disk."),
        _key(
            "follower.replication.throttled.replicas",
            _LIST,
            (),
            None,
            "Replicas whose replication is throttled on the follower side.",
        ),
        _key(
            "index.interval.bytes", _INT, 4096, between(0), "Bytes of records between two entries of the offset index."
        ),
        _key(
            "index.keys",
            _BOOLEAN,
            False,
            None,
            "Whether records can be found by key, in an index that is written after the append.",
            _LOW,
        ),
        _key(
            "index.keys.entries",
            _INT,
            4_000_000,
            between(2, 2**31 - 1),
            "Entries of one key index file; 20 bytes each, taken from the disk as they are used.",
            _LOW,
        ),
        _key(
            "index.keys.slots",
            _INT,
            1_000_000,
            between(1, 500_000_000),
            "Hash slots of one key index file; 4 bytes each, taken from the disk when the file is begun.",
            _LOW,
        ),
        _key(
            "index.tag.entries",
            _INT,
            300_000,
            between(1, 2**31 - 1),
            "Entries of one tag index file; 20 bytes each, taken from the disk as they are used.",
            _LOW,
        ),
        _key(
            "index.tag.header",
            _STRING,
            "",
            None,
            "Name of the header whose value is a record's tag, by which records can be found; empty for no tags.",
            _LOW,
        ),
        _key(
            "leader.replication.throttled.replicas",
            _LIST,
            (),
            None,
            "Replicas whose replication is throttled on the leader side.",
        ),
        _key(
            "local.retention.bytes",
            _LONG,
            -2,
            between(-2),
            "Accepted for Kafka's sake; there is no tiered storage.",
        ),
        _key(
            "local.retention.ms",
            _LONG,
            -2,
            between(-2),
            "Accepted for Kafka's sake; there is no tiered storage.",
        ),
        _key("max.compaction.lag.ms", _LONG, MAX_LONG, between(1), "Longest time a record stays uncompacted, in ms."),
        _key(
            "max.message.bytes", _INT, 1024 * 1024 + 12, between(0), "Largest record batch accepted, after compression."
        ),
        _key(
            "message.downconversion.enable",
            _BOOLEAN,
            True,
            None,
            "Whether old clients get records converted to their format.",
            _LOW,
        ),
        _key(
            "message.format.version",
            _STRING,
            "3.0-IV1",
            _VERSION,
            "Kafka version whose record format is stored: before 0.10 magic 0, before 0.11 magic 1, else magic 2.",
        ),
        _key(
            "message.timestamp.after.max.ms",
            _LONG,
            _HOUR_MS,
            between(0),
            "How far a record's timestamp may lie ahead of the broker's clock, in ms.",
        ),
        _key(
            "message.timestamp.before.max.ms",
            _LONG,
            MAX_LONG,
            between(0),
            "How far a record's timestamp may lie behind the broker's clock, in ms.",
        ),
        _key(
            "message.timestamp.difference.max.ms",
            _LONG,
            MAX_LONG,
            between(0),
            "Older form of message.timestamp.before.max.ms and .after.max.ms, used where those are not set.",
        ),
        _key(
            "message.timestamp.type",
            _STRING,
            "CreateTime",
            one_of("CreateTime", "LogAppendTime"),
            "Whether records keep the producer's time or get the broker's.",
        ),
        _key(
            "min.cleanable.dirty.ratio",
            _DOUBLE,
            0.5,
            between(0, 1),
            "Share of uncompacted bytes above which a compacted log is cleaned.",
        ),
        _key("min.compaction.lag.ms", _LONG, 0, between(0), "Shortest time a record stays uncompacted, in ms."),
        _key(
            "min.insync.replicas", _INT, 1, between(1), "Replicas that must have a record before acks=all is answered."
        ),
        _key("preallocate", _BOOLEAN, False, None, "Accepted for Kafka's sake; segments grow as they are written."),
        _key(
            "remote.log.copy.disable", _BOOLEAN, False, None, "Accepted for Kafka's sake; there is no tiered storage."
        ),
        _key(
            "remote.log.delete.on.disable",
            _BOOLEAN,
            False,
            None,
            "Accepted for Kafka's sake; there is no tiered storage.",
        ),
        _key(
            "remote.storage.enable",
            _BOOLEAN,
            False,
            Check(lambda value: not value, "false: there is no tiered storage"),
            "Accepted for Kafka's sake; there is no tiered storage.",
        ),
        _key("retention.bytes", _LONG, -1, None, "Size from which the oldest segments are deleted; -1 for no limit."),
        _key(
            "retention.ms", _LONG, _WEEK_MS, between(-1), "Age from which segments are deleted, in ms; -1 for no limit."
        ),
        _key("segment.bytes", _INT, 1 << 30, between(14), "Size at which a segment is closed and a new one begun."),
        _key(
            "segment.index.bytes",
            _INT,
            10 * 1024 * 1024,
            between(4),
            "Largest size of each index of a segment; a full index closes the segment.",
        ),
        _key(
            "segment.jitter.ms",
            _LONG,
            0,
            between(0),
            "Largest random part taken off segment.ms, so that not all logs roll at once.",
        ),
        _key("segment.ms", _LONG, _WEEK_MS, between(1), "Age at which a segment is closed even when not full, in ms."),
        _key("unclean.leader.election.enable", _BOOLEAN, False, None, "Whether a replica out of sync may lead."),
    )
)


class Synonym(NamedTuple):
    """A server key that gives a topic key its default: its value times ``factor``, or a negative value as it is."""

    server_key: str
    factor: int = 1


#: Topic key -> server keys, most specific first. Keys without an entry have no server default.
SYNONYMS: dict[str, tuple[Synonym, ...]] = {
    "cleanup.policy": (Synonym("log.cleanup.policy"),),
    "compression.gzip.level": (Synonym("compression.gzip.level"),),
    "compression.lz4.level": (Synonym("compression.lz4.level"),),
    "compression.type": (Synonym("compression.type"),),
    "compression.zstd.level": (Synonym("compression.zstd.level"),),
    "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
    "local.retention.bytes": (Synonym("log.local.retention.bytes"),),
    "local.retention.ms": (Synonym("log.local.retention.ms"),),
    "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "message.downconversion.enable": (Synonym("log.message.downconversion.enable"),),
    "message.format.version": (Synonym("log.message.format.version"),),
    "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
    "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
    "message.timestamp.difference.max.ms": (Synonym("log.message.timestamp.difference.max.ms"),),
    "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
    "min.insync.replicas": (Synonym("min.insync.replicas"),),
    "preallocate": (Synonym("log.preallocate"),),
    "retention.bytes": (Synonym("log.retention.bytes"),),
    "retention.ms": (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", 60_000),
        Synonym("log.retention.hours", _HOUR_MS),
    ),
    "segment.bytes": (Synonym("log.segment.bytes"),),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS)),
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS)),
    "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
}


class LogConfig:
    """Configuration values of one topic. Nothing changes them after construction: a new configuration is a new object.

    ``values`` has every key by its Kafka name; the attributes are those that the log reads.
    """

    __slots__ = (
        "acknowledges_at_once", "compact", "compression_level", "compression_type", "delete", "delete_retention_ms",
        "file_delete_delay_ms",
        "flush_messages", "flush_ms", "index_entries", "index_interval_bytes", "index_keys", "index_slots",
        "index_tag_entries", "index_tag_header", "is_log_append_time", "max_compaction_lag_ms",
        "max_message_bytes", "message_downconversion_enable", "message_format_magic", "min_cleanable_dirty_ratio",
        "min_compaction_lag_ms", "min_insync_replicas", "retention_bytes", "retention_ms", "segment_bytes",
        "segment_index_bytes", "segment_jitter_ms", "segment_ms", "timestamp_after_max_ms", "timestamp_before_max_ms",
        "values",
    )  # fmt: skip

    def __init__(self, overrides: Mapping[str, Any] | None = None) -> None:
        """Parse the values in ``overrides``, by Kafka's name, as text or typed; other keys get their defaults.

        Raises ConfigError, which names key, value and what is allowed.
        """
        given = dict(overrides or {})
        values = TOPIC_CONFIG_DEF.parse(given)
        self.values: Mapping[str, Any] = values
        self._set_rolling(values)
        self._set_retention(values)
        self._set_records(values, given)
        self.acknowledges_at_once = self.flush_messages == MAX_LONG and self.min_insync_replicas <= 1
        """Whether an append with acks=all needs no check of the in-sync replicas: ``flush.messages`` has its default,
        and ``min.insync.replicas`` is 1. Computed once for the produce path."""
        self.index_keys: bool = values["index.keys"]
        self.index_slots: int = values["index.keys.slots"]
        self.index_entries: int = values["index.keys.entries"]
        self.index_tag_header: str | None = values["index.tag.header"] or None
        self.index_tag_entries: int = values["index.tag.entries"]

    def _set_rolling(self, values: Mapping[str, Any]) -> None:
        self.segment_bytes: int = values["segment.bytes"]
        self.segment_ms: int = values["segment.ms"]
        self.segment_jitter_ms: int = values["segment.jitter.ms"]
        self.segment_index_bytes: int = values["segment.index.bytes"]
        self.index_interval_bytes: int = values["index.interval.bytes"]
        self.flush_messages: int = values["flush.messages"]
        self.flush_ms: int = values["flush.ms"]

    def _set_retention(self, values: Mapping[str, Any]) -> None:
        self.retention_bytes: int = values["retention.bytes"]
        self.retention_ms: int = values["retention.ms"]
        self.file_delete_delay_ms: int = values["file.delete.delay.ms"]
        self.delete_retention_ms: int = values["delete.retention.ms"]
        self.min_compaction_lag_ms: int = values["min.compaction.lag.ms"]
        self.max_compaction_lag_ms: int = values["max.compaction.lag.ms"]
        self.min_cleanable_dirty_ratio: float = values["min.cleanable.dirty.ratio"]
        self.compact = "compact" in values["cleanup.policy"]
        self.delete = "delete" in values["cleanup.policy"]

    def _set_records(self, values: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        self.max_message_bytes: int = values["max.message.bytes"]
        self.min_insync_replicas: int = values["min.insync.replicas"]
        self.message_downconversion_enable: bool = values["message.downconversion.enable"]
        self.message_format_magic = message_format_magic(values["message.format.version"])
        self.is_log_append_time = values["message.timestamp.type"] == "LogAppendTime"
        codec: str = values["compression.type"]
        self.compression_type = None if codec == "producer" else _codec_number(codec)
        self.compression_level: int | None = values.get(f"compression.{codec}.level")
        has_older_key = "message.timestamp.difference.max.ms" in given
        bounds: list[int] = []
        for key in ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"):
            uses_older_key = has_older_key and key not in given
            bounds.append(values["message.timestamp.difference.max.ms" if uses_older_key else key])
        self.timestamp_before_max_ms, self.timestamp_after_max_ms = bounds

    def random_segment_jitter(self) -> int:
        """Draw a random part of ``segment.jitter.ms`` (at most ``segment.ms``) for one segment."""
        jitter = min(self.segment_jitter_ms, self.segment_ms)
        if not jitter:
            return 0
        import random  # late: few topics have a jitter

        return random.randrange(jitter)


def _codec_number(name: str) -> int:
    return 0 if name == "uncompressed" else int(CompressionType[name.upper()])


def validation_params(topic_partition: str, config: LogConfig) -> ValidationParams:
    """Build the parameters for validating what producers send to a topic."""
    from tidelog.log.validation.params import ValidationParams  # late: code that only reads keys needs no validation

    return ValidationParams(
        topic_partition=topic_partition,
        magic=config.message_format_magic,
        compression=config.compression_type,
        compression_level=config.compression_level,
        timestamp_type=int(config.is_log_append_time),
        timestamp_before_max_ms=config.timestamp_before_max_ms,
        timestamp_after_max_ms=config.timestamp_after_max_ms,
        max_message_bytes=config.max_message_bytes,
        is_compacted=config.compact,
    )


def topic_defaults(server_values: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the topic defaults from ``server_values``: the parsed values of the server keys that were given."""
    defaults = {}
    for topic_key, synonyms in SYNONYMS.items():
        for synonym in synonyms:
            value = server_values.get(synonym.server_key)
            if value is not None:
                defaults[topic_key] = value * synonym.factor if synonym.factor != 1 and value >= 0 else value
                break
    return defaults
