"""Configuration of a share group: the broker's ``group.share.*`` keys, overridden by the group's own.

A group's own keys have no prefix ``group.``; clients set them by IncrementalAlterConfigs. A group's texts are looked up
whenever its configuration is needed, and parsed once after each change. Its values are held within the broker's bounds,
and keys of newer controllers are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.broker.config.broker_config import bounded_texts
from tidelog.broker.config.offset_reset import LATEST
from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.share.share_partition import Limits
from tidelog.protocol.errors import UnsupportedVersionError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

FEATURE = "share.version"
"""Kafka's feature whose level says whether share groups are enabled."""
READ_COMMITTED = "read_committed"
"""Value of ``share.isolation.level``; without it records of open and aborted transactions are delivered too."""


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """Configuration of one share group; times in milliseconds."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 200
    auto_offset_reset: str = LATEST
    read_committed: bool = False
    limits: Limits = Limits()  # noqa: RUF009 - an immutable tuple


class ShareConfigs:
    """The configurations of all groups. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._parsed: dict[str, tuple[Mapping[str, str], ShareConfig]] = {}
        """Group -> its own keys and values as texts, and the configuration that was parsed from them."""

    def of(self, group_id: str) -> ShareConfig:
        """Return the current configuration of a group."""
        texts = self._broker.configs.resource_texts(ResourceType.GROUP, group_id)
        known = self._parsed.get(group_id)
        if known is None or known[0] != texts:
            if len(self._parsed) >= MAX_REMEMBERED_GROUPS:
                self._parsed.clear()
            known = self._parsed[group_id] = (dict(texts), self._parse(texts))
        return known[1]

    def _parse(self, texts: Mapping[str, str]) -> ShareConfig:
        from tidelog.broker.config.resources import GROUP_CONFIG_DEF

        config = self._broker.config
        bounded = bounded_texts(texts, config.values)
        own = GROUP_CONFIG_DEF.parse_given({key: bounded[key] for key in bounded if key in GROUP_CONFIG_DEF.keys})

        def value(key: str) -> Any:
            return own[key] if key in own else config.get(f"group.{key}")

        return ShareConfig(
            session_timeout_ms=value("share.session.timeout.ms"),
            heartbeat_interval_ms=value("share.heartbeat.interval.ms"),
            max_size=config.get_int("group.share.max.size"),
            auto_offset_reset=own.get("share.auto.offset.reset", LATEST),
            read_committed=own.get("share.isolation.level") == READ_COMMITTED,
            limits=Limits(
                value("share.record.lock.duration.ms"),
                value("share.delivery.count.limit"),
                value("share.partition.max.record.locks"),
                own.get("share.renew.acknowledge.enable", True),
            ),
        )


MAX_REMEMBERED_GROUPS = 10_000
"""Largest number of groups whose parsed configuration is kept."""


def check_enabled(broker: Broker) -> None:
    """Raise UnsupportedVersionError while the level of the feature ``share.version`` is 0."""
    if not broker.metadata.features.get(FEATURE):
        raise UnsupportedVersionError
