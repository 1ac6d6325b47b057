"""Timers of consumer groups' members. When one fires, the member is removed (``expire``).

    ("session", group, member)   the member sent no heartbeat, JoinGroup or SyncGroup within its session timeout; other
                                 requests, such as OffsetCommit, do not count
    ("revoke", group, member)    it is still in the epoch in which it had to revoke partitions, after its rebalance
                                 timeout
    ("rejoin", group, member)    a classic member was answered REBALANCE_IN_PROGRESS, and did not rejoin within its
                                 rebalance timeout
    ("collect", group, member)   a classic member joined, and SyncGroup did not give it its assignment within its
                                 rebalance timeout

A classic member names its session timeout in JoinGroup; other members have that of the group. A classic member has the
timers "rejoin" and "collect" in place of "revoke". Loop thread only.

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
    """Timers by group and member, which call ``expire(group id, member id, epoch)``: it removes the member; with
    an epoch other than None, only if the member is still in it."""

    def __init__(
        self,
        timer: CoordinatorTimer,
        session_timeout_ms: Callable[[str], int],
        expire: Callable[[str, str, int | None], TimerResult],
    ) -> None:
        self._timer = timer
        self._session_timeout_ms = session_timeout_ms
        self._expire = expire

    def restart_session(self, group_id: str, member_id: str, subscription: Subscription) -> None:
        """Restart the member's session timer."""
        classic = subscription.classic
        timeout_ms = self._session_timeout_ms(group_id) if classic is None else classic.session_timeout_ms
        self._timer.schedule(
            ("session", group_id, member_id), timeout_ms, lambda: self._expire_in_any_epoch(group_id, member_id)
        )

    def watch_revocation(
        self, group_id: str, member_id: str, subscription: Subscription, current: CurrentAssignment
    ) -> None:
        """Start the revocation timer of a member that must revoke partitions, unless the timer runs already. Stop the
        timer of any other member, and of a classic member."""
        key = ("revoke", group_id, member_id)
        if current.state is not MemberState.UNREVOKED_PARTITIONS or subscription.classic is not None:
            self._timer.cancel(key)
        elif not self._timer.is_scheduled(key):
            epoch = current.epoch
            self._timer.schedule(
                key, subscription.rebalance_timeout_ms, lambda: self._expire(group_id, member_id, epoch)
            )

    def require_rejoin(self, group_id: str, member_id: str, subscription: Subscription) -> None:
        """Start the timer for a classic member to rejoin, unless it already runs."""
        key = ("rejoin", group_id, member_id)
        if not self._timer.is_scheduled(key):
            self._timer.schedule(
                key, subscription.rebalance_timeout_ms, lambda: self._expire_in_any_epoch(group_id, member_id)
            )

    def note_joined(self, group_id: str, member_id: str, subscription: Subscription) -> None:
        """Note that a classic member has joined, and start the timer for its SyncGroup."""
        self._timer.cancel(("rejoin", group_id, member_id))
        self._timer.schedule(
            ("collect", group_id, member_id),
            subscription.rebalance_timeout_ms,
            lambda: self._expire_in_any_epoch(group_id, member_id),
        )

    def note_synced(self, group_id: str, member_id: str) -> None:
        """Note that a classic member gets its assignment by SyncGroup."""
        self._timer.cancel(("collect", group_id, member_id))

    def cancel(self, group_id: str, member_id: str) -> None:
        """Stop all timers of a member that was removed, or whose group is classic now."""
        for kind in _KINDS:
            self._timer.cancel((kind, group_id, member_id))

    def start(self, group: ConsumerGroup) -> None:
        """Start the session and revocation timers of all members, with full timeouts, after the group was loaded."""
        for member in group.members.values():
            self.restart_session(group.group_id, member.member_id, member.subscription)
            self.watch_revocation(group.group_id, member.member_id, member.subscription, member.current)

    def _expire_in_any_epoch(self, group_id: str, member_id: str) -> TimerResult:
        return self._expire(group_id, member_id, None)
