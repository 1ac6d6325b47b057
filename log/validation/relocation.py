"""New offsets and leader epoch for validated records, when log end or epoch have changed before they are appended.

Records that take long to validate are validated in a thread, for the log end offset and leader epoch of that moment.
Appends meanwhile move the log end, and this broker may lead in a later epoch: then the batch, or each message of an old
set, gets a new offset in place, and a batch the new epoch. Only a wrapper of magic 0 cannot be changed in place, as its
inner messages hold absolute offsets: it is validated again.
"""

from __future__ import annotations

import struct

from tidelog.log.records.work_budget import AppendPostponedError
from tidelog.log.validation.result import ValidationResult
from tidelog.protocol.record.record_batch import (
    COMPRESSION_MASK,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MAGIC_V0,
    MAGIC_V2,
    assign_offset_and_epoch,
)

_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_OLD_ATTRIBUTES_OFFSET = MAGIC_OFFSET + 1


class StaleOffsetsError(AppendPostponedError):
    """The log end has moved, and these records cannot get new offsets in place: validate them again."""


def relocate(result: ValidationResult, next_offset: int, leader_epoch: int) -> ValidationResult:
    """Give ``result`` offsets from ``next_offset`` on and this leader epoch, which are written into its records. Raises
    StaleOffsetsError."""
    distance = next_offset - result.first_offset
    view = memoryview(result.records)
    magic = view[MAGIC_OFFSET]
    if not distance and (magic != MAGIC_V2 or _EPOCH.unpack_from(view, LOG_OVERHEAD)[0] == leader_epoch):
        return result
    if view.readonly:
        view = memoryview(bytearray(view))
    if magic == MAGIC_V0 and view[_OLD_ATTRIBUTES_OFFSET] & COMPRESSION_MASK:
        raise StaleOffsetsError
    summaries = tuple(
        summary._replace(base_offset=summary.base_offset + distance, last_offset=summary.last_offset + distance)
        for summary in result.batches
    )
    for summary in summaries:
        if magic == MAGIC_V2:
            assign_offset_and_epoch(view, summary.position, summary.base_offset, leader_epoch)
        else:  # an old message has its own offset, a wrapper that of its last message
            _OFFSET.pack_into(view, summary.position, summary.last_offset)
    newest = result.offset_of_max_timestamp
    return result._replace(
        records=view,
        first_offset=next_offset,
        last_offset=result.last_offset + distance,
        offset_of_max_timestamp=newest if newest < 0 else newest + distance,
        batches=summaries,
    )
