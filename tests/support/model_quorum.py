"""A model of a metadata quorum for tests of observers: elections, stale leaders, divergence, snapshots, nodes down.

``answer`` follows the checks of KafkaRaftClient.handleFetchRequest and handleFetchSnapshotRequest of Kafka 4.3.
``committed`` has all committed batches, which no election removes, for comparison with an observer's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.broker.cluster.quorum import Address
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE, MetadataImage
from tidelog.broker.metadata.replay import MetadataReplay, SnapshotId
from tidelog.broker.metadata.snapshot import build_metadata_batch, build_snapshot
from tidelog.protocol.messages import fetch, fetch_snapshot
from tidelog.protocol.metadata_records.control_records import (
    BatchStart,
    LeaderChangeMessage,
    build_control_batch,
)
from tidelog.protocol.record.record_batch import RecordBatch
from tidelog.protocol.schema.fields import Message

NOT_LEADER, FENCED_EPOCH, UNKNOWN_EPOCH, SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE = 6, 74, 75, 98, 99


class UnreachableError(Exception):
    """The node to which a request was sent is down."""


class Snapshot(NamedTuple):
    """A snapshot's name and bytes."""

    snapshot_id: SnapshotId
    data: bytes


@dataclass
class LeaderLog:
    """The state of one leader: its epoch, its log from ``start`` on, its high watermark (-1: not known yet)."""

    leader: int
    epoch: int
    batches: list[RecordBatch]
    high_watermark: int = -1
    start: int = 0
    snapshot: Snapshot | None = None
    earlier_epochs: dict[int, int] = field(default_factory=dict)
    """End offsets of the epochs below ``start``."""
    clock_ms: int = 1000
    """The time of a batch at offset 0; each offset is a millisecond later."""

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.start

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the last epoch up to ``epoch``, and its end offset."""
        ends = dict(self.earlier_epochs)
        for batch in self.batches:
            ends[batch.partition_leader_epoch] = batch.next_offset
        known = [one for one in ends if one <= epoch]
        return (max(known), ends[max(known)]) if known else (0, 0)

    def needs_snapshot(self, offset: int, epoch: int) -> bool:
        """Return whether an observer at this offset and epoch needs the snapshot, which exists.

        The rule is that of RaftLog.validateOffsetAndEpoch; an observer with an empty log needs the snapshot, too.
        """
        assert self.snapshot is not None
        of_snapshot = self.snapshot.snapshot_id.epoch
        at_start = offset == self.start and epoch != of_snapshot
        return offset == 0 or offset < self.start or at_start or epoch < of_snapshot

    def append(self, *records: Message) -> None:
        listed = [VersionedRecord(record) for record in records]
        self._add(build_metadata_batch(listed, BatchStart(self.end, self.epoch, self.clock_ms + self.end)))

    def append_leader_change(self) -> None:
        change = LeaderChangeMessage(version=1, leader_id=self.leader)
        self._add(build_control_batch(change, BatchStart(self.end, self.epoch, self.clock_ms + self.end)))

    def _add(self, data: bytearray) -> None:
        self.batches.append(RecordBatch(bytes(data)))


class ModelQuorum:
    """Nodes 1 to ``size``: the log of the current leader, and logs of former leaders that do not know the new one."""

    def __init__(self, size: int = 3) -> None:
        self.addresses = {node: Address(f"controller-{node}", 9090 + node) for node in range(1, size + 1)}
        self.down: set[int] = set()
        self.committed: list[RecordBatch] = []
        self.stale: dict[int, LeaderLog] = {}
        self.reign = LeaderLog(1, 1, [])
        self.reign.append_leader_change()
        self.commit()

    def commit(self, count: int | None = None) -> None:
        """Commit the first ``count`` uncommitted batches, or all."""
        waiting = [batch for batch in self.reign.batches if batch.base_offset >= self._committed_end()]
        self.committed += waiting[:count]
        if self._committed_end() > self.reign.high_watermark:
            last = self.committed[-1]
            if last.partition_leader_epoch == self.reign.epoch:  # a leader commits from its own epoch's records on
                self.reign.high_watermark = last.next_offset

    def _committed_end(self) -> int:
        return self.committed[-1].next_offset if self.committed else 0

    def elect(self, leader: int, *, kept: int = 0, old_leader_knows: bool = True) -> None:
        """Elect ``leader``, whose log has the committed batches and ``kept`` uncommitted ones."""
        old = self.reign
        committed_end = self._committed_end()
        uncommitted = [batch for batch in old.batches if batch.base_offset >= committed_end]
        batches = [batch for batch in old.batches if batch.base_offset < committed_end] + uncommitted[:kept]
        self.stale.pop(leader, None)
        if not old_leader_knows and old.leader != leader:
            self.stale[old.leader] = old
        self.reign = LeaderLog(leader, old.epoch + 1, batches, -1, old.start, old.snapshot, dict(old.earlier_epochs))
        self.reign.clock_ms = old.clock_ms
        self.reign.append_leader_change()

    def take_snapshot(self) -> None:
        """Write a snapshot of the committed records, and remove the log before its end."""
        image = list(self.images().values())[-1]
        at = SnapshotId(image.offset + 1, image.epoch)
        if not image.offset or at.end_offset <= self.reign.start:
            return
        reign = self.reign
        reign.earlier_epochs[at.epoch] = at.end_offset
        for batch in reign.batches:
            if batch.next_offset <= at.end_offset:
                reign.earlier_epochs[batch.partition_leader_epoch] = batch.next_offset
        reign.batches = [batch for batch in reign.batches if batch.base_offset >= at.end_offset]
        reign.start = at.end_offset
        reign.snapshot = Snapshot(at, b"".join(build_snapshot(image, 5)))

    def images(self) -> dict[int, MetadataImage]:
        """Build the metadata image after each committed batch; the keys are the images' offsets."""
        replay = MetadataReplay()
        found = {-1: EMPTY_IMAGE}
        for batch in self.committed:
            replay.take_batch(batch)
            published = replay.publish()
            if published is not None:
                found[published.image.offset] = published.image
        return found

    def answer(
        self, address: Address, request: fetch.FetchRequest | fetch_snapshot.FetchSnapshotRequest
    ) -> fetch.FetchResponse | fetch_snapshot.FetchSnapshotResponse:
        """Return the response of the node at ``address``. Raises UnreachableError."""
        node = next(node for node, one in self.addresses.items() if one == address)
        if node in self.down:
            raise UnreachableError(f"{address} is down")
        reign = self.stale.get(node, self.reign)
        host, port = self.addresses[reign.leader]
        if isinstance(request, fetch.FetchRequest):
            partition = self._fetch(node, reign, request.topics[0].partitions[0])
            topic = fetch.FetchableTopicResponse(topic_id=request.topics[0].topic_id, partitions=[partition])
            node_end = fetch.NodeEndpoint(node_id=reign.leader, host=host, port=port)
            return fetch.FetchResponse(responses=[topic], node_endpoints=[node_end])
        piece = self._fetch_snapshot(node, reign, request)
        named = fetch_snapshot.TopicSnapshotResponse(name="__cluster_metadata", partitions=[piece])
        end = fetch_snapshot.NodeEndpoint(node_id=reign.leader, host=host, port=port)
        return fetch_snapshot.FetchSnapshotResponse(topics=[named], node_endpoints=[end])

    def _fetch(self, node: int, reign: LeaderLog, asked: fetch.FetchPartition) -> fetch.PartitionData:
        leader = fetch.LeaderIdAndEpoch(leader_id=reign.leader, leader_epoch=reign.epoch)
        answer = fetch.PartitionData(current_leader=leader, high_watermark=reign.high_watermark, records=b"")
        answer.error_code = epoch_error(asked.current_leader_epoch, reign, node)
        assert 0 <= asked.last_fetched_epoch <= asked.current_leader_epoch, "Kafka answers INVALID_REQUEST"
        if answer.error_code:
            return answer
        if reign.snapshot is not None and reign.needs_snapshot(asked.fetch_offset, asked.last_fetched_epoch):
            end_offset, epoch = reign.snapshot.snapshot_id
            answer.snapshot_id = fetch.SnapshotId(end_offset=end_offset, epoch=epoch)
            return answer
        epoch, end = reign.end_of_epoch(asked.last_fetched_epoch)
        if asked.fetch_offset and (epoch != asked.last_fetched_epoch or asked.fetch_offset > end):
            answer.diverging_epoch = fetch.EpochEndOffset(epoch=epoch, end_offset=end)
            return answer
        wanted = [batch.view() for batch in reign.batches if batch.last_offset >= asked.fetch_offset]
        first = len(wanted[0]) if wanted else 0
        answer.records = b"".join(wanted)[: max(asked.partition_max_bytes, first)]
        return answer

    def _fetch_snapshot(
        self, node: int, reign: LeaderLog, request: fetch_snapshot.FetchSnapshotRequest
    ) -> fetch_snapshot.PartitionSnapshotResponse:
        asked = request.topics[0].partitions[0]
        wanted = SnapshotId(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
        leader = fetch_snapshot.LeaderIdAndEpoch(leader_id=reign.leader, leader_epoch=reign.epoch)
        answer = fetch_snapshot.PartitionSnapshotResponse(current_leader=leader, position=asked.position)
        answer.error_code = epoch_error(asked.current_leader_epoch, reign, node)
        if answer.error_code:
            return answer
        if reign.snapshot is None or reign.snapshot.snapshot_id != wanted:
            answer.error_code = SNAPSHOT_NOT_FOUND
            return answer
        data = reign.snapshot.data
        if asked.position >= len(data):
            answer.error_code = POSITION_OUT_OF_RANGE
        answer.size = len(data)
        answer.unaligned_records = data[asked.position : asked.position + request.max_bytes]
        return answer


def epoch_error(asked: int, reign: LeaderLog, node: int) -> int:
    """Return the error of a request with this leader epoch, 0 for none."""
    if asked < reign.epoch:
        return FENCED_EPOCH
    if asked > reign.epoch:
        return UNKNOWN_EPOCH
    return 0 if reign.leader == node else NOT_LEADER
