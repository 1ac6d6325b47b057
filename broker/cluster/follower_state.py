"""State of one follower, as its leader knows it from the follower's fetches.

A follower is caught up if it had all the leader's records at some moment of the last ``replica.lag.time.max.ms``. A
fetch from the leader's log end shows this for the time of the fetch. A fetch from where the leader's log ended at the
fetch before shows it for the time of that earlier fetch.

Sans-io; times in ms are passed in. Source: Replica and ReplicaState of Kafka 4.3.
"""

from __future__ import annotations

UNKNOWN = -1
"""Value of an offset or broker epoch that no fetch has carried yet."""

NEVER = float("-inf")
"""``caught_up_ms`` of a follower that nothing shows to have been caught up: neither the ISR nor its fetches."""


class FollowerState:
    """One follower in one leader epoch. A fetch from an offset shows that the follower has all records before it."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "fetched_ms",
        "leader_end_at_fetch",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, caught_up_ms: float) -> None:
        """``caught_up_ms`` is the present time for a member of the ISR, because the previous leader counted it as
        caught up; else NEVER.
        """
        self.caught_up_ms = caught_up_ms
        self.fetched_ms = caught_up_ms
        self.log_end_offset = UNKNOWN
        self.log_start_offset = UNKNOWN
        self.leader_end_at_fetch = UNKNOWN
        self.broker_epoch = UNKNOWN

    def note_fetch(
        self, broker_epoch: int, fetch_offset: int, log_start_offset: int, leader_end_offset: int, now_ms: float
    ) -> None:
        """Note a fetch. ``leader_end_offset`` is the leader's log end from before it read records for this fetch."""
        if fetch_offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif self.leader_end_at_fetch != UNKNOWN and fetch_offset >= self.leader_end_at_fetch:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.leader_end_at_fetch = max(self.leader_end_at_fetch, leader_end_offset)
        self.fetched_ms = now_ms
        self.broker_epoch = broker_epoch

    def note_caught_up(self, asked_ms: float) -> None:
        """Note that the follower had all the leader's records at ``asked_ms``, the time of one of its requests."""
        self.caught_up_ms = max(self.caught_up_ms, asked_ms)
        self.fetched_ms = max(self.fetched_ms, asked_ms)

    def forget_position(self) -> None:
        """Forget what the follower had until it fetches again: the controller has removed it from the ISR."""
        self.caught_up_ms = self.fetched_ms = NEVER
        self.log_end_offset = self.leader_end_at_fetch = UNKNOWN

    def has_fetched(self, now_ms: float, lag_time_max_ms: float) -> bool:
        """Return whether the follower has fetched recently; one that has not would leave the ISR at the next check."""
        return now_ms - self.fetched_ms <= lag_time_max_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: float, lag_time_max_ms: float) -> bool:
        """Return whether the follower has all records, or had all at some moment of the last ``lag_time_max_ms``."""
        return self.log_end_offset == leader_end_offset or now_ms - self.caught_up_ms <= lag_time_max_ms
