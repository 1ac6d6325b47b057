"""Open transactions of a log, without its broker: how far a read_committed reader may see.

    newest producer snapshot at or below the end     -> transactions that were open there
    batch headers from there to the end              -> transactions that began, markers that ended some

The broker takes a snapshot whenever a segment rolls and when it stops, so the walk covers the active segment at most.
A damaged or missing snapshot only lengthens it. Aborts met on the way are handed on: a live broker writes the marker a
moment before its entry in the transaction index.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from log.batch_scan import BatchHeader
from log.checkpoints import CheckpointCorruptError
from log.file_system import OsFileSystem
from log.producer_snapshot import decode_snapshot
from pipeline.batch_walk import headers
from pipeline.errors import CorruptBatchError
from pipeline.plan_rows import AbortedTransaction
from pipeline.segment_files import OpenSegment, ReadCount, SegmentFile
from pipeline.sparse_index import offset_index
from protocol.errors import KafkaError, KafkaStorageError
from protocol.record_batch import RecordBatch, parse_end_transaction_marker

_SNAPSHOT = re.compile(r"(\d{20})\.snapshot")
_NO_TRANSACTION = -1


class Transactions(NamedTuple):
    """The first offset of the oldest transaction that is open (None: none is), and aborts that were met."""

    first_unstable: int | None
    aborted: tuple[AbortedTransaction, ...]


def look_for_transactions(segments: Sequence[SegmentFile], end: int, count: ReadCount | None = None) -> Transactions:
    """The transactions of a log that ends at ``end``.

    Raises FileNotFoundError when a segment goes meanwhile, CorruptBatchError.
    """
    directory = os.path.dirname(segments[0].path)
    offset, open_transactions = _newest_snapshot(directory, segments[0].base_offset, end)
    walk = _Walk(offset, end, open_transactions)
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else end
        if following > offset:
            walk.segment(segment, count)
    return Transactions(min(open_transactions.values(), default=None), tuple(walk.aborted))


def _newest_snapshot(directory: str, start: int, end: int) -> tuple[int, dict[int, int]]:
    names = sorted((name for name in os.listdir(directory) if _SNAPSHOT.fullmatch(name)), reverse=True)
    for name in names:
        offset = int(name[:20])
        if offset > end:
            continue
        try:
            path = os.path.join(directory, name)
            entries = decode_snapshot(OsFileSystem().read_file(path), path)
        except (CheckpointCorruptError, KafkaStorageError):
            continue  # torn or gone: an older one, or the log itself, says the same
        first = {entry.producer_id: entry.current_txn_first_offset for entry in entries}
        return offset, {producer: begin for producer, begin in first.items() if begin != _NO_TRANSACTION}
    return start, {}


class _Walk:
    """Follows the transactions from offset ``start`` to ``end``."""

    def __init__(self, start: int, end: int, open_transactions: dict[int, int]) -> None:
        self._start = start
        self._end = end
        self._open = open_transactions
        self.aborted: list[AbortedTransaction] = []

    def segment(self, segment: SegmentFile, count: ReadCount | None) -> None:
        """Go through a segment's batches."""
        with OpenSegment(segment.path, count) as file:
            for header in headers(file, self._position(segment, count), file.size):
                if header.base_offset >= self._end:
                    return
                if header.base_offset >= self._start and header.is_transactional:
                    self._note(file, header)

    def _position(self, segment: SegmentFile, count: ReadCount | None) -> int:
        """Where to begin: closed segments are walked whole only when there is no snapshot of their end."""
        index = offset_index(segment, count)
        try:
            slot = index.floor(self._start - segment.base_offset - 1)
            return index.entry(slot).value if slot >= 0 else 0
        finally:
            index.close()

    def _note(self, file: OpenSegment, header: BatchHeader) -> None:
        if not header.is_control:
            self._open.setdefault(header.producer_id, header.base_offset)
            return
        first = self._open.pop(header.producer_id, None)
        if first is not None and _is_abort(file, header):
            self.aborted.append(AbortedTransaction(header.producer_id, first, header.last_offset))


def _is_abort(file: OpenSegment, header: BatchHeader) -> bool:
    try:
        batch = RecordBatch(file.read_at(header.position, header.size))
        marker = parse_end_transaction_marker(next(iter(batch.records())))
    except (KafkaError, StopIteration) as error:
        raise CorruptBatchError(file.path, header.position, header.base_offset, f"no marker: {error}") from error
    return marker is not None and not marker.commit
