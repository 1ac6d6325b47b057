"""Configuration of the coordinators: plain values, read once from the broker's keys.

The default of ``group.initial.rebalance.delay.ms`` is 0, as in the ``server.properties`` that Apache Kafka ships for
one node. Kafka's own default of three seconds lets many members join in one rebalance; in a test suite it costs
three seconds per group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tidelog.broker.config.keys.broker import ASSIGNOR_PACKAGE

MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Settings of groups, named as Kafka's keys with underscores; times and sizes in the unit of the name."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 0
    group_max_size: int = MAX_INT32
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = MAX_INT32
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Settings of transactions, named as Kafka's keys with underscores; times in milliseconds."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_state_log_num_partitions: int = 50


def group_config(values: Mapping[str, Any]) -> GroupConfig:
    """Select the part of a parsed configuration (Kafka's dotted keys) that groups need. Missing keys get defaults.

    Class names of Kafka's assignors become short names: ``uniform``, ``range``.
    """
    config = replace(GroupConfig(), **_select_given(GroupConfig, values))
    names = [
        name.removeprefix(ASSIGNOR_PACKAGE).removesuffix("Assignor").lower() for name in config.group_consumer_assignors
    ]
    return replace(config, group_consumer_assignors=tuple(dict.fromkeys(names)))


def transaction_config(values: Mapping[str, Any]) -> TransactionConfig:
    """Select the part of a parsed configuration (Kafka's dotted keys) that transactions need. Missing keys get
    defaults."""
    return replace(TransactionConfig(), **_select_given(TransactionConfig, values))


def _select_given(config: type[GroupConfig] | type[TransactionConfig], values: Mapping[str, Any]) -> dict[str, Any]:
    keys = ((field.name, field.name.replace("_", ".")) for field in fields(config))
    return {name: values[key] for name, key in keys if key in values}
