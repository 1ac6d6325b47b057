# cython: wraparound=True, boundscheck=True
"""Read-ahead of the next batch's header for readers that read a partition in order.

When a batch is sent, the header of the batch after it is read with RWF_NOWAIT. It gives the size and last offset of the
reader's next batch, which is then found without an index. The header at the start of a sent slice and the one after its
end were read so: both ends are in the page cache (see ``broker/network/send_queue.py``). A slice ends with a whole
batch. With fetches of 1 MiB a request's cost is mostly cache misses: the megabyte sent before has displaced the code
and data that the request needs. A read through the cursor needs little of both.

``Partition.read`` reads through the cursor. It returns what ``UnifiedLog.read`` would, except that it may leave off a
last batch that the limit would cut. Loop thread only. ``fetch_cursor.pxd`` declares the C types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.log.fetch import FetchDataInfo, FetchIsolation
from tidelog.protocol.compiled import words
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.record.record_batch import LOG_OVERHEAD, MAGIC_V2, RECORD_BATCH_OVERHEAD
from tidelog.protocol.transferable import TransferableRecords

if TYPE_CHECKING:
    from tidelog.log.segment.segment import LogSegment
    from tidelog.log.segment.segments import LogSegments
    from tidelog.log.unified_log import UnifiedLog

MAX_REMEMBERED = 16
"""Largest number of readers of large batches in one partition whose next batches are remembered."""
LOOKS_SKIPPED = 64
"""After a batch that is small, or whose header is not in the page cache, this many reads look at no header. Reads of
remembered batches do not count."""
_HEADER_BYTES = 27
"""Length of base offset, length, epoch, magic, CRC, attributes and last offset delta."""
_LENGTH, _MAGIC, _LAST_OFFSET_DELTA = 8, 16, 23
_SMALLEST_LENGTH = RECORD_BATCH_OVERHEAD - LOG_OVERHEAD
_OVERHEAD, _MAGIC_2 = LOG_OVERHEAD, MAGIC_V2
_COMMITTED, _LOG_END = FetchIsolation.TXN_COMMITTED, FetchIsolation.LOG_END
_MAX_INT_64 = words.MAX_INT_64
_LARGEST_OFFSET = words.MAX_INT_64 - 1
"""Largest last offset of a batch: the offset after it must fit into 64 bits."""
_Info = FetchDataInfo


class NextBatch:
    """The batch that a reader reads next: its last offset, and where it lies. ``version`` is the log's version when the
    batch was found."""

    __slots__ = ("last_offset", "position", "segment", "segments", "size", "version")

    def __init__(
        self, last_offset: int, position: int, size: int, segment: LogSegment, segments: LogSegments, version: int
    ) -> None:
        self.last_offset = last_offset
        self.position = position
        self.size = size
        self.segment = segment
        self.segments = segments
        self.version = version


class FetchCursor:
    """Next batches of one partition's readers, by the offset that each reader asks for next."""

    __slots__ = (
        "_base_offset",
        "_committed_from",
        "_committed_segments",
        "_header",
        "_last_offset_delta",
        "_log",
        "_looks_to_skip",
        "_next_batches",
        "_size",
    )

    def __init__(self, log: UnifiedLog) -> None:
        self._log = log
        self._committed_segments: LogSegments | None = None
        """List of segments without aborted transactions from ``_committed_from`` on; None if none was checked."""
        self._committed_from = 0
        self._next_batches: dict[int, NextBatch] = {}
        self._looks_to_skip = 0
        """Number of further reads that look at no header."""
        self._header = bytearray(_HEADER_BYTES)
        self._base_offset = self._size = self._last_offset_delta = 0

    def read(self, offset: int, max_bytes: int, isolation: FetchIsolation, min_one_message: bool) -> FetchDataInfo:
        """Read as ``UnifiedLog.read`` does with ``prove=False``. Raises what that raises."""
        log = self._log
        found = self._next_batches.get(offset)
        if found is not None:
            going_on = self._read_on(found, offset, max_bytes, isolation)
            if going_on is not None:
                return words.tuple_as(_Info, (going_on, offset, [] if isolation is _COMMITTED else None, False))
        version, segments = log.version, log.segments
        info = log.read(offset, max_bytes, isolation=isolation, min_one_message=min_one_message, prove=False)
        records = info.records
        if not isinstance(records, TransferableRecords) or records.size * 2 <= max_bytes or isolation is _LOG_END:
            return info
        if self._looks_to_skip:
            self._looks_to_skip -= 1
            return info
        begun = self._begin(offset, records, max_bytes, isolation, segments, version)
        if begun is None:
            return info
        records.release()
        return info._replace(records=begun)

    def _begin(
        self,
        offset: int,
        records: TransferableRecords,
        max_bytes: int,
        isolation: FetchIsolation,
        segments: LogSegments,
        version: int,
    ) -> TransferableRecords | None:
        """Read the batch at which ``records`` begin, if it is large; the caller still releases ``records``."""
        segment = segments.floor(offset)
        position = records.position
        if segment is None or not self._look(records.file.fileno(), position) or self._size * 2 <= max_bytes:
            self._looks_to_skip = LOOKS_SKIPPED
            return None
        last_offset = self._base_offset + self._last_offset_delta
        if last_offset < offset:
            return None
        try:
            found = NextBatch(last_offset, position, self._size, segment, segments, version)
            begun = self._read_on(found, offset, max_bytes, isolation)
        except KafkaError:
            return None  # the segment was swapped meanwhile; the records that were read are still right
        if begun is not None and begun.file is not records.file:
            begun.release()
            self._next_batches.pop(last_offset + 1, None)
            return None  # not the segment that was read
        return begun

    def _read_on(
        self, found: NextBatch, offset: int, max_bytes: int, isolation: FetchIsolation
    ) -> TransferableRecords | None:
        """Return the batch that ``found`` describes, and read the header of the batch after it; None if a read may not
        return exactly this batch, or that header is not in the page cache.

        Raises KafkaStorageError when the segment's file is closed.
        """
        segment, segments = found.segment, found.segments
        bound, following = self._bound(found, offset, max_bytes, isolation), found.position + found.size
        if bound < following:
            return None
        records = segment.records.slice(found.position, found.size)
        if following == bound:
            return records
        room = min(max_bytes, bound - found.position) - found.size
        is_seen = self._look(records.file.fileno(), following)
        if not is_seen or self._base_offset <= found.last_offset or self._size <= room:
            records.release()
            return None  # not in the page cache, damaged, or there is room for more than one batch
        next_batches, going_on = self._next_batches, found.last_offset + 1
        if len(next_batches) >= MAX_REMEMBERED and going_on not in next_batches:
            del next_batches[next(iter(next_batches))]  # the oldest one
        next_batches[going_on] = NextBatch(
            self._base_offset + self._last_offset_delta, following, self._size, segment, segments, found.version
        )
        records.in_memory = True
        return records

    def _bound(self, found: NextBatch, offset: int, max_bytes: int, isolation: FetchIsolation) -> int:
        """Return the position where the segment's readable bytes end; -1 if a read from ``offset`` may not return the
        batch alone."""
        log, segment = self._log, found.segment
        end_offset, end_base_offset, end_position = log.end
        if (
            not log.is_serving
            or log.version != found.version
            or log.segments is not found.segments
            or not found.last_offset < log.high_watermark == end_offset
            or offset < log.log_start_offset
            or found.size > max_bytes
        ):
            return -1
        if isolation is _COMMITTED and not (
            log.last_stable_offset == log.high_watermark and self._has_no_abort(found.segments, segment)
        ):
            return -1
        return end_position if segment.base_offset == end_base_offset else segment.records.size

    def _has_no_abort(self, segments: LogSegments, segment: LogSegment) -> bool:
        """Return whether proven indices show that no marker in ``segment`` or after it aborts a transaction.

        Only the active segment's index can grow; the others are checked once for each list of segments."""
        if self._committed_segments is not segments or segment.base_offset < self._committed_from:
            indices = [later.transaction_index for later in segments.values(segment.base_offset, _MAX_INT_64)]
            for index in indices:
                if not index.is_proven or index.entries:
                    return False
            self._committed_segments, self._committed_from = segments, segment.base_offset
        return not segments.active.transaction_index.entries

    def _look(self, descriptor: int, position: int) -> bool:
        """Read base offset, size and last offset delta of the batch at ``position``. Return whether its header is in
        the page cache, of magic 2, and plausible.
        """
        header = words.address_of(self._header)
        if words.read_in_memory(descriptor, header, 0, _HEADER_BYTES, position) < _HEADER_BYTES:
            return False
        length = words.load_be_i32(header, _LENGTH)
        self._base_offset, self._size = words.load_be_i64(header, 0), length + _OVERHEAD
        self._last_offset_delta = delta = words.load_be_i32(header, _LAST_OFFSET_DELTA)
        is_possible = length >= _SMALLEST_LENGTH and delta >= 0 and 0 <= self._base_offset <= _LARGEST_OFFSET - delta
        return header[_MAGIC] == _MAGIC_2 and is_possible
