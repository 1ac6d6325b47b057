"""Open transactions of a log, without its broker: a read_committed reader sees only records below the first of them.

    newest producer snapshot at or below the end     -> transactions that were open there
    batch headers from there to the end              -> transactions that began there; markers end some of them

The broker takes a snapshot whenever a segment rolls and when it stops, so the walk covers the active segment at most.
A damaged or missing snapshot only makes the walk longer. A damaged marker ends nothing: its transaction counts as open.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.log.producer.snapshot import decode_snapshot
from tidelog.log.segment.batch_scan import BatchHeader, crc_matches
from tidelog.pipeline.files.batch_walk import headers
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.segment_files import SegmentFile
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.sparse_index import offset_index, position_at_or_before
from tidelog.pipeline.files.storage import files_at, names_in
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.record.record_batch import RECORD_BATCH_OVERHEAD

_SNAPSHOT = re.compile(r"([0-9]{20})\.snapshot")
_NO_TRANSACTION = -1


@dataclass(slots=True)
class _WalkEnd:
    """Byte ``position`` of a segment, where a walk ended, the offset that the next record there gets, and the
    transactions that are open there.

    ``open_transactions`` are first offsets by producer id.

    ``last_header`` are the 61 bytes of the header of the batch before it, which begins at byte ``last_position``. They
    change when the segment is truncated and written again.
    """

    inode: int
    position: int
    next_offset: int
    last_position: int
    last_header: bytes
    open_transactions: dict[int, int]


#: The end of the last walk, by path of the active segment: a stream goes on there at each trigger. Cleared as a whole
#: at MAX_REMEMBERED.
_WALK_ENDS: dict[str, _WalkEnd] = {}
MAX_REMEMBERED = 10_000


def first_unstable_offset(segments: Sequence[SegmentFile], end: int, count: ReadCount | None = None) -> int | None:
    """Find the first offset of the oldest transaction that is open in a log that ends at ``end``; None when none is
    open.

    One thread at a time for each log.

    Raises FileNotFoundError when a segment is deleted meanwhile, PipelineError, CorruptBatchError.
    """
    walk = _continue_walk(segments[-1], end, count)
    if walk is None:
        directory = os.path.dirname(segments[0].path)
        offset, open_transactions = _newest_snapshot(directory, segments[0].base_offset, end)
        walk = _Walk(offset, end, open_transactions)
        for number, segment in enumerate(segments):
            following = segments[number + 1].base_offset if number + 1 < len(segments) else end
            if following > max(offset, segment.base_offset):
                with OpenSegment(segment.path, count) as file:
                    walk.go(file, _position(segment, file, offset, count))
    if len(_WALK_ENDS) >= MAX_REMEMBERED:
        _WALK_ENDS.clear()
    if walk.reached is not None:
        _WALK_ENDS[segments[-1].path] = walk.reached
    return min(walk.open_transactions.values(), default=None)


def _continue_walk(active: SegmentFile, end: int, count: ReadCount | None) -> _Walk | None:
    """Continue the walk of the last call; None when there was none, or the segment was written again since."""
    known = _WALK_ENDS.get(active.path)
    if known is None:
        return None
    with OpenSegment(active.path, count) as file:
        if file.inode != known.inode or file.read_at(known.last_position, len(known.last_header)) != known.last_header:
            return None
        walk = _Walk(active.base_offset, end, dict(known.open_transactions))
        walk.reached = known
        if known.next_offset < end:
            walk.go(file, known.position)
    return walk


def _newest_snapshot(directory: str, start: int, end: int) -> tuple[int, dict[int, int]]:
    names = sorted((name for name in names_in(directory) if _SNAPSHOT.fullmatch(name)), reverse=True)
    for name in names:
        offset = int(name[:20])
        if offset > end:
            continue
        try:
            path = os.path.join(directory, name)
            entries = decode_snapshot(files_at(path).read_file(path), path)
        except KafkaStorageError:
            continue  # torn or deleted: an older snapshot, or the log itself, gives the same transactions
        first = {entry.producer_id: entry.current_txn_first_offset for entry in entries}
        return offset, {producer: begin for producer, begin in first.items() if begin != _NO_TRANSACTION}
    return start, {}


def _position(segment: SegmentFile, file: OpenSegment, offset: int, count: ReadCount | None) -> int:
    index = offset_index(segment, count)
    try:
        return position_at_or_before(file, index, segment.base_offset, offset)
    finally:
        index.close()


class _Walk:
    """A walk over batches that follows which transactions are open, from offset ``start`` to ``end``."""

    def __init__(self, start: int, end: int, open_transactions: dict[int, int]) -> None:
        self._start = start
        self._end = end
        self.open_transactions = open_transactions
        self.reached: _WalkEnd | None = None
        """End of the last batch that the walk has read; None before the first."""

    def go(self, file: OpenSegment, position: int) -> None:
        """Walk over a segment's batches from byte ``position`` on. Bytes beyond the end are not looked at: they may be
        a torn tail."""
        last: BatchHeader | None = None
        for header in headers(file, position, file.size):
            if header.base_offset >= self._end:
                break
            if header.base_offset >= self._start and header.is_transactional:
                self._note(file, header)
            last = header
            if header.last_offset + 1 >= self._end:
                break
        if last is not None:
            last_header = file.read_at(last.position, RECORD_BATCH_OVERHEAD)
            self.reached = _WalkEnd(
                file.inode,
                last.position + last.size,
                last.last_offset + 1,
                last.position,
                last_header,
                dict(self.open_transactions),
            )

    def _note(self, file: OpenSegment, header: BatchHeader) -> None:
        if not header.is_control:
            self.open_transactions.setdefault(header.producer_id, header.base_offset)
        elif crc_matches(header, memoryview(file.read_at(header.position, header.size))):
            self.open_transactions.pop(header.producer_id, None)
