"""Fetched batches of the metadata log that are not known to be committed yet.

Batches leave the tail in order, once they are below the high watermark. The others may be truncated when a new leader's
log diverges (KIP-595). Source: KafkaRaftLog.truncateToEndOffset of Kafka 4.3.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tidelog.protocol.errors import CorruptMessageError
from tidelog.protocol.record.record_batch import RecordBatch


class MetadataLostError(Exception):
    """The quorum's leader lacks records that were committed: the quorum was restored from a backup, or is another."""


class FetchPosition(NamedTuple):
    """The offset to fetch next, and the leader epoch of the batch before it."""

    offset: int
    epoch: int


class MetadataTail:
    """Batches from ``committed`` on, in the order of their offsets, without a gap."""

    __slots__ = ("_batches", "committed")

    def __init__(self, committed: FetchPosition) -> None:
        self.committed = committed
        self._batches: deque[RecordBatch] = deque()

    @property
    def end(self) -> FetchPosition:
        """The position after the last batch."""
        return _end_of(self._batches[-1]) if self._batches else self.committed

    def append(self, batch: RecordBatch) -> None:
        """Add a copy of a batch. Raises CorruptMessageError for a wrong checksum or an offset that is not the next."""
        batch.ensure_valid()
        if batch.base_offset != self.end.offset:
            raise CorruptMessageError(f"expected offset {self.end.offset}, received a batch at {batch.base_offset}")
        self._batches.append(RecordBatch(bytes(batch.view())))

    def truncate(self, epoch: int, end_offset: int) -> None:
        """Remove the batches that the leader does not have. ``epoch`` is the leader's newest epoch that is not above
        the tail's, and ends in its log at ``end_offset``.

        Raises MetadataLostError, with nothing removed, if committed records would have to go; CorruptMessageError if
        the leader's answer leaves nothing to remove.
        """
        if self.committed.epoch > epoch or self.committed.offset > end_offset:
            raise MetadataLostError(
                f"the leader ends epoch {epoch} at offset {end_offset}, but records up to offset "
                f"{self.committed.offset - 1} of epoch {self.committed.epoch} were committed"
            )
        if self.end.epoch <= epoch and self.end.offset <= end_offset:
            raise CorruptMessageError(f"cannot truncate at offset {end_offset}: the log ends at {self.end.offset}")
        while self._batches and (self.end.epoch > epoch or self.end.offset > end_offset):
            self._batches.pop()

    def take_committed(self, high_watermark: int) -> list[RecordBatch]:
        """Remove and return the batches below the high watermark."""
        taken: list[RecordBatch] = []
        while self._batches and self._batches[0].next_offset <= high_watermark:
            taken.append(self._batches.popleft())
        if taken:
            self.committed = _end_of(taken[-1])
        return taken


def _end_of(batch: RecordBatch) -> FetchPosition:
    return FetchPosition(batch.next_offset, batch.partition_leader_epoch)
