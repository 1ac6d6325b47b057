"""Share groups on the leader of their partitions: share partitions in memory, sessions, and expiry of record locks.

    share partitions   (group, topic id, index) -> SharePartition, loaded from the share coordinator when first read
    sessions           partitions that each member reads, and its connection (``sessions``)
    locks              one timer per share partition, which fires when the earliest lock expires, or before

A share partition is one partition of a topic, as one share group reads it. A change of finished or available records
takes these steps: compute it, pass it to the share coordinator, apply it in memory, wake the waiting fetches. Clients
are answered when the change is committed. A release because a session ended or a lock expired is applied even if it
cannot be stored. In the purgatory a fetch waits under ``wake_key`` and under the partition that it reads. A request
first ends the expired locks of the share partitions that it needs, because on a busy broker the timer may be late. Loop
thread only.

The store (the share coordinator's state) is authoritative. A share partition is dropped from memory when the store
fences a change or loses one that was written. It is also dropped when another leader epoch begins, and when its group
has no members. The next fetch reads the store again. In a cluster, a broker drops it when the group's last session on
the broker ends, because the group's offsets may be reset after that.

Source: KIP-932.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.broker.config.offset_reset import BY_DURATION, EARLIEST, duration_ms
from tidelog.broker.coordinator.share_state.state import ShareState, StateKey, StateUpdate
from tidelog.broker.loop.deferred import Deferred, deferred_error, deferred_value, when_all
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Job, StepRunner, Steps
from tidelog.broker.metadata.image import is_view_of
from tidelog.broker.share.config import ShareConfig, ShareConfigs
from tidelog.broker.share.sessions import PartitionKey, SessionKey, ShareSessions
from tidelog.broker.share.share_partition import (
    UNINITIALIZED_OFFSET,
    AcknowledgementBatch,
    AcquiredRun,
    Change,
    SharePartition,
)
from tidelog.protocol.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    FencedStateEpochError,
    KafkaError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.coordinator.share_state.states import ShareStates
    from tidelog.broker.loop.timers import Timer
    from tidelog.broker.replica.partition import Partition
    from tidelog.broker.requests.context import RequestContext
    from tidelog.protocol.messages.share_fetch import AcquiredRecords

logger = logging.getLogger(__name__)

FENCED = (FencedLeaderEpochError, FencedStateEpochError)
"""Errors of the store that refuse a change: another leader has read the state, or the group was reset."""

READ_ELSEWHERE = (
    NotLeaderOrFollowerError,
    FencedLeaderEpochError,
    FencedStateEpochError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)
"""Errors of a read of the store that a share fetch reports as NOT_LEADER_OR_FOLLOWER, so that the client looks for the
leader again."""


class ServedPartition:
    """A share partition in memory, the replica and leader epoch for which it was loaded, and the timer of its locks."""

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
    """Share partitions that a broker serves, and the sessions and configurations of their groups."""

    def __init__(self, broker: Broker, store: Callable[[], ShareStates], steps: StepRunner) -> None:
        """``store()`` returns the store of the states of share partitions. ``steps`` releases the records of sessions
        that end."""
        self._broker = broker
        self._store = store
        self._steps = steps
        self.configs = ShareConfigs(broker)
        self.sessions = ShareSessions(broker.config.get_int("group.share.max.share.sessions"))
        self._served: dict[StateKey, ServedPartition] = {}
        self._releases: dict[SessionKey, Deferred[None]] = {}
        """Sessions that have ended and whose records are being released."""

    def config(self, group_id: str) -> ShareConfig:
        """Return the current configuration of a group."""
        return self.configs.of(group_id)

    # -- share partitions ---------------------------------------------------------------------------------------

    def when_open(self, key: StateKey) -> Deferred[None] | None:
        """Begin to load the state of a share partition in the store. Returns None if that is not needed."""
        if self.find(key) is not None:
            return None
        try:
            replica = self._broker.replica_manager.partition_by_id(key.topic_id, key.partition)
        except KafkaError:
            return None  # ``serve`` raises the same error
        return self._store().when_open(key, replica.leader_epoch) if replica.is_leader else None

    def find(self, key: StateKey) -> ServedPartition | None:
        """Return a share partition after ending its expired locks, or None if it is not in memory. If it was loaded in
        an earlier leader epoch, it is dropped."""
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
        """Return a share partition. If it is not in memory, its state is read from the store.

        Raises what ``ReplicaManager.partition_by_id`` raises. Raises KafkaStorageError, CorruptMessageError or
        InvalidRecordError if the start offset cannot be found in the log. Raises NotLeaderOrFollowerError if another
        broker leads the partition, or if the state cannot be read yet. Raises UnknownServerError if there is no state,
        or if reading it fails otherwise.
        """
        found = self.find(key)
        if found is not None:
            return found
        partition = self._broker.replica_manager.partition_by_id(key.topic_id, key.partition)
        partition.check_leader()
        try:
            state = self._store().read(key, partition.leader_epoch)
        except KafkaError as error:
            raise fetch_error_of(error) from error
        if state is None:
            raise UnknownServerError("Read operation on uninitialized share partition not allowed.")
        reset = self.config(key.group_id).auto_offset_reset
        start_offset = start_offset_of(state, reset, partition, self._broker.time.milliseconds())
        found = ServedPartition(key, SharePartition(start_offset, state.batches), partition, state.state_epoch)
        found.partition.log_start_moved(partition.log_start_offset)
        self._served[key] = found
        return found

    def forget_group(self, group_id: str) -> None:
        """Drop the share partitions of a group from memory; the store keeps their state."""
        self._forget(key for key in list(self._served) if key.group_id == group_id)

    def forget_topic(self, topic_id: bytes) -> Steps[None]:
        """Drop the share partitions of a deleted topic and of its virtual topics, ITEMS_PER_STEP in a step."""
        keys = iter(list(self._served))
        while part := list(islice(keys, ITEMS_PER_STEP)):
            self._forget(key for key in part if is_of(topic_id, self._served.get(key)))
            yield None

    def _forget(self, keys: Iterable[StateKey]) -> None:
        for key in keys:
            served = self._served.pop(key)
            if served.timer is not None:
                served.timer.cancel()
            self.wake(key)

    def wake(self, key: StateKey) -> None:
        """Have the purgatory retry the fetches that wait for this share partition."""
        self._broker.purgatory.touch(wake_key(key))

    # -- acknowledgement and release ----------------------------------------------------------------------------

    def acknowledge(self, key: StateKey, member_id: str, batches: Sequence[AcknowledgementBatch]) -> Deferred[None]:
        """Apply a member's acknowledgements, all or none. The Deferred completes when they are committed.

        Raises UnknownTopicOrPartitionError if the share partition is not in memory, what
        ``SharePartition.acknowledge`` raises, and the KafkaError of a store that refuses the change.
        """
        served = self.find(key)
        if served is None:
            raise UnknownTopicOrPartitionError
        now_ms = self._broker.time.monotonic_ms()
        limits = self.config(key.group_id).limits
        return self._write_and_apply(served, served.partition.acknowledge(member_id, batches, limits, now_ms))

    def take_back(self, session_key: SessionKey, partition: PartitionKey, runs: Iterable[AcquiredRecords]) -> None:
        """Undo the acquisitions of a response that is not sent: the records are available, with the delivery count that
        they had before."""
        served = self._served.get(StateKey(session_key.group_id, *partition))
        if served is not None and runs:
            acquired = [AcquiredRun(run.first_offset, run.last_offset, run.delivery_count) for run in runs]
            served.partition.take_back(session_key.member_id, acquired)
            self.wake(served.key)

    def release_session(self, session_key: SessionKey) -> Deferred[None]:
        """End a session, if there is one, and release the records of its member in steps. The Deferred completes when
        the release is committed, or could not be stored."""
        session = self.sessions.close(session_key)
        if session is None:
            return deferred_value(None)
        job = self._steps.run(self._end_session(session_key, session.partitions))
        return job.done if isinstance(job, Job) else deferred_value(None)

    def when_released(self, session_key: SessionKey) -> Deferred[None] | None:
        """Return a Deferred that completes once the records of the member's last session are released; None if they
        are. A new session must not begin earlier: its records would be released, too."""
        return self._releases.get(session_key)

    def _end_session(self, session_key: SessionKey, partitions: Iterable[PartitionKey]) -> Steps[None]:
        """Release the member's records in the partitions of its session, and wait until that is committed, or has
        failed."""
        released = self._releases[session_key] = Deferred()
        written: list[Deferred[None]] = []
        try:
            for topic_id, index in partitions:
                served = self._served.get(StateKey(session_key.group_id, topic_id, index))
                if served is not None:
                    change = served.partition.release(session_key.member_id, self.config(session_key.group_id).limits)
                    commit = self._write_and_apply_anyhow(served, change)
                    written += [] if commit.has_value else [commit]
                yield None
        finally:
            del self._releases[session_key]
            released.complete(None)
        is_last = not self.sessions.has_group(session_key.group_id)
        if is_last and self._broker.peers is not None:  # a coordinator on another broker does not report empty groups
            self.forget_group(session_key.group_id)
        yield when_all(written, None)

    def bind(self, context: RequestContext) -> None:
        """Have the sessions of a connection end when it closes."""

        def end_sessions() -> None:
            for session_key in self.sessions.of_connection(context):
                self.release_session(session_key)

        context.on_close = end_sessions

    def _write_and_apply(self, served: ServedPartition, change: Change) -> Deferred[None]:
        """Write a change, then apply it. The Deferred completes when it is committed. Raises KafkaError."""
        written = self._write(served, change) if change.needs_storing else deferred_value(None)
        served.partition.commit(change)
        self.watch(served)
        self.wake(served.key)
        return written

    def _write_and_apply_anyhow(self, served: ServedPartition, change: Change) -> Deferred[None]:
        """Write a change, and apply it even if that fails: no member holds these records any more."""
        written = deferred_value(None)
        if not change.needs_storing:
            return written
        try:
            written = self._write(served, change)
        except KafkaError as error:
            logger.warning(
                "share group %s: the release of records is not stored; they may be delivered again: %s",
                served.key.group_id,
                error,
            )
        served.partition.commit(change)
        self.watch(served)
        self.wake(served.key)
        return written

    def _write(self, served: ServedPartition, change: Change) -> Deferred[None]:
        """Write a change to the store. The Deferred completes when the change is committed. If the change is fenced, or
        the Deferred fails, the share partition is dropped from memory. Raises KafkaError.
        """
        written = StateUpdate(
            change.start_offset, change.delivery_complete_count, served.leader_epoch, change.batches, served.state_epoch
        )

        def forget_unstored(done: Deferred[None]) -> None:
            if not done.has_value and self._served.get(served.key) is served:
                self._forget([served.key])  # the next fetch reads the state from the store

        try:
            done = self._store().write(served.key, written)
        except FENCED as error:
            forget_unstored(deferred_error(error))
            raise
        if done.has_value:
            return done
        done.on_done(forget_unstored)
        answer: Deferred[None] = Deferred()  # a client that disconnects abandons this one, not the change
        done.pass_to(answer)
        return answer

    # -- locks --------------------------------------------------------------------------------------------------

    def watch(self, served: ServedPartition) -> None:
        """Set the timer for the expiry of the first lock, unless the timer that is set already fires early enough."""
        now_ms = self._broker.time.monotonic_ms()
        timer = served.timer
        if timer is not None:
            if timer.deadline_ms <= now_ms + self.config(served.key.group_id).limits.lock_duration_ms:
                return  # the timer fires before a lock that was granted just now expires
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
        self._write_and_apply_anyhow(served, served.partition.expire(limits, self._broker.time.monotonic_ms()))
        self.watch(served)


def fetch_error_of(error: KafkaError) -> KafkaError:
    """Translate an error of a read of the store into one that share consumers expect in a fetch: they raise
    IllegalStateException for other errors.

    Source: SharePartition.fetchPersisterError, ShareFetchCollector.handleInitializeErrors. Kafka answers errors of a
    coordinator with COORDINATOR_NOT_AVAILABLE, for which its own consumer raises that exception; here they are
    NOT_LEADER_OR_FOLLOWER.
    """
    if isinstance(error, UnknownTopicOrPartitionError):
        return error
    kind = NotLeaderOrFollowerError if isinstance(error, READ_ELSEWHERE) else UnknownServerError
    return kind(f"the state of the share partition cannot be read: {error}")


def is_of(topic_id: bytes, served: ServedPartition | None) -> bool:
    """Return whether a share partition is in memory, and of this topic or of one of its virtual topics."""
    if served is None or served.key.topic_id == topic_id:
        return served is not None
    return is_view_of(topic_id, served.replica.topic_partition.topic, served.key.topic_id)


def wake_key(key: StateKey) -> tuple[str, StateKey]:
    """Return the key under which fetches of a share partition wait."""
    return ("share", key)


def start_offset_of(state: ShareState, reset: str, partition: Partition, now_ms: float) -> int:
    """Return the group's start offset. If none is stored, ``share.auto.offset.reset`` (``reset``) decides."""
    if state.start_offset != UNINITIALIZED_OFFSET:
        return state.start_offset
    if reset == EARLIEST:
        return partition.log_start_offset
    if reset.startswith(BY_DURATION):
        back_ms = duration_ms(reset.removeprefix(BY_DURATION)) or 0
        limit = partition.high_watermark
        # Below 0 are special timestamps: no record is older than 1970.
        found = partition.offset_for(max(int(now_ms) - back_ms, 0), limit).offset
        return limit if found < 0 else found
    return partition.high_watermark
