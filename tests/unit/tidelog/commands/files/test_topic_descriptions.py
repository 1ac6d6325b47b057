"""The parser of topic descriptions that kafka-configs prints."""

from __future__ import annotations

from tidelog.commands.files.topic_descriptions import parse_topic_configs

NEW = """\
Dynamic configs for topic orders are:
  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete}
  retention.ms=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5, STATIC_BROKER_CONFIG:log.retention.ms=1}
Dynamic configs for topic plain are:
"""
OLD = "Configs for topic 'orders' are cleanup.policy=compact,delete,retention.ms=5\nsomething else\n"


def test_the_new_form_of_kafka_configs_is_parsed() -> None:
    expected = {"orders": {"cleanup.policy": "compact,delete", "retention.ms": "5"}, "plain": {}}
    assert parse_topic_configs(NEW) == expected


def test_the_old_form_of_kafka_configs_is_parsed() -> None:
    assert parse_topic_configs(OLD) == {"orders": {"cleanup.policy": "compact,delete", "retention.ms": "5"}}
