"""A snapshot of the metadata log that arrives in pieces.

All pieces of one snapshot must come from one leader in one epoch: other controllers' files have the same records in
other batches. Source: KafkaRaftClient.handleFetchSnapshotResponse of Kafka 4.3, KIP-630.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.broker.metadata.replay import SnapshotId
from tidelog.broker.metadata.snapshot import SnapshotContent, read_snapshot
from tidelog.protocol.errors import CorruptMessageError
from tidelog.protocol.record.record_batch import RECORD_BATCH_OVERHEAD, Buffer, RecordBatch


class SnapshotDownload:
    """The bytes of one snapshot from its start up to ``position``."""

    __slots__ = ("_data", "leader_epoch", "snapshot")

    def __init__(self, snapshot: SnapshotId, leader_epoch: int) -> None:
        self.snapshot = snapshot
        self.leader_epoch = leader_epoch
        self._data = bytearray()

    @property
    def position(self) -> int:
        """The position in the file, in bytes, at which the next piece begins."""
        return len(self._data)

    def take_piece(self, position: int, piece: Buffer, size: int) -> SnapshotContent | None:
        """Add a piece of a file of ``size`` bytes; return the snapshot's content when it is complete.

        Raises CorruptMessageError for a piece that does not follow, and what ``complete_batches`` and ``read_snapshot``
        raise.
        """
        if position != self.position or not piece or position + len(piece) > size:
            raise CorruptMessageError(
                f"expected a piece at byte {self.position}, received {len(piece)} bytes at byte {position} of {size}"
            )
        self._data += piece
        if len(self._data) < size:
            return None
        return read_snapshot(complete_batches(self._data), self.snapshot)


def complete_batches(data: Buffer) -> Iterator[RecordBatch]:
    """Yield the batches in ``data`` without an incomplete last one. Raises CorruptMessageError for a damaged one."""
    position = 0
    while len(data) - position >= RECORD_BATCH_OVERHEAD:
        batch = RecordBatch(data, position)
        if batch.size_in_bytes > len(data) - position:
            return
        batch.ensure_valid()
        yield batch
        position += batch.size_in_bytes
