"""Share groups as the leader of their partitions serves them: states in memory, sessions, locks that run out.

    share partitions   (group, topic id, index) -> SharePartition, loaded from the share coordinator when first read
    sessions           who reads what on which connection (``sessions``)
    locks              one timer per share partition, not later than its earliest lock

Every change of a share partition goes one way: work it out, write it to ``__share_group_state``, take it over, wake
the fetches that wait. Clients are told of it when what was written is committed. Fetches wait under ``wake_key`` and
under the partition they read. A request first ends the locks that have run out by the clock: on a busy broker the timer
may run late, and nothing depends on when it does. Loop thread only.

What counts is in the store. A share partition is forgotten when a change was not stored, when another leader epoch
begins, and when its group has no members any more: the next fetch reads the store. A member of a cluster forgets it
with the group's last session here; offsets may then be reset.

Source: KIP-932.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.broker.config.offset_reset import BY_DURATION, EARLIEST, duration_ms
from tidelog.broker.coordinator.share_state.state import ShareState, StateKey, Written
from tidelog.broker.loop.deferred import Deferred, completed, failed, when_all
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps
from tidelog.broker.share.config import ShareConfig, ShareConfigs
from tidelog.broker.share.sessions import PartitionKey, SessionKey, ShareSessions
from tidelog.broker.share.share_partition import (
    UNINITIALIZED_OFFSET,
    AcknowledgementBatch,
    Acquired,
    Change,
    SharePartition,
)
from tidelog.protocol.errors import (
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    FencedStateEpochError,
    InvalidRequestError,
    KafkaError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.coordinator.share_state.coordinator import ShareStates
    from tidelog.broker.loop.timers import Timer
    from tidelog.broker.replica.partition import Partition
    from tidelog.broker.requests.context import RequestContext
    from tidelog.protocol.messages.share_fetch import AcquiredRecords

logger = logging.getLogger(__name__)

FENCED = (FencedLeaderEpochError, FencedStateEpochError)
"""Refusals of a change: another leader has read the state, or the group was reset."""


class ServedPartition:
    """A share partition that is in use, and the timer of its locks."""

    __slots__ = ("key", "leader_epoch", "partition", "replica", "state_epoch", "timer")

    def __init__(self, key: StateKey, partition: SharePartition, replica: Partition, state_epoch: int) -> None:
        self.key = key
        self.partition = partition
        self.replica = replica
        self.leader_epoch = replica.leader_epoch
        self.state_epoch = state_epoch
        self.timer: Timer | None = None

    @property
    def is_led(self) -> bool:
        """True as long as this broker leads the partition in the epoch in which the state was read."""
        return self.replica.is_leader and self.replica.leader_epoch == self.leader_epoch


class ShareGroups:
    """All share partitions of a broker."""

    def __init__(self, broker: Broker, store: Callable[[], ShareStates]) -> None:
        self._broker = broker
        self._store = store
        self.configs = ShareConfigs(broker)
        self.sessions = ShareSessions(broker.config.get_int("group.share.max.share.sessions"))
        self._served: dict[StateKey, ServedPartition] = {}

    def config(self, group_id: str) -> ShareConfig:
        """Return a group's values as they are now."""
        return self.configs.of(group_id)

    # -- share partitions ---------------------------------------------------------------------------------------

    def opening(self, key: StateKey) -> Deferred[None] | None:
        """Begin to make a share partition's state readable; None where it is, or is served already."""
        if self._find(key) is not None:
            return None
        try:
            replica = self._broker.replica_manager.partition_by_id(key.topic_id, key.partition)
        except KafkaError:
            return None  # ``serve`` raises the same error
        return self._store().opening(key, replica.leader_epoch) if replica.is_leader else None

    def _find(self, key: StateKey) -> ServedPartition | None:
        """Return the share partition that is served, with no lock that has run out; one of a leader epoch that is over
        is forgotten."""
        found = self._served.get(key)
        if found is not None and not found.is_led:
            self._forget([key])
            return None
        timer = None if found is None else found.timer
        if found is None or timer is None or timer.deadline_ms > self._broker.time.monotonic_ms():
            return found
        timer.cancel()
        self._expire(found)
        return self._served.get(key)

    def serve(self, key: StateKey) -> ServedPartition:
        """Return the share partition, loaded now if it was not yet.

        Raises UnknownTopicIdError, UnknownTopicOrPartitionError, CoordinatorNotAvailableError while its state loads.
        """
        found = self._find(key)
        if found is not None:
            return found
        partition = self._broker.replica_manager.partition_by_id(key.topic_id, key.partition)
        partition.check_leader()
        try:
            state = self._store().read(key, partition.leader_epoch)
        except NotLeaderOrFollowerError:
            raise
        except KafkaError as error:
            raise CoordinatorNotAvailableError(f"the state of the share partition: {error}") from error
        if state is None:
            raise InvalidRequestError("Read operation on uninitialized share partition not allowed.")
        reset = self.config(key.group_id).auto_offset_reset
        start_offset = start_offset_of(state, reset, partition, self._broker.time.milliseconds())
        found = ServedPartition(key, SharePartition(start_offset, state.batches), partition, state.state_epoch)
        found.partition.log_start_moved(partition.log_start_offset)
        self._served[key] = found
        return found

    def forget_group(self, group_id: str) -> None:
        """Forget a group without members: its places are in the store alone from now on."""
        self._forget(key for key in list(self._served) if key.group_id == group_id)

    def forget_topic(self, topic_id: bytes) -> Steps[None]:
        """Forget the share partitions of a topic that is gone, some in a step."""
        keys = iter(list(self._served))
        while part := list(islice(keys, ITEMS_PER_STEP)):
            self._forget(key for key in part if key.topic_id == topic_id and key in self._served)
            yield None

    def _forget(self, keys: Iterable[StateKey]) -> None:
        for key in keys:
            served = self._served.pop(key)
            if served.timer is not None:
                served.timer.cancel()
            self.wake(key)

    def wake(self, key: StateKey) -> None:
        """Look again at the fetches that wait for this share partition."""
        self._broker.purgatory.touch(wake_key(key))

    # -- giving back --------------------------------------------------------------------------------------------

    def acknowledge(self, key: StateKey, member_id: str, batches: Sequence[AcknowledgementBatch]) -> Deferred[None]:
        """Take a member's acknowledgements over, all or none.

        Raises UnknownTopicOrPartitionError for a partition without readers, and as ``SharePartition.acknowledge``.
        """
        served = self._find(key)
        if served is None:
            raise UnknownTopicOrPartitionError
        now_ms = self._broker.time.monotonic_ms()
        limits = self.config(key.group_id).limits
        return self._make(served, served.partition.acknowledge(member_id, batches, limits, now_ms))

    def take_back(self, session_key: SessionKey, partition: PartitionKey, runs: Iterable[AcquiredRecords]) -> None:
        """Take back what an answer that is not sent gave the member: all is as it was before."""
        served = self._served.get(StateKey(session_key.group_id, *partition))
        if served is not None and runs:
            acquired = [Acquired(run.first_offset, run.last_offset, run.delivery_count) for run in runs]
            served.partition.take_back(session_key.member_id, acquired)
            self.wake(served.key)

    def release_session(self, session_key: SessionKey) -> Deferred[None]:
        """End a session, if there is one: what its member holds is available again. Settles when that is committed."""
        session = self.sessions.close(session_key)
        written = [] if session is None else self._release(session_key, session.partitions)
        is_last = session is not None and not self.sessions.has_group(session_key.group_id)
        if is_last and self._broker.peers is not None:  # the group's coordinator does not tell that it is empty
            self.forget_group(session_key.group_id)
        return when_all(written, None)

    def _release(self, session_key: SessionKey, partitions: Iterable[PartitionKey]) -> list[Deferred[None]]:
        limits = self.config(session_key.group_id).limits
        written = []
        for topic_id, index in partitions:
            served = self._served.get(StateKey(session_key.group_id, topic_id, index))
            if served is not None:
                written.append(self._make_anyhow(served, served.partition.release(session_key.member_id, limits)))
        return written

    def bind(self, context: RequestContext) -> None:
        """End the connection's sessions when it closes."""
        context.on_close = lambda: self._connection_closed(context)

    def _connection_closed(self, context: RequestContext) -> None:
        for session_key in self.sessions.of_connection(context):
            self.release_session(session_key)

    def _make(self, served: ServedPartition, change: Change) -> Deferred[None]:
        """Write a change, then take it over. Settles when it is committed. Raises KafkaError."""
        written = self._write(served, change) if change.is_news else completed(None)
        served.partition.commit(change)
        self.watch(served)
        self.wake(served.key)
        return written

    def _make_anyhow(self, served: ServedPartition, change: Change) -> Deferred[None]:
        """Take a change over though it may not have been written: no member holds these records any more."""
        written = completed(None)
        if not change.is_news:
            return written
        try:
            written = self._write(served, change)
        except KafkaError as error:
            logger.warning("share group %s: records given back were not stored: %s", served.key.group_id, error)
        served.partition.commit(change)
        self.watch(served)
        self.wake(served.key)
        return written

    def _write(self, served: ServedPartition, change: Change) -> Deferred[None]:
        written = Written(
            change.start_offset, change.delivery_complete_count, served.leader_epoch, change.batches, served.state_epoch
        )

        def forget_unstored(done: Deferred[None]) -> None:
            if not done.has_value and self._served.get(served.key) is served:
                self._forget([served.key])  # the next fetch reads what the store has

        try:
            done = self._store().write(served.key, written)
        except FENCED as error:
            forget_unstored(failed(error))
            raise
        if done.has_value:
            return done
        done.on_done(forget_unstored)
        told: Deferred[None] = Deferred()  # a client that goes away does not abandon the change
        done.pass_to(told)
        return told

    # -- locks --------------------------------------------------------------------------------------------------

    def watch(self, served: ServedPartition) -> None:
        """Have the clock look at the locks when the first of them runs out."""
        now_ms = self._broker.time.monotonic_ms()
        timer = served.timer
        if timer is not None:
            if timer.deadline_ms <= now_ms + self.config(served.key.group_id).limits.lock_duration_ms:
                return  # the timer fires before any lock that was granted just now runs out
            timer.cancel()
            served.timer = None
        deadline_ms = served.partition.next_deadline_ms
        if deadline_ms is not None:
            delay_ms = max(0.0, deadline_ms - now_ms)
            served.timer = self._broker.timers.schedule(delay_ms, lambda: self._expire(served))

    def _expire(self, served: ServedPartition) -> None:
        served.timer = None
        if self._served.get(served.key) is not served:
            return
        limits = self.config(served.key.group_id).limits
        self._make_anyhow(served, served.partition.expire(limits, self._broker.time.monotonic_ms()))
        self.watch(served)


def wake_key(key: StateKey) -> tuple[str, StateKey]:
    """Return the key under which fetches of a share partition wait."""
    return ("share", key)


def start_offset_of(state: ShareState, reset: str, partition: Partition, now_ms: float) -> int:
    """Return the group's start offset; a group without a place begins where it is configured to."""
    if state.start_offset != UNINITIALIZED_OFFSET:
        return state.start_offset
    if reset == EARLIEST:
        return partition.log_start_offset
    if reset.startswith(BY_DURATION):
        back_ms = duration_ms(reset.removeprefix(BY_DURATION)) or 0
        limit = partition.high_watermark
        found = partition.offset_for(int(now_ms) - back_ms, limit).offset
        return limit if found < 0 else found
    return partition.high_watermark
