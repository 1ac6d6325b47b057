"""New offsets for validated records, when the log end has moved before they are appended.

Records that take long to validate are validated in a thread, for the log end offset of that moment. Appends meanwhile
move the log end: then the batch, or each message of an old set, gets a new offset in place. Only a wrapper of magic 0
cannot be changed in place, as its inner messages hold absolute offsets: it is validated again.
"""

from __future__ import annotations

import struct

from tidelog.log.records.work_budget import AppendPostponedError
from tidelog.log.validation.result import ValidationResult
from tidelog.protocol.record.record_batch import COMPRESSION_MASK, MAGIC_OFFSET, MAGIC_V0, MAGIC_V2

_OFFSET = struct.Struct(">q")
_OLD_ATTRIBUTES_OFFSET = MAGIC_OFFSET + 1


class StaleOffsetsError(AppendPostponedError):
    """The log end has moved, and these records cannot get new offsets in place: validate them again."""


def relocate(result: ValidationResult, next_offset: int) -> ValidationResult:
    """Give ``result`` offsets from ``next_offset`` on, which are written into its records. Raises StaleOffsetsError."""
    distance = next_offset - result.first_offset
    if not distance:
        return result
    view = memoryview(result.records)
    if view.readonly:
        view = memoryview(bytearray(view))
    magic = view[MAGIC_OFFSET]
    if magic == MAGIC_V0 and view[_OLD_ATTRIBUTES_OFFSET] & COMPRESSION_MASK:
        raise StaleOffsetsError
    summaries = tuple(
        summary._replace(base_offset=summary.base_offset + distance, last_offset=summary.last_offset + distance)
        for summary in result.batches
    )
    for summary in summaries:
        # The offset field of an old message is its own offset; that of a wrapper is the offset of its last message.
        _OFFSET.pack_into(view, summary.position, summary.base_offset if magic == MAGIC_V2 else summary.last_offset)
    newest = result.offset_of_max_timestamp
    return result._replace(
        records=view,
        first_offset=next_offset,
        last_offset=result.last_offset + distance,
        offset_of_max_timestamp=newest if newest < 0 else newest + distance,
        batches=summaries,
    )
