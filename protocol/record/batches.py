"""Walk over the batches of a log or of a records field: record batches (magic 2), messages and wrappers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidelog.protocol.errors import CorruptMessageError
from tidelog.protocol.record.record_batch import (
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MAGIC_V2,
    MIN_ENTRY_BYTES,
    RECORD_BATCH_OVERHEAD,
    Buffer,
    RecordBatch,
)

if TYPE_CHECKING:
    from tidelog.protocol.record.message_set import LegacyRecordBatch

_OFFSET_AND_LENGTH = struct.Struct(">qi")


def iter_batches(buffer: Buffer, position: int = 0) -> Iterator[RecordBatch | LegacyRecordBatch]:
    """Walk the entries of a log or a records field, of any magic; a cut last entry ends the walk without an error.

    Raises CorruptMessageError on a size below its header's, an unknown magic, or a message whose fields do not fit its
    size: the walk cannot continue.
    """
    end = len(buffer)
    while end - position > MAGIC_OFFSET:
        offset, length = _OFFSET_AND_LENGTH.unpack_from(buffer, position)
        if length < MIN_ENTRY_BYTES:
            raise CorruptMessageError(
                f"Entry at offset {offset} has size {length}, below the minimum {MIN_ENTRY_BYTES}"
            )
        magic = buffer[position + MAGIC_OFFSET]
        if magic > MAGIC_V2:
            raise CorruptMessageError(f"Entry at offset {offset} has unknown magic {magic}")
        if magic == MAGIC_V2 and length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD:
            raise CorruptMessageError(f"Record batch at offset {offset} has size {length}, below its header's")
        if length > end - position - LOG_OVERHEAD:
            return
        if magic == MAGIC_V2:
            yield RecordBatch(buffer, position)
        else:
            from tidelog.protocol.record.message_set import LegacyRecordBatch  # for old clients and old segments only

            yield LegacyRecordBatch(buffer, position)
        position += LOG_OVERHEAD + length
