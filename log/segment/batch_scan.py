"""Batch headers read from a file, a chunk at a time, for look-ups, recovery and checks.

All three magics are read. Magic 2 is the 61-byte header of ``tidelog.protocol.record.record_batch``. Magic 0 and 1 are
the messages of ``tidelog.protocol.record.message_set``; a compressed wrapper has the offset of its *last* inner
message. All have in common::

    offset 8 | size 4 | crc or leader epoch 4 | magic 1 | ...

A scan ends without an error before an incomplete last batch. An impossible header raises :class:`CorruptMessageError`,
which names the byte. No memory is allocated for a length from a header before the file is known to be that long.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple, Protocol

from tidelog.protocol.errors import CorruptMessageError
from tidelog.protocol.record.crc import crc32, crc32c
from tidelog.protocol.record.record_batch import HEADER, LOG_OVERHEAD, NO_TIMESTAMP, RECORD_BATCH_OVERHEAD

#: The smallest magic-0 message: crc 4, magic 1, attributes 1, key length 4, value length 4.
MIN_MESSAGE_SIZE = 14
HEADER_CHUNK_BYTES = 16 * 1024
BODY_CHUNK_BYTES = 1024 * 1024
CONTROL_MASK = 0x20
TRANSACTIONAL_MASK = 0x10

_OFFSET_AND_SIZE = Struct(">qi")
_TIMESTAMP = Struct(">q")
_UINT = Struct(">I")


class PositionalReader(Protocol):
    """Source of bytes by position, from which batches are read."""

    path: str

    def read_at(self, position: int, size: int) -> bytes: ...


class BatchHeader(NamedTuple):
    """The header fields of a batch, with its position and size in bytes. ``base_offset`` of magic 0 and 1 is the
    message's offset, which in a wrapper is the last inner one."""

    position: int
    size: int
    magic: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_offset_delta: int
    record_count: int

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)


def parse_header(buffer: bytes | memoryview, at: int, position: int, path: str) -> BatchHeader:
    """Parse the header at ``buffer[at:]``, which holds at least 61 bytes of a magic 2 batch, or 26 of an older message.

    Raises CorruptMessageError if a field has an impossible value.
    """
    magic = buffer[at + 16]
    if magic == 2:
        (base_offset, length, epoch, _, _, attributes, delta, _, max_timestamp, producer_id, producer_epoch, sequence,
         count) = HEADER.unpack_from(buffer, at)  # fmt: skip
        if length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD or delta < 0 or base_offset < 0:
            raise CorruptMessageError(f"impossible batch header at byte {position} of {path}")
        return BatchHeader(position, length + LOG_OVERHEAD, 2, base_offset, base_offset + delta, max_timestamp, epoch,
                           attributes, producer_id, producer_epoch, sequence, delta, count)  # fmt: skip
    offset, size = _OFFSET_AND_SIZE.unpack_from(buffer, at)
    if magic > 1 or size < MIN_MESSAGE_SIZE or offset < 0:
        raise CorruptMessageError(f"impossible batch header (magic {magic}, size {size}) at byte {position} of {path}")
    timestamp = _TIMESTAMP.unpack_from(buffer, at + 18)[0] if magic == 1 else NO_TIMESTAMP
    return BatchHeader(
        position, size + LOG_OVERHEAD, magic, offset, offset, timestamp, -1, buffer[at + 17], -1, -1, -1, 0, 1
    )


def _count_needed_bytes(buffer: bytes | memoryview, at: int) -> int:
    """Return the number of bytes that :func:`parse_header` needs at ``at``: old messages may be shorter than a magic-2
    header.
    """
    return RECORD_BATCH_OVERHEAD if buffer[at + 16] == 2 else LOG_OVERHEAD + MIN_MESSAGE_SIZE


def iter_headers(file: PositionalReader, start: int, end: int) -> Iterator[BatchHeader]:
    """Yield the headers of the whole batches between bytes ``start`` and ``end``.

    Raises CorruptMessageError at an impossible header, and what ``read_at`` raises.

    Small batches are read in chunks with their bodies. After a large batch the next header is read alone: in a fetch of
    1 MB batches, reading a chunk took 6 of 29 µs.
    """
    chunk = b""
    chunk_start = start
    position = start
    wanted = RECORD_BATCH_OVERHEAD
    while position + LOG_OVERHEAD + MIN_MESSAGE_SIZE <= end:
        at = position - chunk_start
        if at + RECORD_BATCH_OVERHEAD > len(chunk):
            chunk = file.read_at(position, min(wanted, end - position))
            chunk_start, at = position, 0
            if len(chunk) < LOG_OVERHEAD + MIN_MESSAGE_SIZE or len(chunk) < _count_needed_bytes(chunk, 0):
                return
        header = parse_header(chunk, at, position, file.path)
        wanted = HEADER_CHUNK_BYTES if header.size < HEADER_CHUNK_BYTES else RECORD_BATCH_OVERHEAD
        position += header.size
        if position > end:
            return
        yield header


def iter_batches(file: PositionalReader, start: int, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield whole batches between bytes ``start`` and ``end`` with their bytes; checksums are left to the caller.

    The view is valid until the next step. Raises CorruptMessageError at an impossible header, and what ``read_at``
    raises.
    """
    chunk = memoryview(b"")
    chunk_start = start
    position = start
    while position + LOG_OVERHEAD + MIN_MESSAGE_SIZE <= end:
        at = position - chunk_start
        if at + RECORD_BATCH_OVERHEAD > len(chunk):
            chunk = memoryview(file.read_at(position, min(BODY_CHUNK_BYTES, end - position)))
            chunk_start, at = position, 0
            if len(chunk) < LOG_OVERHEAD + MIN_MESSAGE_SIZE or len(chunk) < _count_needed_bytes(chunk, 0):
                return
        header = parse_header(chunk, at, position, file.path)
        size = header.size
        if position + size > end:
            return
        if at + size > len(chunk):
            chunk = memoryview(file.read_at(position, min(max(BODY_CHUNK_BYTES, size), end - position)))
            chunk_start, at = position, 0
            if len(chunk) < size:
                return
        yield header, chunk[at : at + size]
        position += size


def crc_matches(header: BatchHeader, batch: memoryview) -> bool:
    """Return whether the stored checksum fits the bytes: CRC-32C from the attributes on for magic 2, CRC-32 from the
    magic byte on for magic 0 and 1.
    """
    if header.magic == 2:
        return bool(_UINT.unpack_from(batch, 17)[0] == crc32c(batch[21:]))
    return bool(_UINT.unpack_from(batch, 12)[0] == crc32(batch[16:]))
