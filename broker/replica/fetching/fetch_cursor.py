"""Places in a partition where readers go on: fetches that look at the batch after the one they read.

Where the batch after the one sent begins, its size and last offset are known from a look at its header. That look was
taken with RWF_NOWAIT when the batch before it was sent. It is also the probe that both ends of the slice are in memory
(see ``broker/network/send_queue.py``). And it shows where to end the slice so that no half batch is sent. What counts
in a fetch of 1 MiB is how much code and data one request touches, because the megabyte before it has taken the caches.

The cursor stands below ``Partition.read`` and gives what ``UnifiedLog.read`` would, but that a batch which would be cut
at the limit may be left off. Loop thread only.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.fetch import FetchDataInfo, FetchIsolation
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.record.record_batch import LOG_OVERHEAD, MAGIC_V2, RECORD_BATCH_OVERHEAD
from tidelog.protocol.transferable import TransferableRecords

if TYPE_CHECKING:
    from tidelog.log.segment.segment import LogSegment
    from tidelog.log.segment.segments import LogSegments
    from tidelog.log.unified_log import UnifiedLog

MOST_PLACES = 16
"""Readers of one partition, each with large batches, whose places are remembered."""
LOOKS_SKIPPED = 64
"""Where batches are small, this many answers are made before the next look whether they still are."""
_HEADER = Struct(">qi4xB6xi")  # base offset, length, magic, last offset delta
_RWF_NOWAIT = os.RWF_NOWAIT
_COMMITTED, _LOG_END = FetchIsolation.TXN_COMMITTED, FetchIsolation.LOG_END
_MOST = 1 << 63
_new_tuple = tuple.__new__


class NextBatch(NamedTuple):
    """The batch that a reader reads next."""

    last_offset: int
    position: int
    size: int
    segment: LogSegment
    segments: LogSegments
    version: int


class FetchCursor:
    """The places of one partition's readers, by the offset they ask for next. See the module."""

    __slots__ = ("_committed_from", "_header", "_header_list", "_log", "_looks_to_skip", "_places")

    def __init__(self, log: UnifiedLog) -> None:
        self._log = log
        self._committed_from: tuple[LogSegments, int] | None = None
        self._places: dict[int, NextBatch] = {}
        self._looks_to_skip = 0
        self._header = bytearray(_HEADER.size)
        self._header_list = [self._header]

    def read(self, offset: int, most: int, isolation: FetchIsolation, *, min_one_message: bool) -> FetchDataInfo:
        """Read as ``UnifiedLog.read`` does, but without proofs. Raises what that raises."""
        log = self._log
        found = self._places.get(offset)
        if found is not None:
            going_on = self._read_on(log, found, offset, most, isolation)
            if going_on is not None:
                return _new_tuple(FetchDataInfo, (going_on, offset, [] if isolation is _COMMITTED else None, False))
        version, segments = log.version, log.segments
        info = log.read(offset, most, isolation=isolation, min_one_message=min_one_message, prove=False)
        records = info.records
        if not isinstance(records, TransferableRecords) or records.size * 2 <= most or isolation is _LOG_END:
            return info
        if self._looks_to_skip:
            self._looks_to_skip -= 1
            return info
        begun = self._begin(offset, records, most, isolation, segments, version)
        if begun is None:
            return info
        records.release()
        return info._replace(records=begun)

    def _begin(
        self,
        offset: int,
        records: TransferableRecords,
        most: int,
        isolation: FetchIsolation,
        segments: LogSegments,
        version: int,
    ) -> TransferableRecords | None:
        """Read on from where ``records`` begin, if a large batch does; they stay the caller's."""
        segment = segments.floor(offset)
        header = self._look(records.file.fileno(), records.position)
        if header is None or header[1] * 2 <= most or segment is None:
            self._looks_to_skip = LOOKS_SKIPPED
            return None
        base_offset, size, last_offset_delta = header
        last_offset = base_offset + last_offset_delta
        if last_offset < offset:
            return None
        try:
            found = NextBatch(last_offset, records.position, size, segment, segments, version)
            begun = self._read_on(self._log, found, offset, most, isolation)
        except KafkaError:
            return None  # the segment was swapped meanwhile; what was found in it still stands
        if begun is not None and begun.file is not records.file:
            begun.release()
            self._places.pop(last_offset + 1, None)
            return None  # another segment than the one that was read
        return begun

    def _read_on(
        self, log: UnifiedLog, found: NextBatch, offset: int, most: int, isolation: FetchIsolation
    ) -> TransferableRecords | None:
        """Return the batch that was looked at when the one before it was sent; look at the one after it.

        Raises KafkaStorageError when the segment's file is closed.
        """
        last_offset, position, size, segment, segments, version = found
        end = log.end
        if (
            not log.is_serving
            or log.version != version
            or log.segments is not segments
            or not last_offset < log.high_watermark == end.offset
            or offset < log.log_start_offset
            or size > most
        ):
            return None
        if isolation is _COMMITTED and not (
            log.last_stable_offset == log.high_watermark and self._nothing_aborted(segments, segment)
        ):
            return None
        bound = end.position if segment.base_offset == end.base_offset else segment.records.size
        following = position + size
        records = segment.records.slice(position, size)
        if following >= bound:
            return records
        header = self._look(records.file.fileno(), following)
        if header is None or header[1] <= min(most, bound - position) - size:
            records.release()
            return None  # not in memory, or more than one batch belongs into the answer
        base_offset, next_size, last_offset_delta = header
        places, going_on = self._places, last_offset + 1
        if len(places) >= MOST_PLACES and going_on not in places:
            del places[next(iter(places))]  # the oldest one
        places[going_on] = _new_tuple(NextBatch, (
            base_offset + last_offset_delta, following, next_size, segment, segments, version,
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
        """Read base offset, size and last offset delta of the batch at ``position``; None when its header is not in
        memory or is none of magic 2.
        """
        try:
            count = os.preadv(descriptor, self._header_list, position, _RWF_NOWAIT)
        except OSError:
            return None
        base_offset, length, magic, last_offset_delta = _HEADER.unpack(self._header)
        if count < _HEADER.size or magic != MAGIC_V2 or length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD:
            return None
        return (base_offset, length + LOG_OVERHEAD, last_offset_delta) if last_offset_delta >= 0 else None
