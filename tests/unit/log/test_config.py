"""Topic configuration: defaults, synonyms in the broker's configuration, message format versions, and the deprecated
key ``message.timestamp.difference.max.ms``."""

from __future__ import annotations

import pytest

from tidelog.log.config import SYNONYMS, TOPIC_CONFIG_DEF, LogConfig, message_format_magic, topic_defaults
from tidelog.protocol.config_def import ConfigError


def test_defaults_are_kafkas() -> None:
    config = LogConfig()
    assert (config.segment_bytes, config.retention_ms, config.index_interval_bytes) == (1 << 30, 604_800_000, 4096)
    assert (config.delete, config.compact, config.compression_type) == (True, False, None)
    assert (config.max_message_bytes, config.message_format_magic) == (1_048_588, 2)


def test_values_are_parsed_from_text() -> None:
    config = LogConfig({"cleanup.policy": "compact,delete", "compression.type": "gzip", "retention.ms": "-1"})
    assert (config.compact, config.delete, config.compression_type, config.retention_ms) == (True, True, 1, -1)
    assert config.compression_level == -1
    assert LogConfig({"compression.type": "uncompressed"}).compression_type == 0


@pytest.mark.parametrize(
    ("key", "value"), [("retention.ms", "-2"), ("cleanup.policy", "shred"), ("segment.bytes", "x"),
                       ("message.format.version", "ten"), ("remote.storage.enable", "true")],
)  # fmt: skip
def test_bad_value_is_named(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        LogConfig({key: value})


@pytest.mark.parametrize(
    ("version", "magic"),
    [("0.8.2", 0), ("0.9.0.1", 0), ("0.10.0-IV1", 1), ("0.10.2", 1), ("0.11.0", 2), ("3.0-IV1", 2)],
)
def test_a_version_is_mapped_to_its_message_format(version: str, magic: int) -> None:
    assert message_format_magic(version) == magic


def test_text_that_is_not_a_version_is_refused() -> None:
    with pytest.raises(ValueError, match="ten"):
        message_format_magic("ten")


def test_the_deprecated_timestamp_key_gives_defaults_to_the_newer_ones() -> None:
    config = LogConfig({"message.timestamp.difference.max.ms": 5, "message.timestamp.after.max.ms": 7})
    assert (config.timestamp_before_max_ms, config.timestamp_after_max_ms) == (5, 7)


def test_server_settings_give_defaults_in_kafkas_order() -> None:
    assert topic_defaults({"log.retention.hours": 2, "log.segment.bytes": 99}) == {
        "retention.ms": 7_200_000, "segment.bytes": 99,
    }  # fmt: skip
    assert topic_defaults({"log.retention.hours": 2, "log.retention.ms": -1}) == {"retention.ms": -1}
    assert topic_defaults({"log.retention.hours": -1}) == {"retention.ms": -1}


def test_every_synonym_has_its_key() -> None:
    assert set(SYNONYMS) <= set(TOPIC_CONFIG_DEF.keys)


def test_jitter_stays_below_its_limit() -> None:
    assert LogConfig().random_segment_jitter() == 0
    config = LogConfig({"segment.jitter.ms": 10})
    assert {config.random_segment_jitter() for _ in range(200)} == set(range(10))
