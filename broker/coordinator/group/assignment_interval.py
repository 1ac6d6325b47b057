"""Shortest interval between two target assignments of a group (KIP-1263): ``*.assignment.interval.ms``.

Changes within the interval are collected: each of them raises the group's epoch, and the first heartbeat or JoinGroup
of any member after the interval computes one target assignment for all of them. The default is 0, without delay. Apache
Kafka's default of one second collects the members of large groups. In a small group, one second would make the second
member wait for its partitions until its next heartbeat, five seconds later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.broker.config.broker_config import BrokerConfig

AssignmentInterval = Callable[[str, str], int]
"""Function from protocol (``consumer``, ``share``, ``streams``) and group id to the interval in milliseconds."""


def assign_at_once(_protocol: str, _group_id: str) -> int:
    """Return 0: target assignments are computed without delay."""
    return 0


def assignment_interval_ms(config: BrokerConfig, own: Mapping[str, str], protocol: str) -> int:
    """Return a group's interval: from its ``own`` config or the broker's, within the broker's minimum and maximum."""
    name = f"{protocol}.assignment.interval.ms"
    value = int(own[name]) if name in own else config.get_int(f"group.{name}")
    minimum, maximum = (config.get_int(f"group.{protocol}.{bound}.assignment.interval.ms") for bound in ("min", "max"))
    return max(minimum, min(value, maximum))


def may_assign(assigned_at_ms: int, interval_ms: int, now_ms: int) -> bool:
    """Return whether a target assignment may be computed now. ``assigned_at_ms`` is the time of the last assignment, 0
    if unknown.

    Both times are of the wall clock, because the log keeps ``assigned_at_ms`` over a restart. If it is in the future,
    the clock was set back, and the next assignment does not wait for it.
    """
    return interval_ms == 0 or assigned_at_ms == 0 or not 0 <= now_ms - assigned_at_ms < interval_ms
