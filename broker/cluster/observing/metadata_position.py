"""Position in the metadata log up to which a broker has acted, and its comparison with the quorum's log at the next
start.

A quorum that was restored from a backup may lack records, or have other records at the position and after it. A broker
that joined such a quorum would lead partitions and truncate logs by metadata from before the loss. So a start waits for
a quorum that reaches the position, and compares the batch there. The epoch alone is not a proof: a restored quorum may
use the same epochs again. Sans-io.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.broker.cluster.observing.metadata_tail import MetadataLostError
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.metadata.replay import SnapshotId
from tidelog.protocol.record.record_batch import RecordBatch

UNKNOWN_TIME = -1


class MetadataPosition(NamedTuple):
    """Offset of the newest record that was acted upon, the epoch it was appended in, and its batch's time (ms).

    The time is ``UNKNOWN_TIME`` where the record came in a snapshot.
    """

    epoch: int
    offset: int
    timestamp_ms: int = UNKNOWN_TIME

    def shortfall(self, image: MetadataImage) -> str:
        """Return one line that says what a quorum with ``image`` lacks; an empty text if it lacks nothing."""
        if image.epoch >= self.epoch and image.offset >= self.offset:
            return ""
        return (
            f"this broker has acted upon metadata up to offset {self.offset} of epoch {self.epoch}, and the quorum has "
            f"offset {image.offset} of epoch {image.epoch}: the quorum was restored from a backup, or is another one"
        )


NOWHERE = MetadataPosition(-1, -1)
"""The position of a broker that has acted upon no metadata, or whose position is not known."""


class KnownRecord:
    """The search for the record at a known position. Comparisons raise MetadataLostError if there is another record.

    Committed batches are compared while they are replayed. If the replay begins with a snapshot that is at least as new
    as the record, ``passed_by`` is set. Then the observer has to fetch at the record's own offset. The answer may be
    such a snapshot again. That is not a loss: every quorum deletes its log up to a snapshot.
    """

    __slots__ = ("_position", "passed_by")

    def __init__(self, position: MetadataPosition) -> None:
        self._position = position
        self.passed_by: SnapshotId | None = None
        """The snapshot that the replay began with, while a Fetch at the record's offset is still needed; else None."""

    @property
    def offset(self) -> int:
        """Offset of the record, -1 when the search is over."""
        return self._position.offset

    def compare_batch(self, batch: RecordBatch) -> None:
        """Compare a committed batch if it has the record's offset; the search is over then."""
        epoch, offset, timestamp_ms = self._position
        if not batch.base_offset <= offset <= batch.last_offset:
            return
        is_other_time = timestamp_ms not in (UNKNOWN_TIME, batch.max_timestamp)
        if batch.partition_leader_epoch != epoch or is_other_time:
            raise self._lost_error(f"has another record there, of epoch {batch.partition_leader_epoch}")
        self.end()

    def compare_snapshot(self, snapshot: SnapshotId) -> None:
        """Compare a snapshot that the leader has. If it is at least as new as the record, set ``passed_by``."""
        epoch, offset, _ = self._position
        if offset < 0 or snapshot.end_offset <= offset:
            return
        is_last = snapshot.end_offset == offset + 1
        if snapshot.epoch < epoch or (is_last and snapshot.epoch != epoch):
            raise self._lost_error(f"has snapshot {snapshot.file_name()}, which is of epoch {snapshot.epoch}")
        self.passed_by = snapshot

    def end(self) -> None:
        """End the search: the record was found, or the leader's log does not reach back to it."""
        self._position = NOWHERE
        self.passed_by = None

    def _lost_error(self, what: str) -> MetadataLostError:
        return MetadataLostError(
            f"this broker has acted upon metadata up to offset {self._position.offset} of epoch "
            f"{self._position.epoch}, which was committed, and the quorum {what}: "
            "the quorum was restored from a backup, or is another one"
        )
