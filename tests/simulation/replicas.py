"""One replica of a partition in a simulated broker: a real log, led or followed by the real cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.simulation.settings import Settings
from tests.support.logs import read_bytes
from tidelog.broker.cluster.fetching.work import LogPosition, Work
from tidelog.broker.cluster.partition_state import Brokers, LeaderState
from tidelog.broker.metadata.metadata_image import PartitionState
from tidelog.broker.replica.replication.following import Following
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import (
    FencedLeaderEpochError,
    KafkaError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
)
from tidelog.protocol.messages.fetch import EpochEndOffset, FetchPartition, PartitionData, ReplicaState
from tidelog.protocol.record.record_batch import Record, build_batch, iter_batches

Settled = Callable[[KafkaError | None], object]


class Entry(NamedTuple):
    """A record of a replica: the leader epoch it was written in, and its value."""

    epoch: int
    value: bytes


class Replica:
    """A log and this broker's role in its partition."""

    def __init__(self, node_id: int, log: UnifiedLog, settings: Settings, on_cut: Callable[[], object]) -> None:
        """``on_cut`` is called after each truncation, before the next append."""
        self.log = log
        self.following = Following(log, on_cut)
        self.state = PartitionState((), (), leader_epoch=-1, partition_epoch=-1)
        self.leader: LeaderState | None = None
        self.entries: list[Entry] = []
        """The records of the log, as they were read last."""
        self._node_id = node_id
        self._settings = settings
        self._version = -1
        self._waiting: list[tuple[int, Settled]] = []
        self.refresh()

    def refresh(self) -> bool:
        """Read what is new in the log; return whether anything is."""
        end, version = self.log.log_end_offset, self.log.version
        if version != self._version:
            self.entries.clear()
            self._version = version
        if end == len(self.entries):
            return False
        while len(self.entries) < end:
            for batch in iter_batches(read_bytes(self.log, len(self.entries))):
                epoch = batch.partition_leader_epoch
                self.entries += [Entry(epoch, record.value or b"") for record in batch.records()]
        return True

    # ---- roles

    def take(self, state: PartitionState, brokers: Brokers, now_ms: float) -> None:
        """Take the role that an image gives."""
        if (state.leader_epoch, state.partition_epoch) < (self.state.leader_epoch, self.state.partition_epoch):
            return
        is_new_epoch = state.leader_epoch > self.state.leader_epoch
        self.state = state
        if state.leader != self._node_id:
            self.leader = None
            self._fail(NotLeaderOrFollowerError())
        elif self.leader is None or is_new_epoch:
            self._fail(NotLeaderOrFollowerError())
            self.lead(brokers, now_ms)
        elif self.leader.take_image(state, brokers, now_ms):
            self.advance()

    def lead(self, brokers: Brokers, now_ms: float) -> None:
        """Begin to lead, in the image's leader epoch."""
        log, state = self.log, self.state
        log.leader_epochs.assign(state.leader_epoch, log.log_end_offset)
        end, watermark = log.log_end_offset, log.high_watermark
        lag_ms, min_isr = self._settings.lag_ms, self._settings.min_isr
        self.leader = LeaderState(self._node_id, state, end, watermark, now_ms, lag_ms, min_isr, brokers)
        if self.leader.note_append(end, now_ms):
            self.advance()

    def advance(self) -> None:
        """The core moved the high watermark: so does the log, and who waits for it is answered."""
        assert self.leader is not None
        self.log.update_high_watermark(self.leader.high_watermark)
        waiting, self._waiting = self._waiting, []
        for offset, settled in waiting:
            if offset < self.log.high_watermark:
                settled(NotEnoughReplicasAfterAppendError() if self.leader.is_under_min_isr else None)
            else:
                self._waiting.append((offset, settled))

    def _fail(self, error: KafkaError) -> None:
        waiting, self._waiting = self._waiting, []
        for _, settled in waiting:
            settled(error)

    # ---- clients

    def append(self, value: bytes, now_ms: float) -> int:
        """Append a record as the leader; return its offset. Raises NotLeaderOrFollowerError, NotEnoughReplicasError."""
        if self.leader is None:
            raise NotLeaderOrFollowerError
        if self.leader.is_under_min_isr:
            raise NotEnoughReplicasError
        records = build_batch([Record(0, 1_700_000_000_000, None, value)])
        offset = self.log.append_as_leader(memoryview(records), self.state.leader_epoch).first_offset
        if self.leader.note_append(self.log.log_end_offset, now_ms):
            self.advance()
        return offset

    def when_committed(self, offset: int, settled: Settled) -> None:
        """Have ``settled`` called once the high watermark has passed ``offset``, or cannot any more."""
        self._waiting.append((offset, settled))
        if self.leader is not None:
            self.advance()

    # ---- followers of this leader

    def answer(self, asked: FetchPartition, follower: ReplicaState, now_ms: float, *, is_new: bool) -> PartitionData:
        """Answer a follower's fetch; only a new one, not one that has waited, tells where the follower is."""
        try:
            return self._read(asked, follower, now_ms, is_new=is_new)
        except KafkaError as error:
            return PartitionData(partition_index=asked.partition, error_code=error.code, records=b"")

    def _read(self, asked: FetchPartition, follower: ReplicaState, now_ms: float, *, is_new: bool) -> PartitionData:
        leader, log = self._leader_in(asked.current_leader_epoch), self.log
        answer = PartitionData(partition_index=asked.partition, records=b"")
        answer.log_start_offset = log.log_start_offset
        end = log.log_end_offset
        diverging = self._divergence(asked)
        if diverging is not None:
            answer.diverging_epoch = diverging
        elif asked.fetch_offset > end:
            raise OffsetOutOfRangeError
        else:
            answer.records = read_bytes(log, asked.fetch_offset)
            who = follower.replica_id, follower.replica_epoch
            if is_new and leader.note_fetch(*who, asked.fetch_offset, asked.log_start_offset, end, now_ms):
                self.advance()
        answer.high_watermark = log.high_watermark
        return answer

    def _leader_in(self, leader_epoch: int) -> LeaderState:
        if leader_epoch < self.state.leader_epoch:
            raise FencedLeaderEpochError
        if leader_epoch > self.state.leader_epoch:
            raise UnknownLeaderEpochError
        if self.leader is None:
            raise NotLeaderOrFollowerError
        return self.leader

    def _divergence(self, asked: FetchPartition) -> EpochEndOffset | None:
        if asked.last_fetched_epoch < 0:
            return None
        end = self.log.log_end_offset
        epoch, end_offset = self.log.leader_epochs.end_offset_for(asked.last_fetched_epoch, end)
        if epoch < 0:
            raise OffsetOutOfRangeError
        if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
            return EpochEndOffset(epoch=epoch, end_offset=end_offset)
        return None

    # ---- following

    def position(self) -> LogPosition:
        """Return the ends of the log."""
        return self.following.position

    def follow(self, work: Work) -> None:
        """Do what a leader's answer asks for, unless the leader is another one meanwhile."""
        if work.leader_epoch != self.state.leader_epoch or self.leader is not None:
            return
        self.following.do(work)
