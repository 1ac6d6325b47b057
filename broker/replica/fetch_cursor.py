"""A reader that goes on where it stopped: fetches of one partition that look at the batch after the one they read.

Where the batch after the one sent begins, its size and last offset are known from a look at its header, taken with
RWF_NOWAIT when the batch before it was sent. This look is also the probe that both ends of the slice are in memory
(see ``broker/network/send_queue.py``), and shows where to end the slice so that no half batch is sent. A fetch of
1 MiB takes 40 µs of user time in place of 106: what counts there is how much code and data one request touches,
because the megabyte before it has taken the caches.

``read`` gives what ``Partition.read`` would, or None where that has to look: nothing to read, another leader or epoch,
a closed or offline log, for read_committed an open or an aborted transaction. Loop thread only.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.fetch import FetchIsolation
from tidelog.log.index_proof import UnprovenIndexError
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.record.record_batch import LOG_OVERHEAD, MAGIC_V2, RECORD_BATCH_OVERHEAD
from tidelog.protocol.transferable import TransferableRecords

if TYPE_CHECKING:
    from tidelog.broker.replica.partition import Partition
    from tidelog.log.segment.segment import LogSegment
    from tidelog.log.segment.segments import LogSegments
    from tidelog.log.unified_log import UnifiedLog

LOOKS_SKIPPED = 64
"""Where batches are small, this many answers are made before the next look whether they still are."""
_HEADER = Struct(">qi4xB6xi")  # base offset, length, magic, last offset delta
_RWF_NOWAIT = os.RWF_NOWAIT
_COMMITTED = FetchIsolation.TXN_COMMITTED
_MOST = 1 << 63
_new_tuple = tuple.__new__


class FetchLimits(NamedTuple):
    """Limits of a fetch: the least and the most bytes of records to answer with, and which of them."""

    least: int
    most: int
    isolation: FetchIsolation


class NextBatch(NamedTuple):
    """The batch that a consumer reads next."""

    offset: int
    last_offset: int
    position: int
    size: int
    segment: LogSegment
    segments: LogSegments
    version: int


class FetchCursor:
    """One consumer's place in one partition. See the module."""

    __slots__ = (
        "_committed",
        "_committed_from",
        "_header",
        "_header_list",
        "_leader_epoch",
        "_limits",
        "_log",
        "_looks_to_skip",
        "_next",
        "_partition",
    )

    def __init__(self, partition: Partition, log: UnifiedLog, limits: FetchLimits) -> None:
        self._partition = partition
        self._leader_epoch = partition.leader_epoch
        self._log = log
        self._limits = limits
        self._committed = limits.isolation is _COMMITTED
        self._committed_from: tuple[LogSegments, int] | None = None
        self._next: NextBatch | None = None
        self._looks_to_skip = 0
        self._header = bytearray(_HEADER.size)
        self._header_list = [self._header]

    def offsets(self) -> tuple[int, int, int]:
        """Return high watermark, last stable offset and log start."""
        log = self._log
        return log.high_watermark, log.last_stable_offset, log.log_start_offset

    def read(self, offset: int) -> TransferableRecords | None:
        """The records at ``offset``; None when the general way has to look."""
        partition = self._partition
        if partition.leader_epoch != self._leader_epoch or not partition.is_leader:
            return None
        return self._read(self._log, offset) if self._log.is_serving else None

    def _read(self, log: UnifiedLog, offset: int) -> TransferableRecords | None:
        found, self._next = self._next, None
        try:
            if not log.log_start_offset <= offset < log.high_watermark:
                return None
            if self._committed and log.last_stable_offset != log.high_watermark:
                return None
            if found is not None and found.offset == offset:
                records = self._read_on(log, found)
                if records is not None:
                    return records
            version, segments = log.version, log.segments
            least, most, isolation = self._limits
            info = log.read(offset, most, isolation=isolation, min_one_message=True, prove=False)
            if not isinstance(info.records, TransferableRecords):
                return None
            if info.records.size < least or info.aborted_transactions:
                info.records.release()
                return None
            if self._looks_to_skip:
                self._looks_to_skip -= 1
                return info.records
            begun = self._begin(log, offset, info.records, (segments, version))
            if begun is None:
                return info.records
            info.records.release()
            return begun
        except (KafkaError, UnprovenIndexError):
            return None  # the general way meets it again and answers with it

    def _begin(
        self, log: UnifiedLog, offset: int, records: TransferableRecords, seen: tuple[LogSegments, int]
    ) -> TransferableRecords | None:
        """Read on from where ``records`` begin, if a large batch does; they stay the caller's."""
        segments, version = seen
        segment = segments.floor(offset)
        header = self._look(records.file.fileno(), records.position)
        if header is None or header[1] * 2 <= self._limits.most or segment is None:
            self._looks_to_skip = LOOKS_SKIPPED
            return None
        base_offset, size, last_offset_delta = header
        last_offset = base_offset + last_offset_delta
        if last_offset < offset:
            return None
        found = NextBatch(offset, last_offset, records.position, size, segment, segments, version)
        try:
            begun = self._read_on(log, found)
        except KafkaError:
            return None  # the segment was swapped meanwhile; what was found in it still stands
        if begun is not None and begun.file is not records.file:
            begun.release()
            self._next = None
            return None  # another segment than the one that was read
        return begun

    def _read_on(self, log: UnifiedLog, found: NextBatch) -> TransferableRecords | None:
        """The batch that was looked at when the one before it was sent; looks at the one after it.

        Raises KafkaStorageError when the segment's file is closed.
        """
        _, last_offset, position, size, segment, segments, version = found
        end = log.end
        if log.version != version or log.segments is not segments or not last_offset < log.high_watermark == end.offset:
            return None
        bound = end.position if segment.base_offset == end.base_offset else segment.records.size
        following = position + size
        least, most, _ = self._limits
        if size < least or (self._committed and not self._nothing_aborted(segments, segment)):
            return None
        records = segment.records.slice(position, size)
        if following >= bound:
            return records
        header = self._look(records.file.fileno(), following)
        if header is None or header[1] <= min(most, bound - position) - size:
            records.release()
            return None  # not in memory, or more than one batch belongs into the answer
        base_offset, next_size, last_offset_delta = header
        self._next = _new_tuple(NextBatch, (
            last_offset + 1, base_offset + last_offset_delta, following, next_size, segment, segments, version,
        ))  # fmt: skip
        records.in_memory = True
        return records

    def _nothing_aborted(self, segments: LogSegments, segment: LogSegment) -> bool:
        """Return whether no transaction whose marker is in ``segment`` or after it was aborted.

        Only the active segment's index can grow; the others are looked at once for each list of segments."""
        known = self._committed_from
        if known is None or known[0] is not segments or segment.base_offset < known[1]:
            indices = [later.transaction_index for later in segments.values(segment.base_offset, _MOST)]
            if any(not index.is_proven or index.entries for index in indices):
                return False
            self._committed_from = (segments, segment.base_offset)
        return not segments.active.transaction_index.entries

    def _look(self, descriptor: int, position: int) -> tuple[int, int, int] | None:
        """Base offset, size and last offset delta of the batch at ``position``; None when its header is not in memory
        or is none of magic 2."""
        try:
            count = os.preadv(descriptor, self._header_list, position, _RWF_NOWAIT)
        except OSError:
            return None
        base_offset, length, magic, last_offset_delta = _HEADER.unpack(self._header)
        if count < _HEADER.size or magic != MAGIC_V2 or length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD:
            return None
        return (base_offset, length + LOG_OVERHEAD, last_offset_delta) if last_offset_delta >= 0 else None
