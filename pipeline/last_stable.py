"""The first offset of the oldest open transaction of a log, without its broker.

    newest producer snapshot at or below the end     -> transactions that were open there
    batch headers from there to the end              -> transactions that began, markers that ended some

The broker takes a snapshot whenever a segment rolls and when it stops, so the walk covers the active segment at most.
A damaged or missing snapshot only lengthens it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from log.batch_scan import BatchHeader
from log.checkpoints import CheckpointCorruptError
from log.file_system import OsFileSystem
from log.producer_snapshot import decode_snapshot
from pipeline.batch_walk import headers
from pipeline.segment_files import OpenSegment, ReadCount, SegmentFile
from protocol.errors import KafkaStorageError

_SNAPSHOT = re.compile(r"(\d{20})\.snapshot")
_NO_TRANSACTION = -1


def first_unstable_offset(segments: Sequence[SegmentFile], end: int, count: ReadCount | None = None) -> int | None:
    """The first offset of the oldest transaction that is open at ``end``; None when none is.

    Raises FileNotFoundError when a segment goes meanwhile, CorruptBatchError.
    """
    directory = os.path.dirname(segments[0].path)
    offset, open_transactions = _newest_snapshot(directory, segments[0].base_offset, end)
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else end
        if following > offset:
            _walk(segment, offset, end, open_transactions, count)
    return min(open_transactions.values(), default=None)


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


def _walk(
    segment: SegmentFile, start: int, end: int, open_transactions: dict[int, int], count: ReadCount | None
) -> None:
    with OpenSegment(segment.path, count) as file:
        for header in headers(file, 0, file.size):
            if header.base_offset >= end:
                return
            if header.base_offset >= start and header.is_transactional:
                _note(header, open_transactions)


def _note(header: BatchHeader, open_transactions: dict[int, int]) -> None:
    if header.is_control:
        open_transactions.pop(header.producer_id, None)
    else:
        open_transactions.setdefault(header.producer_id, header.base_offset)
