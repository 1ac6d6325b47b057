"""Config keys of groups and of client metrics subscriptions; imported at their first use.

A group's keys override the broker's ``group.<key>`` for one group, within the broker's bounds (KIP-848, KIP-932,
KIP-1071). A client metrics subscription names metrics, how often they are pushed and by whom (KIP-714).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidelog.broker.config.broker_config import BROKER_CONFIG_DEF, BrokerConfig, exceeded_bound
from tidelog.broker.config.changes import check_known
from tidelog.broker.config.keys.security import is_listener_key
from tidelog.broker.config.offset_reset import is_offset_reset
from tidelog.broker.config.resource_type import ResourceType
from tidelog.log.config import TOPIC_CONFIG_DEF
from tidelog.protocol.config_def import Check, ConfigDef, ConfigKey, ConfigType, Importance, between, one_of
from tidelog.protocol.errors import InvalidConfigError, InvalidRequestError
from tidelog.protocol.foreign_text import compile_pattern

DEFAULT_PUSH_INTERVAL_MS = 300_000
# Properties by which a subscription may select clients; a regular expression is given for each.
MATCHERS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)

_INT, _STRING, _LIST, _MEDIUM = ConfigType.INT, ConfigType.STRING, ConfigType.LIST, Importance.MEDIUM

GROUP_CONFIG_DEF = ConfigDef(
    (
        ConfigKey(
            "consumer.session.timeout.ms",
            _INT,
            45_000,
            between(1),
            _MEDIUM,
            "How long a member may be silent before it is removed.",
        ),
        ConfigKey(
            "consumer.heartbeat.interval.ms", _INT, 5_000, between(1), _MEDIUM, "How often members send a heartbeat."
        ),
        ConfigKey(
            "consumer.assignment.interval.ms",
            _INT,
            0,
            between(0),
            _MEDIUM,
            "How old the assignment must be before another is computed.",
        ),
        ConfigKey(
            "share.session.timeout.ms",
            _INT,
            45_000,
            between(1),
            _MEDIUM,
            "How long a member may be silent before it is removed.",
        ),
        ConfigKey(
            "share.heartbeat.interval.ms", _INT, 5_000, between(1), _MEDIUM, "How often members send a heartbeat."
        ),
        ConfigKey(
            "share.record.lock.duration.ms",
            _INT,
            30_000,
            between(1_000),
            _MEDIUM,
            "How long acquired records are held.",
        ),
        ConfigKey(
            "share.delivery.count.limit", _INT, 5, between(2), _MEDIUM, "How often a record is delivered at most."
        ),
        ConfigKey(
            "share.partition.max.record.locks",
            _INT,
            2_000,
            between(100),
            _MEDIUM,
            "The most records of one partition acquired at one time.",
        ),
        ConfigKey(
            "share.renew.acknowledge.enable",
            ConfigType.BOOLEAN,
            True,
            None,
            _MEDIUM,
            "Whether members may renew their locks.",
        ),
        ConfigKey(
            "share.auto.offset.reset",
            _STRING,
            "latest",
            Check(is_offset_reset, "latest or earliest or by_duration:<ISO 8601 duration>"),
            _MEDIUM,
            "Where a share group starts in a partition it has no position in.",
        ),
        ConfigKey(
            "share.isolation.level",
            _STRING,
            "read_uncommitted",
            one_of("read_uncommitted", "read_committed"),
            _MEDIUM,
            "Whether records of open and aborted transactions are delivered.",
        ),
        ConfigKey(
            "share.assignment.interval.ms",
            _INT,
            0,
            between(0),
            _MEDIUM,
            "How old the assignment must be before another is computed.",
        ),
        ConfigKey(
            "streams.session.timeout.ms",
            _INT,
            45_000,
            between(1),
            _MEDIUM,
            "How long a member may be silent before it is removed.",
        ),
        ConfigKey(
            "streams.heartbeat.interval.ms", _INT, 5_000, between(1), _MEDIUM, "How often members send a heartbeat."
        ),
        ConfigKey(
            "streams.num.standby.replicas",
            _INT,
            0,
            between(0),
            _MEDIUM,
            "The number of standby replicas of each state store.",
        ),
        ConfigKey(
            "streams.initial.rebalance.delay.ms",
            _INT,
            3_000,
            between(0),
            _MEDIUM,
            "How long a new streams group waits for more members before it assigns tasks.",
        ),
        ConfigKey(
            "streams.assignment.interval.ms",
            _INT,
            0,
            between(0),
            _MEDIUM,
            "How old the assignment must be before another is computed.",
        ),
    )
)
CLIENT_METRICS_CONFIG_DEF = ConfigDef(
    (
        ConfigKey("metrics", _LIST, (), None, _MEDIUM, "Prefixes of the metrics to push; * means all."),
        ConfigKey(
            "interval.ms",
            _INT,
            DEFAULT_PUSH_INTERVAL_MS,
            between(100, 3_600_000),
            _MEDIUM,
            "How often clients push their metrics.",
        ),
        ConfigKey("match", _LIST, (), None, _MEDIUM, "Which clients: name=regular expression; none means all."),
    )
)
CONFIG_DEFS = {ResourceType.GROUP: GROUP_CONFIG_DEF, ResourceType.CLIENT_METRICS: CLIENT_METRICS_CONFIG_DEF}
"""Tables of the resources whose keys are declared in this module."""

_ALL_CONFIG_DEFS = {
    ResourceType.TOPIC: TOPIC_CONFIG_DEF,
    ResourceType.BROKER: BROKER_CONFIG_DEF,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS_CONFIG_DEF,
    ResourceType.GROUP: GROUP_CONFIG_DEF,
}
"""Tables of all resources that have one. The keys of BROKER_LOGGER are the loggers that exist."""


def is_shown(kind: int, name: str) -> bool:
    """Return whether a config's value may be shown to people: its key is known for this type of resource, and is not a
    password.

    A listener's key is known by what follows its prefix. Source: KafkaConfigSchema.isSensitive of Kafka 4.3, which
    hides values of unknown keys, too, and of all keys of single listeners.
    """
    if kind not in _ALL_CONFIG_DEFS:
        return False
    keys = _ALL_CONFIG_DEFS[ResourceType(kind)].keys
    words = name.split(".")
    endings = range(len(words)) if is_listener_key(name) else range(1)
    found = [keys[ending] for ending in (".".join(words[start:]) for start in endings) if ending in keys]
    return bool(found) and not any(key.is_sensitive for key in found)


def validate(kind: ResourceType, texts: Mapping[str, str], config: BrokerConfig) -> None:
    """Raise InvalidConfigError, for client metrics InvalidRequestError, unless a resource of this kind may have these
    texts.
    """
    try:
        check_known(CONFIG_DEFS[kind], texts, kind.name.lower().replace("_", " "))
        values = CONFIG_DEFS[kind].parse_given(texts)
    except InvalidConfigError as error:
        if kind is ResourceType.CLIENT_METRICS:
            raise InvalidRequestError(error.message) from error
        raise
    if kind is ResourceType.GROUP:
        for name, value in values.items():
            check_bounds(name, value, config)
    elif "match" in values:
        parse_match(values["match"])


def check_bounds(name: str, value: Any, config: BrokerConfig) -> None:
    """Raise InvalidConfigError when the broker's ``group.*.min.*`` or ``.max.*`` forbids the value."""
    bound = exceeded_bound(name, value, config.values)
    if bound is not None:
        raise InvalidConfigError(f"{name} is {value}, but {bound} is {config.get_int(bound)}")


def parse_match(entries: list[str]) -> dict[str, re.Pattern[str]]:
    """Parse each entry to matcher name and compiled expression. Raises InvalidRequestError for an entry that is no such
    pair.
    """
    patterns = {}
    for entry in entries:
        name, separator, expression = entry.partition("=")
        if not separator or name.strip() not in MATCHERS:
            raise InvalidRequestError(f"Illegal client matching pattern: {entry}")
        try:
            patterns[name.strip()] = compile_pattern(expression.strip())
        except ValueError as error:
            raise InvalidRequestError(f"Illegal client matching pattern: {entry}: {error}") from None
    return patterns
