"""Partition of which this broker has a replica: leadership, replicas, appends, reads and offsets of its log.

Clients' appends, reads and look-ups of offsets go through here, so that leadership and the high watermark are checked
in one place. Outside of this package only ``broker.find`` takes a partition's log (``local_log``), to index and search
it. Leader, epoch, replicas and ISR are those of the metadata image; a leader may know a newer ISR by the controller's
answer to its proposal.

The log keeps the high watermark. With one replica it moves to the log end at each append, unless the topic has
``flush.messages``. Then it may have to wait for a sync (``group_flush``): with ``flush.messages=1`` no consumer sees a
record that a power loss could take (faults.md I2). ``append_records``, and everything else that moves the high
watermark or the last stable offset, touches the purgatory, which wakes the fetches parked on this partition.

The log of a lone node is opened when it is first used: ten thousand quiet partitions cost only ten thousand names. A
member of a cluster opens its logs at the start. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.loop.deferred import Deferred, deferred_error, deferred_value
from tidelog.broker.replica.group_flush import NEVER, GroupFlush, InThread
from tidelog.broker.replica.index_proofs import IndexProofs
from tidelog.broker.replica.offset_waits import OffsetWaits
from tidelog.broker.replica.offsets import FoundOffset, OffsetSnapshot, find_offset, offsets_of, segment_offsets
from tidelog.broker.replica.purgatory import Purgatory
from tidelog.log.fetch import FetchDataInfo, FetchIsolation
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.index_proof import UnprovenIndexError
from tidelog.log.producer.state import producers_in_parts
from tidelog.log.records.work_budget import NO_BUDGET, TooMuchForTurnError, WorkBudget
from tidelog.log.validation.params import AppendOrigin
from tidelog.log.validation.result import ValidationResult
from tidelog.protocol.errors import (
    FencedLeaderEpochError,
    KafkaError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from tidelog.broker.metadata.metadata_image import PartitionState
    from tidelog.broker.replica.fetching.fetch_cursor import FetchCursor
    from tidelog.broker.replica.replication.leading import Leading
    from tidelog.broker.replica.replication.roles import Roles
    from tidelog.log.config import LogConfig
    from tidelog.log.producer.state import ProducerEntry
    from tidelog.log.unified_log import LogAppendInfo, UnifiedLog

ALL_REPLICAS = -1
"""``acks=all`` of a produce request."""
NO_LEADER_EPOCH = -1
"""Leader epoch of a client that knows none: it is not checked."""

HIGH_WATERMARK = -1
"""The offset of DeleteRecords that means all committed records."""


class PassedOver(NamedTuple):
    """Range of offsets, from ``first`` to below ``end``, in which clients of old formats found no messages in a leader
    epoch. A log is not truncated within its leader's epoch, so nothing comes into the range."""

    leader_epoch: int
    first: int
    end: int


class LogMetrics(NamedTuple):
    """Size and offsets of a log that is open."""

    size: int
    numlogsegments: int
    logstartoffset: int
    logendoffset: int


