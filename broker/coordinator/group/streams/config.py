"""Configuration of a streams group: the broker's ``group.streams.*`` keys, overridden by the group's own.

A group's own keys have no prefix ``group.``; clients set them by IncrementalAlterConfigs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.protocol.errors import UnsupportedVersionError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.config.broker_config import BrokerConfig

FEATURE = "streams.version"
MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """Configuration of one streams group; times in milliseconds."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    num_standby_replicas: int = 0
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = MAX_INT32

    @property
    def assignment_configs(self) -> dict[str, str]:
        """Settings of the assignor. If they change, tasks are assigned again."""
        return {"num.standby.replicas": str(self.num_standby_replicas)}


def streams_config(config: BrokerConfig, own: Mapping[str, str]) -> StreamsConfig:
    """Return a group's configuration: its own settings, which were checked when set, override the broker's."""

    def value(key: str) -> int:
        return int(own[key]) if key in own else config.get_int(f"group.{key}")

    return StreamsConfig(
        session_timeout_ms=value("streams.session.timeout.ms"),
        heartbeat_interval_ms=value("streams.heartbeat.interval.ms"),
        num_standby_replicas=value("streams.num.standby.replicas"),
        initial_rebalance_delay_ms=value("streams.initial.rebalance.delay.ms"),
        max_size=config.get_int("group.streams.max.size"),
    )


def check_enabled(broker: Broker) -> None:
    """Raise UnsupportedVersionError while the level of the feature ``streams.version`` is 0."""
    if not broker.metadata.features.get(FEATURE):
        raise UnsupportedVersionError
