"""The clocks of consumer groups' members. Each ends in the same way: the member is out (``expire``).

    ("session", group, member)   nothing was heard of it for its session timeout
    ("revoke", group, member)    it has not given back what it lost, in this epoch, within its rebalance timeout
    ("rejoin", group, member)    a classic member was told of a rebalance and did not join within its rebalance timeout
    ("collect", group, member)   a classic member joined and did not come for its assignment within that time

A classic member has its own session timeout, and the last two in place of the second. Loop thread only.

Source: KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.coordinator.group.consumer.group import ConsumerGroup, CurrentAssignment, MemberState, Subscription
from tidelog.broker.coordinator.runtime.result import TimerResult

if TYPE_CHECKING:
    from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer

_KINDS = ("session", "revoke", "rejoin", "collect")


class ConsumerClocks:
    """Clocks by group and member; ``expire(group id, member id, epoch or None)`` is what they do."""

    def __init__(
        self,
        timer: CoordinatorTimer,
        session_timeout_ms: Callable[[str], int],
        expire: Callable[[str, str, int | None], TimerResult],
    ) -> None:
        self._timer = timer
        self._session_timeout_ms = session_timeout_ms
        self._expire = expire

    def heard_of(self, group_id: str, member_id: str, subscription: Subscription) -> None:
        """Restart the member's session timer, after a sign of life."""
        classic = subscription.classic
        timeout_ms = self._session_timeout_ms(group_id) if classic is None else classic.session_timeout_ms
        self._timer.schedule(("session", group_id, member_id), timeout_ms, lambda: self._out(group_id, member_id))

    def watch_revocation(
        self, group_id: str, member_id: str, subscription: Subscription, current: CurrentAssignment
    ) -> None:
        """Run the time for giving partitions back while there are any to give back."""
        key = ("revoke", group_id, member_id)
        if current.state is not MemberState.UNREVOKED_PARTITIONS or subscription.classic is not None:
            self._timer.cancel(key)
        elif not self._timer.is_scheduled(key):
            epoch = current.epoch
            self._timer.schedule(
                key, subscription.rebalance_timeout_ms, lambda: self._expire(group_id, member_id, epoch)
            )

    def must_rejoin(self, group_id: str, member_id: str, subscription: Subscription) -> None:
        """Begin the time in which a classic member must join again; it runs from when the member was first told."""
        key = ("rejoin", group_id, member_id)
        if not self._timer.is_scheduled(key):
            self._timer.schedule(key, subscription.rebalance_timeout_ms, lambda: self._out(group_id, member_id))

    def has_joined(self, group_id: str, member_id: str, subscription: Subscription) -> None:
        """Note that it joined again; now it must come for its assignment."""
        self._timer.cancel(("rejoin", group_id, member_id))
        self._timer.schedule(
            ("collect", group_id, member_id), subscription.rebalance_timeout_ms, lambda: self._out(group_id, member_id)
        )

    def has_collected(self, group_id: str, member_id: str) -> None:
        """Note that it came for its assignment."""
        self._timer.cancel(("collect", group_id, member_id))

    def cancel(self, group_id: str, member_id: str) -> None:
        """Stop all clocks of a member that is gone."""
        for kind in _KINDS:
            self._timer.cancel((kind, group_id, member_id))

    def start(self, group: ConsumerGroup) -> None:
        """Give every member a whole session to show up, after loading."""
        for member in group.members.values():
            self.heard_of(group.group_id, member.member_id, member.subscription)
            self.watch_revocation(group.group_id, member.member_id, member.subscription, member.current)

    def _out(self, group_id: str, member_id: str) -> TimerResult:
        return self._expire(group_id, member_id, None)
