"""Walks over the batch headers of segment files: where the valid bytes end, and at which offset.

A batch that is cut by the end of the file, or a last batch with a wrong CRC, is a write under way or a torn tail: the
log ends before it, as recovery would end it. It also ends before an impossible header. The CRCs of earlier batches are
left to the reader of their records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.log.segment.batch_scan import BatchHeader, crc_matches, iter_headers, parse_header
from tidelog.pipeline.errors import CorruptBatchError
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.protocol.errors import CorruptMessageError


class ValidEnd(NamedTuple):
    """End of a segment's valid bytes: the byte position, and the offset that the next record gets."""

    position: int
    next_offset: int


def headers(file: OpenSegment, start: int, end: int) -> Iterator[BatchHeader]:
    """Yield the headers of the complete batches between two bytes.

    Raises CorruptBatchError at an impossible header, other PipelineErrors when the file cannot be read.
    """
    position, offset = start, -1
    try:
        for header in iter_headers(file, start, end):
            yield header
            position, offset = header.position + header.size, header.last_offset + 1
    except CorruptMessageError as error:
        raise CorruptBatchError(file.path, position, offset, str(error)) from error


def valid_end(file: OpenSegment, base_offset: int, start: int = 0) -> ValidEnd:
    """Find the end of the complete, valid batches from byte ``start`` (a batch's beginning) on.

    Without such a batch the next offset is ``base_offset``. Only the last batch's CRC is checked: a torn write leaves
    damage at the end alone.
    """
    last: BatchHeader | None = None
    before = ValidEnd(start, base_offset)
    try:
        for header in iter_headers(file, start, file.size):
            if last is not None:
                before = ValidEnd(last.position + last.size, last.last_offset + 1)
            last = header
    except CorruptMessageError:
        pass  # zeros or a half-written header after the last batch: the valid bytes end before them
    if last is None or not crc_matches(last, memoryview(file.read_at(last.position, last.size))):
        return before
    return ValidEnd(last.position + last.size, last.last_offset + 1)


def header_at(file: OpenSegment, position: int) -> BatchHeader | None:
    """Read the header of the batch that begins at ``position``; None if the file ends before the header does.

    Raises CorruptBatchError when the bytes there are not a batch header, other PipelineErrors when they cannot be read.
    """
    data = file.read_at(position, 61)
    if len(data) < 26 or (data[16] == 2 and len(data) < 61):
        return None
    try:
        return parse_header(data, 0, position, file.path)
    except CorruptMessageError as error:
        raise CorruptBatchError(file.path, position, -1, str(error)) from error


def next_offset_of(path: str, base_offset: int, count: ReadCount | None = None) -> int:
    """Find the offset after the last record of a closed segment. Raises FileNotFoundError, PipelineError."""
    with OpenSegment(path, count) as file:
        return valid_end(file, base_offset).next_offset