class Partition:
    """A partition of which this broker has a replica."""

    __slots__ = (
        "_commits",
        "_cursor",
        "_flush",
        "_in_thread",
        "_is_unopened",
        "_log",
        "_open_log",
        "_opening",
        "_proof",
        "_proofs",
        "_purgatory",
        "_roles",
        "bytes_in",
        "is_internal",
        "is_leader",
        "isr",
        "leader",
        "leader_epoch",
        "leading",
        "node_id",
        "passed_over",
        "replicas",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        state: PartitionState,
        *,
        node_id: int,
        is_internal: bool,
        purgatory: Purgatory,
        open_log: Callable[[], UnifiedLog],
        is_unopened: Callable[[], bool],
        in_thread: InThread,
        proofs: IndexProofs,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.node_id = node_id
        self.is_internal = is_internal
        self._commits = OffsetWaits()
        self._purgatory = purgatory
        self._open_log = open_log
        self._is_unopened = is_unopened
        self._opening: Deferred[None] | None = None
        self._in_thread = in_thread
        self._proofs = proofs
        self._proof: Deferred[None] | None = None
        self._flush: GroupFlush | None = None
        self._log: UnifiedLog | None = None
        self._cursor: FetchCursor | None = None
        self.bytes_in = 0
        """Bytes of records that clients produced here since the broker started."""
        self.passed_over: tuple[PassedOver, ...] = ()
        """Ranges of this kind that clients found last, in the present leader epoch or an earlier one. Any thread."""
        self._roles: Roles | None = None
        self.leading: Leading | None = None
        """The leader's state, if this broker leads and there are followers."""
        self.take_over(state)

    # ---- leadership

    def join(self, roles: Roles, state: PartitionState) -> None:
        """Let ``roles`` give this partition its roles from now on, as it may have several replicas."""
        self._roles = roles
        self.take_over(state)

    def take_over(self, state: PartitionState) -> None:
        """Take over leader, epoch, replicas and ISR from the metadata image."""
        self.replicas, self.isr, self.leader, self.leader_epoch = state[:4]
        self.is_leader = self.leader == self.node_id
        if self._roles is not None:
            self._roles.set_role(self, state)
        if not self.is_leader:
            self._commits.fail(NotLeaderOrFollowerError())

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH, *, by_follower: bool = False) -> None:
        """Check that this broker leads the partition, in the leader epoch that the client knows (KIP-320). With
        ``by_follower`` this broker may be a follower, whose log the client reads (KIP-392).

        Raises FencedLeaderEpochError when the client's metadata is old, UnknownLeaderEpochError when this broker's is,
        NotLeaderOrFollowerError when another broker leads, unless ``by_follower``. As in Kafka the epoch is checked
        first.
        """
        if current_leader_epoch not in (NO_LEADER_EPOCH, self.leader_epoch):
            raise FencedLeaderEpochError if current_leader_epoch < self.leader_epoch else UnknownLeaderEpochError
        if not (self.is_leader or by_follower):
            raise NotLeaderOrFollowerError

    # ---- the log

    @property
    def local_log(self) -> UnifiedLog:
        """The log of this broker's replica, opened now if it was not. Raises KafkaStorageError,
        InconsistentTopicIdError, and UnknownTopicOrPartitionError after ``delete``. A method that may raise
        KafkaStorageError may raise the others if it opens the log.

        For this package and ``broker.find``, which work on a replica's files whichever broker leads. With one replica
        all recovered records are committed: there is no follower to wait for. With several the high watermark begins at
        its checkpoint.
        """
        log = self._log
        if log is None:
            log = self._log = self._open_log()
            if len(self.replicas) == 1:
                log.update_high_watermark(log.log_end_offset)
        return log

    def open(self) -> None:
        """Open or create the log now, in this thread. Raises what ``local_log`` raises."""
        _ = self.local_log

    @property
    def is_unopened(self) -> bool:
        """True if ``local_log`` would open or create the log now."""
        return self._log is None and self._is_unopened()

    def open_files(self) -> None:
        """Open or create the log; ``local_log`` returns it then at once. Any thread. Raises what ``local_log``
        raises."""
        self._open_log()

    def when_open(self) -> Deferred[None] | None:
        """Open or create the log in a thread, unless it is open: each segment takes 0.1 ms of CPU, and the disk's time.
        Once the Deferred settles, ``local_log`` returns the log or raises the error. Returns None if there is nothing
        to wait for."""
        if not self.is_unopened:
            return None
        if self._opening is None or self._opening.done:
            self._opening = self._in_thread(self.open_files)
        return self._opening

    def delete(self) -> None:
        """Mark the partition as deleted: holders of this object must not open, and so create, a log of its name. Waits
        for the high watermark fail.
        """
        self._open_log, self._is_unopened = _refuse_to_open, _is_never_unopened
        if self._roles is not None:
            self._roles.drop(self)
        self._commits.fail(UnknownTopicOrPartitionError())

    def is_wanted(self) -> bool:
        """Return whether a log may be created: the partition is not deleted here. Any thread."""
        return self._open_log is not _refuse_to_open

    @property
    def directory(self) -> str:
        """The directory of the partition's files. Raises KafkaStorageError."""
        return self.local_log.directory

    @property
    def config(self) -> LogConfig:
        """The log's configuration, with the topic's values. Any thread, once the log is open. Raises
        KafkaStorageError."""
        log = self._log
        return (self.local_log if log is None else log).config

    def update_config(self, config: LogConfig) -> None:
        """Give the log its new configuration, if it is open; a closed one reads it when it opens."""
        if self._log is not None:
            self._log.update_config(config)
        if self.leading is not None:
            self.leading.take_min_isr(config.min_insync_replicas)

    def log_metrics(self) -> LogMetrics | None:
        """Return size and offsets of the log, or None if it is not open; do not open it. Any thread."""
        log = self._log
        if log is None:
            return None
        return LogMetrics(log.size_bytes, len(log.segments), log.log_start_offset, log.log_end_offset)

    def active_producers(self, count: int) -> Iterator[list[ProducerEntry]]:
        """Yield the active producers in lists of ``count`` at most: see ``producers_in_parts``.

        Raises NotLeaderOrFollowerError, KafkaStorageError.
        """
        self.check_leader()
        return producers_in_parts(self.local_log.producer_state, count)

    # ---- append

    def validation(self, records: memoryview, budget: WorkBudget) -> Callable[[], ValidationResult]:
        """Prepare the validation of a client's ``records``, to be called in a thread. Raises KafkaStorageError."""
        return partial(self.local_log.validate, records, leader_epoch=self.leader_epoch, budget=budget)

    def append_records(
        self,
        records: memoryview,
        required_acks: int = -1,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        budget: WorkBudget = NO_BUDGET,
        validated: ValidationResult | None = None,
        transaction_version: int = 0,
    ) -> LogAppendInfo:
        """Append as the leader, and wake waiting fetches. The high watermark moves at once only if no sync and no other
        replica has to be waited for. ``validated`` is the result of ``validation``, ``transaction_version`` that of a
        marker's transaction.

        Raises what ``UnifiedLog.append_as_leader`` raises, NotLeaderOrFollowerError, NotEnoughReplicasError;
        TooMuchForTurnError if a thread has to open the log first.
        """
        log = self._log
        if log is None:
            if budget.in_turn and self.when_open() is not None:
                raise TooMuchForTurnError
            log = self.local_log
        if not self.is_leader:
            raise NotLeaderOrFollowerError
        leading = self.leading
        config = log.config
        if required_acks == ALL_REPLICAS and not config.acknowledges_at_once:
            if leading is not None:
                leading.check_in_sync_replicas()
            elif origin is AppendOrigin.CLIENT:
                self.check_in_sync_replicas(config.min_insync_replicas)
        is_synced = config.flush_messages != NEVER or self._flush is not None
        is_committed = leading is None and not is_synced  # this is the only replica, and no sync is configured
        info = log.append_as_leader(
            records, self.leader_epoch, origin, budget, validated, is_committed, transaction_version
        )
        if is_committed:
            self._purgatory.touch(self)
        elif not is_synced:
            assert leading is not None
            leading.note_append(log.log_end_offset)
        else:
            if leading is not None:
                leading.note_unsynced(log.log_end_offset)
            self._group_flush(log).commit_or_sync()
        return info

    def when_committed(self, offset: int) -> Deferred[None]:
        """Return a Deferred that settles once the high watermark has passed ``offset``: then the record there may be
        acknowledged and read.

        Fails with KafkaStorageError when a sync fails, with NotLeaderOrFollowerError when this broker no longer leads,
        with UnknownTopicOrPartitionError when the partition is deleted.
        """
        log = self.local_log
        if offset < log.high_watermark:
            return deferred_value(None)
        if not self.is_leader:
            return deferred_error(NotLeaderOrFollowerError())
        wait = self._commits.wait(offset)
        if self.leading is None or self._flush is not None:
            self._group_flush(log).commit_or_sync()  # after a failed sync none is under way
        return wait

    def when_acknowledged(self, offset: int, acks: int, timeout_ms: float) -> Deferred[None] | None:
        """Return a Deferred that settles when a produce request may be answered; None when it may be now. Its last
        record is at ``offset``, at or above the high watermark. Fails as ``when_committed``, and also if too few
        replicas are in sync or the timeout is over.
        """
        if self.leading is None:
            return self.when_committed(offset)
        return self.leading.when_acknowledged(offset, acks, timeout_ms)

    def commit_all(self) -> None:
        """Move the high watermark to the log's end, after the sync if one is configured: no other replica is left."""
        log = self._log
        if log is None or log.high_watermark == log.log_end_offset:
            return
        if self._needs_syncs(log):
            self._group_flush(log).commit_or_sync()
        else:
            self.advance(log.log_end_offset)

    def begin_commits(self, leading: Leading) -> None:
        """Let the high watermark move over this replica's records in a new leader epoch, after the sync if one is
        configured."""
        self.leading = leading
        log = self.local_log
        if self._needs_syncs(log) and log.recovery_point < log.log_end_offset:
            leading.note_synced(log.high_watermark)  # records above it may wait for the sync of the epoch before
            self._group_flush(log).commit_or_sync()
        else:
            leading.note_append(log.log_end_offset)

    def _needs_syncs(self, log: UnifiedLog) -> bool:
        return log.config.flush_messages != NEVER or self._flush is not None

    def _note_synced(self, offset: int) -> None:
        """Note that this replica is synced up to ``offset``, so that its leader may commit records. If another broker
        leads by now, nothing is done here."""
        if self.leading is not None:
            self.leading.note_synced(offset)
        elif self.is_leader:
            self.advance(offset)

    def _fail_unsynced(self, error: KafkaError) -> None:
        """Fail all waits for this replica's sync, and for the high watermark."""
        self._commits.fail(error)
        if self.leading is not None:
            self.leading.fail_syncs(error)

    def advance(self, offset: int) -> None:
        """Move the high watermark to ``offset``, and settle the waits for it."""
        self.local_log.update_high_watermark(offset)
        self._purgatory.touch(self)
        self._commits.advance(self.local_log.high_watermark)

    def check_in_sync_replicas(self, min_isr: int) -> None:
        """Raise NotEnoughReplicasError if the ISR has fewer than ``min_isr`` replicas."""
        if len(self.isr) < min_isr:
            raise NotEnoughReplicasError(
                f"The size of the current ISR : {len(self.isr)} is insufficient to satisfy the min.isr requirement of "
                f"{min_isr} for partition {self.topic_partition}"
            )

    def _group_flush(self, log: UnifiedLog) -> GroupFlush:
        flush = self._flush
        if flush is None:
            flush = self._flush = GroupFlush(log, self._in_thread, self._note_synced, self._fail_unsynced)
        return flush

    def offsets_moved(self) -> None:
        """Wake the fetches that wait for this partition: one of its offsets moved, or a proof ended."""
        self._purgatory.touch(self)

    # ---- offsets and reads

    @property
    def high_watermark(self) -> int:
        """The offset up to which consumers may read."""
        log = self._log  # saves a call for each produced batch
        return (self.local_log if log is None else log).high_watermark

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self.local_log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.local_log.log_end_offset

    def offsets(self, current_leader_epoch: int = NO_LEADER_EPOCH, *, by_follower: bool = False) -> OffsetSnapshot:
        """Return all offsets at this moment; with ``by_follower`` also if another broker leads (KIP-392). Raises as
        ``check_leader``, and KafkaStorageError."""
        if current_leader_epoch != NO_LEADER_EPOCH or not self.is_leader:
            self.check_leader(current_leader_epoch, by_follower=by_follower)
        log = self._log
        return offsets_of(self.local_log if log is None else log)

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: FetchIsolation,
        min_one_message: bool,
        by_follower: bool = False,
    ) -> FetchDataInfo:
        """Read as ``UnifiedLog.read`` does; return no records while a thread proves transaction indices that it needs.
        When the proof ends, fetches that wait for this partition are tried again. Also raises NotLeaderOrFollowerError,
        and the error of a proof that failed: once, as the next read begins another proof.
        """
        if not (self.is_leader or by_follower):
            raise NotLeaderOrFollowerError
        cursor = self._cursor
        if cursor is None:
            from tidelog.broker.replica.fetching.fetch_cursor import FetchCursor  # idle brokers need none

            cursor = self._cursor = FetchCursor(self.local_log)
        try:
            return cursor.read(offset, max_bytes, isolation, min_one_message)
        except UnprovenIndexError as unproven:
            self._prove(unproven)
            return FetchDataInfo(b"", offset, [])

    def read_in_thread(
        self, offset: int, max_bytes: int, *, isolation: FetchIsolation, min_one_message: bool
    ) -> FetchDataInfo:
        """Read as ``UnifiedLog.read`` does, which proves transaction indices itself.

        In a worker thread, once the log is open.
        """
        log = self._log
        assert log is not None, "the loop opens a log before a thread reads it"
        return log.read(offset, max_bytes, isolation=isolation, min_one_message=min_one_message)

    @property
    def proof(self) -> Deferred[None] | None:
        """The running proof that reads of this partition wait for; None if there is none."""
        return None if self._proof is None or self._proof.done else self._proof

    def _prove(self, unproven: UnprovenIndexError) -> None:
        """Begin the proof, unless one is under way. Raises the error of the last one."""
        ended = self._proof
        if ended is not None and ended.done:
            self._proof = None
            ended.result()
        if self._proof is None:
            self._proof = self._proofs.run(unproven.prove)
            self._proof.on_done(lambda _: self.offsets_moved())

    @property
    def is_settling(self) -> bool:
        """True until a new leader's high watermark reaches the start of its leader epoch (KIP-207)."""
        return self.leading is not None and self.leading.leader_state.is_settling

    def offset_for(self, timestamp: int, limit: int) -> FoundOffset:
        """Return the first offset below ``limit`` whose timestamp is ``timestamp`` or later (ListOffsets from v1 on).

        Raises NotLeaderOrFollowerError and what ``find_offset`` raises.
        """
        self.check_leader()
        return find_offset(self.local_log, timestamp, limit, self.leader_epoch)

    @property
    def is_open(self) -> bool:
        """True when the log is open."""
        return self._log is not None

    def segment_offsets_for(self, timestamp: int, count: int) -> list[int]:
        """Return segment starts, newest first (ListOffsets v0). Raises NotLeaderOrFollowerError, KafkaStorageError."""
        self.check_leader()
        return segment_offsets(self.local_log, timestamp, count)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return an epoch and its end offset in this log, by which a client finds where its log diverges (KIP-279).

        The present epoch ends at the log's end, also without a record. For another one the answer is that of
        ``LeaderEpochCache.end_offset_for``.
        """
        log = self.local_log
        if leader_epoch == self.leader_epoch:
            return leader_epoch, log.log_end_offset
        return log.leader_epochs.end_offset_for(leader_epoch, log.log_end_offset)

    def divergence(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Return (epoch, end offset) where a client's log diverges from this one; None if they agree up to its fetch
        offset (KIP-595).

        Raises OffsetOutOfRangeError if the client's last epoch is later than all of this log, or this log has none.
        """
        log = self.local_log
        epoch, end_offset = log.leader_epochs.end_offset_for(last_fetched_epoch, log.log_end_offset)
        if epoch == NO_LEADER_EPOCH:
            raise OffsetOutOfRangeError
        return (epoch, end_offset) if epoch < last_fetched_epoch or end_offset < fetch_offset else None

    def delete_records(self, before: int) -> int:
        """Move the log start to ``before``, -1 for the high watermark; return the new log start.

        Raises NotLeaderOrFollowerError, PolicyViolationError, OffsetOutOfRangeError, KafkaStorageError.
        """
        self.check_leader()
        log = self.local_log
        if not log.config.delete:
            topic = self.topic_partition.topic
            raise PolicyViolationError(f"Records of {topic} can not be deleted: its cleanup.policy is compact only")
        target = log.high_watermark if before == HIGH_WATERMARK else before
        if target < 0 or target > log.high_watermark:
            raise OffsetOutOfRangeError(f"offset {target} is not between 0 and the high watermark {log.high_watermark}")
        self.move_log_start(target)
        return log.log_start_offset

    def move_log_start(self, offset: int) -> None:
        """Move the log start to ``offset``, whatever the topic's cleanup policy. Raises OffsetOutOfRangeError,
        KafkaStorageError."""
        self.local_log.maybe_increment_log_start_offset(offset)
        if self.leading is not None:
            self.leading.rests.end_all()
        self.offsets_moved()


def _is_never_unopened() -> bool:
    """Return False: the log of a deleted partition is not opened."""
    return False


def _refuse_to_open() -> UnifiedLog:
    """Raise UnknownTopicOrPartitionError: the partition was deleted."""
    raise UnknownTopicOrPartitionError
