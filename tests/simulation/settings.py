"""Sizes and times of a simulated cluster."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.replica.group_flush import NEVER

TOPIC = "topic"
TOPIC_ID = b"simulated-topic!"


class Settings(NamedTuple):
    """Settings of one cluster: all times are shorter than Kafka's defaults, in about the same proportions."""

    brokers: int = 3
    partitions: int = 1
    min_isr: int = 2
    allows_unclean: bool = False
    session_ms: float = 900.0
    heartbeat_ms: float = 200.0
    lag_ms: float = 600.0
    fetch_wait_ms: int = 150
    backoff_ms: int = 200
    timeout_ms: float = 500.0
    checkpoint_ms: float = 1000.0
    """Time between two writes of the high watermarks."""

    is_idempotent: bool = False
    """Whether records with acks=all are sent by idempotent producers."""

    flush_messages: int = NEVER
    """``flush.messages`` of the topic: with 1 each record is synced before it is acknowledged."""

    @property
    def log_configs(self) -> dict[str, object]:
        """Configs of the topic's logs."""
        return {"min.insync.replicas": self.min_isr, "flush.messages": self.flush_messages}

    @property
    def nodes(self) -> range:
        """Ids of the brokers."""
        return range(1, self.brokers + 1)
