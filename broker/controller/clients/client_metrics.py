"""Client metrics subscriptions (KIP-714): which metrics a client should push, computed from the configs set on them.

Nothing is kept about a client. The subscription id is a checksum of the client's subscription, so the id of a push
shows whether the configs have changed since.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.config.resources import CLIENT_METRICS_CONFIG_DEF, DEFAULT_PUSH_INTERVAL_MS, parse_match
from tidelog.broker.controller.configs import ConfigManager
from tidelog.protocol.types import uuid_to_str

if TYPE_CHECKING:
    from tidelog.broker.requests.context import RequestContext

ALL_METRICS = "*"


class Subscription(NamedTuple):
    """Metrics that one client is asked to push; no metrics means that it pushes nothing."""

    subscription_id: int
    push_interval_ms: int
    metrics: list[str]


def subscription_of(configs: ConfigManager, context: RequestContext, client_instance_id: bytes) -> Subscription:
    """Return the union of all subscriptions that match this client: all their metrics, at the shortest interval, which
    is DEFAULT_PUSH_INTERVAL_MS at most."""
    software_name, software_version = context.client_software
    client = {
        "client_instance_id": uuid_to_str(client_instance_id),
        "client_id": context.client_id or "",
        "client_software_name": software_name,
        "client_software_version": software_version,
        "client_source_address": context.client_host,
        "client_source_port": str(context.client_port),
    }
    metrics: set[str] = set()
    interval_ms = DEFAULT_PUSH_INTERVAL_MS
    for name in configs.resource_names(ResourceType.CLIENT_METRICS):
        values = CLIENT_METRICS_CONFIG_DEF.parse(configs.resource_texts(ResourceType.CLIENT_METRICS, name))
        patterns = parse_match(values["match"])
        if all(pattern.fullmatch(client[key]) for key, pattern in patterns.items()):
            metrics.update(values["metrics"])
            interval_ms = min(interval_ms, values["interval.ms"])
    chosen = [ALL_METRICS] if ALL_METRICS in metrics else sorted(metrics)
    text = f"{interval_ms} {chosen} ".encode() + client_instance_id
    return Subscription(zlib.crc32(text) & 0x7FFFFFFF, interval_ms, chosen)
