"""The least interval between two target assignments of a group (KIP-1263): ``*.assignment.interval.ms``.

Changes that come within the interval are gathered: the group's epoch rises with each, and the first heartbeat after the
interval, of whichever member, works out one target for them all. The default here is 0, at once; Apache Kafka's is a
second. That gathers the members of large deployments, and lets the second member of a small one wait for its next
heartbeat, five seconds later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.broker.config.broker_config import BrokerConfig

#: Protocol (``consumer``, ``share``, ``streams``) and group id -> milliseconds.
AssignmentInterval = Callable[[str, str], int]


def assign_at_once(_protocol: str, _group_id: str) -> int:
    """Return 0: no group waits."""
    return 0


def assignment_interval_ms(config: BrokerConfig, own: Mapping[str, str], protocol: str) -> int:
    """Return a group's interval: its own text before the broker's, kept within the broker's bounds as they are now."""
    name = f"{protocol}.assignment.interval.ms"
    value = int(own[name]) if name in own else config.get_int(f"group.{name}")
    least, most = (config.get_int(f"group.{protocol}.{bound}.assignment.interval.ms") for bound in ("min", "max"))
    return max(least, min(value, most))


def may_assign(assigned_at_ms: int, interval_ms: int, now_ms: int) -> bool:
    """Return whether a target may be worked out now. ``assigned_at_ms``: when the last one was, 0 if unknown.

    Both are of the wall clock, which the log keeps over a restart. A last target in the future shows that the clock was
    set back, and is no reason to wait for that time to come again.
    """
    return interval_ms == 0 or assigned_at_ms == 0 or not 0 <= now_ms - assigned_at_ms < interval_ms
