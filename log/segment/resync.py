"""Position at which reading resumes after damage in a segment: one rule for readers, audits, exports and checks.

    the batch's own end      if the next batch begins there, or the bytes end there
    an indexed batch         the first one after the damage that the offset index names and whose checksum is right
    the end of the bytes     if there is neither

The nearest of them is taken: a damaged size that happens to lead to another batch must not hide the batches between.
The bytes are not searched for anything that looks like a batch, as a record's value may hold a batch of another log.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tidelog.log.segment.batch_scan import BatchHeader, PositionalReader, crc_matches, parse_header
from tidelog.protocol.errors import CorruptMessageError
from tidelog.protocol.record.record_batch import RECORD_BATCH_OVERHEAD

#: Bytes of the smallest message of magic 0, which is shorter than a header of magic 2.
_SHORTEST_HEADER = 26


def find_resume_position(file: PositionalReader, position: int, end: int, indexed: Iterable[tuple[int, int]]) -> int:
    """Find the byte at which reading goes on after the damaged batch at ``position``: above it, at most ``end``.

    ``indexed`` has byte position and last offset of the offset index's entries, in order; those before the damage may
    be missing. In an entry of Apache Kafka the last offset is that of an append, which may be several batches.
    """
    own = _find_own_end(file, position, end)
    for entry_position, last_offset in indexed:
        if entry_position <= position:
            continue
        if entry_position >= own:
            break
        header = _whole_batch_at(file, entry_position, end)
        if header is not None and header.last_offset <= last_offset:
            return entry_position
    return own


def reaches_next(file: PositionalReader, position: int, last_offset: int) -> bool:
    """Return whether ``last_offset``, that of a batch, is not below the offset of the next batch, at ``position``.

    No checksum covers offsets. A batch whose offset jumps ahead is damaged if this holds; otherwise a cleaner may have
    removed the records before it.
    """
    header = _header_at(file, position, sys.maxsize)
    return header is not None and header.base_offset <= last_offset


def is_misplaced(file: PositionalReader, header: BatchHeader, next_offset: int) -> bool:
    """Return whether a batch's offset must be wrong: it is below ``next_offset``, or jumps ahead and reaches the next
    batch. No checksum covers offsets."""
    if header.base_offset <= next_offset:
        return header.base_offset < next_offset
    return reaches_next(file, header.position + header.size, header.last_offset)


def _find_own_end(file: PositionalReader, position: int, end: int) -> int:
    """Find the end of the damaged batch if its size is plausible, else ``end``."""
    header = _header_at(file, position, end)
    if header is None or position + header.size >= end:
        return end
    if _whole_batch_at(file, position, end) is not None:
        return position + header.size  # the checksum is right: only the offset is wrong, which it does not cover
    following = _header_at(file, position + header.size, end)
    if following is None or following.base_offset <= header.base_offset:
        return end
    is_next = following.base_offset == header.last_offset + 1
    return position + header.size if is_next or _whole_batch_at(file, following.position, end) is not None else end


def _header_at(file: PositionalReader, position: int, end: int) -> BatchHeader | None:
    data = file.read_at(position, min(RECORD_BATCH_OVERHEAD, end - position))
    if len(data) < _SHORTEST_HEADER or (data[16] == 2 and len(data) < RECORD_BATCH_OVERHEAD):
        return None
    try:
        header = parse_header(data, 0, position, file.path)
    except CorruptMessageError:
        return None
    return header if position + header.size <= end else None


def _whole_batch_at(file: PositionalReader, position: int, end: int) -> BatchHeader | None:
    """Read the header of the batch at ``position``; None unless the batch is complete and its checksum right."""
    header = _header_at(file, position, end)
    if header is None or not crc_matches(header, memoryview(file.read_at(position, header.size))):
        return None
    return header
