"""Kinds of resources that have configs: topics, brokers, their loggers, groups, client metrics subscriptions."""

from __future__ import annotations

from enum import IntEnum


class ResourceType(IntEnum):
    """Kinds of resources that have configs, as numbered on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32
