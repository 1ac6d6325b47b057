"""Fetch v0-3: stored batches turned into the message sets that clients from before 0.11 read (KIP-283).

Bounded: one partition's answer is at most MAX_CONVERTED_BYTES, whatever the client asks, since converted bytes live in
memory while slices do not; the client comes again for the rest. Within that it is what the client allows: up to v2 as a
hard limit, so that a first message beyond it comes cut, which tells the client to ask for more (KIP-74). Large ranges
are converted in a thread: everything here may run in any thread. A range of control batches only has no messages;
reading goes on behind it, or the client would ask for the same offset for ever.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from log.fetch import FetchIsolation
from log.records.down_convert import down_convert
from log.unified_log import UnifiedLog
from protocol.errors import KafkaError, UnsupportedVersionError
from protocol.record_batch import HEADER, LOG_OVERHEAD
from protocol.transferable import TransferableRecords

MAX_CONVERTED_BYTES = 1024 * 1024
INLINE_BYTES = 32 * 1024
"""Ranges up to this are converted on the loop: less work than asking a thread."""
_LAST_VERSION_OF_MAGIC_0 = 1
_LAST_VERSION_WITH_HARD_LIMIT = 2
_MAX_RANGES = 100
"""So many ranges of control batches are skipped in one request, then the client is told that there is nothing yet."""


class Conversion(NamedTuple):
    """One partition's records to convert. Owns ``records``."""

    log: UnifiedLog
    records: TransferableRecords | bytes
    version: int
    fetch_offset: int
    isolation: FetchIsolation
    max_bytes: int
    """What the client allows for this partition."""


def convert(conversion: Conversion) -> bytes:
    """The message set for the client. Any thread; blocks on disk and codecs. Releases the records.

    Raises UnsupportedVersionError where the topic forbids conversion, UnsupportedCompressionTypeError for zstd,
    CorruptMessageError, KafkaStorageError.
    """
    log, records, version, offset, isolation, allowed = conversion
    magic = 0 if version <= _LAST_VERSION_OF_MAGIC_0 else 1
    max_bytes = min(allowed, MAX_CONVERTED_BYTES)
    whole = version > _LAST_VERSION_WITH_HARD_LIMIT
    for _ in range(_MAX_RANGES):
        try:
            if not log.config.message_downconversion_enable:
                raise UnsupportedVersionError(f"message.downconversion.enable is false for {log.topic_partition}")
            converted = b"".join(down_convert([records], magic, offset, max_bytes, first_whole=whole))
            if converted or not isinstance(records, TransferableRecords):
                return converted
            offset = _offset_behind(records, offset)
        finally:
            if isinstance(records, TransferableRecords):
                records.release()
        records = log.read(offset, MAX_CONVERTED_BYTES, isolation=isolation, min_one_message=True).records
        if not records:
            return b""
    return b""


def code_and_records(conversion: Conversion) -> tuple[int, bytes]:
    """What ``convert`` gives, an error as its code."""
    try:
        return 0, convert(conversion)
    except KafkaError as error:
        return error.code, b""


def _offset_behind(records: TransferableRecords, offset: int) -> int:
    """The offset after the last whole batch of a range."""
    position, end = records.position, records.position + records.size
    while end - position >= HEADER.size:
        header = HEADER.unpack(os.pread(records.file.fileno(), HEADER.size, position))
        position += LOG_OVERHEAD + header[1]
        if position <= end:
            offset = header[0] + header[6] + 1
    return offset
