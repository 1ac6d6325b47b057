"""One partition as this broker serves it: its log, its leader epoch, its replica set of one.

The high watermark is the log's; with one replica in the set it follows the log end at each append, unless the topic's
``flush.messages`` asks for durability first: then it moves when the sync is done, so that no consumer is shown a
record that a power loss could still take back (faults.md I2). ``append_records`` and all that moves the high watermark
or the last stable offset touches the purgatory, which wakes the fetches parked on this partition.

The log opens when it is first touched: ten thousand quiet partitions cost ten thousand names. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.replica.group_flush import NEVER, GroupFlush, InThread
from tidelog.broker.replica.index_proofs import IndexProofs
from tidelog.broker.replica.purgatory import Purgatory
from tidelog.log.fetch import FetchDataInfo, FetchIsolation
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.index_proof import UnprovenIndexError
from tidelog.log.records.work_budget import NO_BUDGET, WorkBudget
from tidelog.log.validation.validator import AppendOrigin, ValidationResult
from tidelog.protocol.errors import (
    FencedLeaderEpochError,
    NotEnoughReplicasError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from tidelog.log.unified_log import LogAppendInfo, UnifiedLog

_CLIENT = AppendOrigin.CLIENT
ALL_REPLICAS = -1
"""``acks=all`` of a produce request."""
NO_LEADER_EPOCH = -1
"""A client that sends this does not know the leader epoch: nothing to check."""


class Partition:
    """A partition led by this broker."""

    __slots__ = (
        "_flush",
        "_in_thread",
        "_log",
        "_open_log",
        "_proof",
        "_proofs",
        "_purgatory",
        "bytes_in",
        "is_internal",
        "isr",
        "leader_epoch",
        "node_id",
        "produce_responses",
        "replicas",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        *,
        node_id: int,
        is_internal: bool,
        leader_epoch: int = 0,
        purgatory: Purgatory,
        open_log: Callable[[], UnifiedLog],
        in_thread: InThread,
        proofs: IndexProofs,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.node_id = node_id
        self.is_internal = is_internal
        self.leader_epoch = leader_epoch
        self.replicas = self.isr = (node_id,)
        self._purgatory = purgatory
        self._open_log = open_log
        self._in_thread = in_thread
        self._proofs = proofs
        self._proof: Deferred[None] | None = None
        self._flush: GroupFlush | None = None
        self._log: UnifiedLog | None = None
        self.bytes_in = 0
        """Bytes of records that clients produced here since the start."""
        self.produce_responses: dict[int, tuple[bytes, bytes]] = {}
        """What the Produce handler keeps of its last response, by version."""

    @property
    def log(self) -> UnifiedLog:
        """The log, opened now if it was not yet. Raises KafkaStorageError.

        What recovery left is committed: with one replica in the set there is no follower to wait for.
        """
        log = self._log
        if log is None:
            log = self._log = self._open_log()
            log.update_high_watermark(log.log_end_offset)
        return log

    def delete(self) -> None:
        """Mark the topic as deleted: holders of this object must not open, and so make, a log of its name."""
        self._open_log = _no_log

    @property
    def opened_log(self) -> UnifiedLog | None:
        """The log if something has touched it already."""
        return self._log

    @property
    def high_watermark(self) -> int:
        """The offset up to which consumers may read."""
        return self.log.high_watermark

    def read(self, offset: int, max_bytes: int, *, isolation: FetchIsolation, min_one_message: bool) -> FetchDataInfo:
        """``UnifiedLog.read``; nothing while transaction indices that it needs are proven in a thread. Those who wait
        for this partition are tried again then."""
        try:
            return self.log.read(offset, max_bytes, isolation=isolation, min_one_message=min_one_message, prove=False)
        except UnprovenIndexError as unproven:
            self._prove(unproven)
            return FetchDataInfo(b"", offset, [])

    @property
    def proof(self) -> Deferred[None] | None:
        """The proof for which a read got nothing, while it runs."""
        return None if self._proof is None or self._proof.done else self._proof

    def _prove(self, unproven: UnprovenIndexError) -> None:
        """Begin the proof, if it is not under way. Raises what the last one ended with."""
        ended = self._proof
        if ended is not None and ended.done:
            self._proof = None
            ended.result()
        if self._proof is None:
            self._proof = self._proofs.run(unproven.prove)
            self._proof.on_done(lambda _: self.offsets_moved())

    def validation(self, records: memoryview, budget: WorkBudget) -> Callable[[], ValidationResult]:
        """The validation of a client's ``records``, to be called in a thread. Raises KafkaStorageError."""
        return partial(self.log.validate, records, leader_epoch=self.leader_epoch, budget=budget)

    def append_records(
        self,
        records: memoryview,
        required_acks: int = -1,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        budget: WorkBudget = NO_BUDGET,
        validated: ValidationResult | None = None,
    ) -> LogAppendInfo:
        """Append as the leader, move the high watermark, wake who waits. ``validated`` is what ``validation`` gave.

        Raises what ``UnifiedLog.append_as_leader`` raises, NotEnoughReplicasError.
        """
        log = self._log
        if log is None:
            log = self.log
        if not log.config.acknowledges_at_once and required_acks == ALL_REPLICAS and origin is AppendOrigin.CLIENT:
            self.check_in_sync_replicas(log.config.min_insync_replicas)
        info = log.append_as_leader(records, self.leader_epoch, origin, budget, validated)
        if log.config.flush_messages != NEVER or self._flush is not None:
            self._group_flush(log).appended()
            return info
        log.update_high_watermark(log.log_end_offset)
        self._purgatory.touch(self)
        return info

    def append_at_once(self, records: memoryview, budget: WorkBudget) -> LogAppendInfo | None:
        """``append_records`` where a client's records are acknowledged at once, waiting for no disk, and whatever
        replicas are in sync; None, and nothing is done, where that is not so or the log is closed or offline.

        Raises what ``UnifiedLog.append_as_leader`` raises.
        """
        log = self._log
        if log is None or self._flush is not None or not log.config.acknowledges_at_once or not log.is_serving:
            return None
        info = log.append_as_leader(records, self.leader_epoch, _CLIENT, budget, None)
        log.update_high_watermark(log.log_end_offset)
        self._purgatory.touch(self)
        return info

    def when_durable(self, offset: int) -> Deferred[None]:
        """Settles when the record at ``offset`` is as safe as ``flush.messages`` asks: then it may be acknowledged.

        Fails with KafkaStorageError. Only for an offset at or above the high watermark.
        """
        return self._group_flush(self.log).when_durable(offset)

    def check_in_sync_replicas(self, least: int) -> None:
        """Raises NotEnoughReplicasError when fewer than ``least`` replicas would have a record."""
        if len(self.isr) < least:
            raise NotEnoughReplicasError(
                f"The size of the current ISR : {len(self.isr)} is insufficient to satisfy the min.isr requirement of "
                f"{least} for partition {self.topic_partition}"
            )

    def _group_flush(self, log: UnifiedLog) -> GroupFlush:
        flush = self._flush
        if flush is None:
            flush = self._flush = GroupFlush(log, self._in_thread, self.offsets_moved)
        return flush

    def offsets_moved(self) -> None:
        """The high watermark or the last stable offset moved without an append of this partition's own."""
        self._purgatory.touch(self)

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Compare what a client believes with what is (KIP-320).

        Raises FencedLeaderEpochError when the client's metadata is old, UnknownLeaderEpochError when ours is.
        """
        if current_leader_epoch in (NO_LEADER_EPOCH, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise FencedLeaderEpochError
        raise UnknownLeaderEpochError

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch up to ``leader_epoch``, (-1, -1) when nothing is known (KIP-279)."""
        log = self.log
        if leader_epoch == self.leader_epoch:
            return leader_epoch, log.log_end_offset
        return log.leader_epochs.end_offset_for(leader_epoch, log.log_end_offset)


def _no_log() -> UnifiedLog:
    """Raises UnknownTopicOrPartitionError: the partition was deleted."""
    raise UnknownTopicOrPartitionError
