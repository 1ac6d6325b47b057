"""Builders for tests of a partition leader: its state, with three replicas, and the registrations of brokers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tidelog.broker.cluster.partition_state import LeaderState
from tidelog.broker.metadata.metadata_image import BrokerRegistration, PartitionState

LEADER = 1
NODES = (1, 2, 3)
EPOCH = 100
"""A broker's epoch is the sum of this number and the broker's id."""
LAG_MS = 30_000.0


def brokers(
    fenced: Collection[int] = (),
    stopping: Collection[int] = (),
    absent: Collection[int] = (),
    epochs: Mapping[int, int] | None = None,
) -> dict[int, BrokerRegistration]:
    """Build the registrations of brokers 1 to 4, without those that are absent."""
    return {
        node: BrokerRegistration(
            node, (epochs or {}).get(node, EPOCH + node), b"i" * 16, (), {}, None, node in fenced, node in stopping, ()
        )
        for node in (*NODES, 4)
        if node not in absent
    }


def state(
    isr: tuple[int, ...] = NODES,
    replicas: tuple[int, ...] = NODES,
    partition_epoch: int = 7,
    *,
    is_recovering: bool = False,
) -> PartitionState:
    """Build the state of a partition that broker 1 leads in epoch 3."""
    return PartitionState(replicas, isr, LEADER, 3, partition_epoch, is_recovering=is_recovering)


def led(
    isr: tuple[int, ...] = NODES,
    high_watermark: int = 10,
    min_isr: int = 1,
    *,
    is_recovering: bool = False,
    fenced: Collection[int] = (),
) -> LeaderState:
    """Build the ``LeaderState`` of a leader that was elected at time 0, with a log that ends at 10."""
    led_state = state(isr, is_recovering=is_recovering)
    return LeaderState(LEADER, led_state, 10, high_watermark, 0.0, LAG_MS, min_isr, brokers(fenced))
