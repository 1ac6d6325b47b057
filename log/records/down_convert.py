"""Down-conversion: stored batches in the format that an old client reads (Fetch v0, v1: magic 0; v2, v3: magic 1).

    stored range --(one batch at a time)--> control batch:         dropped (old formats have none)
                                            not newer than wanted: as it is
                                            newer:                 decoded, headers (and for magic 0 timestamps)
                                                                   dropped, built with the same codec and offsets
                                        --> cut at max_bytes: an old client ignores an incomplete last message

The conversion is lazy: each step holds one stored batch, its records and its converted form. An uncompressed magic 2
batch becomes single messages, so those below the fetch offset are left out (librdkafka needs that); a compressed one
becomes one wrapper with all its messages, or nothing if all are below. If they are more than ``ConversionLimit``
allows, the wrapper has the first ones from the fetch offset on, and the client fetches the rest later. The old formats
have no number for zstd: a zstd batch at the beginning is an error; a later one ends the range, and the client's next
fetch gets the error (KIP-110).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from itertools import islice

from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError, UnsupportedCompressionTypeError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.compression import CompressionType
from tidelog.protocol.record.message_set import LegacyRecordBatch, MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MIN_ENTRY_BYTES,
    Buffer,
    Record,
    RecordBatch,
)
from tidelog.protocol.transferable import TransferableRecords

_SIZE = struct.Struct(">i")
_SIZE_POSITION = 8

Source = TransferableRecords | Buffer

MAX_CONVERTED_RECORDS = 50_000
"""Largest number of records that are converted for one request. Each takes 7 µs, and some hundred bytes meanwhile."""
MAX_PASSED_BYTES = 8 * 1024 * 1024
"""Bytes of ranges without messages after which a request looks no further. 1 MiB of markers takes 35 ms."""


class ConversionLimit:
    """Number of records that may still be converted, and of bytes without messages that may still be passed over;
    shared by the partitions of a request, used by one thread."""

    __slots__ = ("passed_bytes", "records")

    def __init__(self, records: int = MAX_CONVERTED_RECORDS) -> None:
        self.records = records
        self.passed_bytes = MAX_PASSED_BYTES


def down_convert(
    sources: Iterable[Source],
    to_magic: int,
    first_offset: int,
    max_bytes: int,
    *,
    first_bytes: int | None = None,
    limit: ConversionLimit | None = None,
) -> Iterator[bytes]:
    """Convert the batches of ``sources`` (slices of files, or bytes) to format ``to_magic`` (0 or 1), piece by piece.

    ``first_offset`` is the fetch offset. At most ``max_bytes`` are yielded in all, and the last message may be cut.
    Only the first message may be larger: up to ``first_bytes`` of it are yielded, or all of it if that is None. Nothing
    is yielded if the range has no record to convert, as with control batches (the caller reads on after it), or if
    ``limit`` is used up. The sources are not released.
    This blocks on disk and codecs: run it in a thread when the range is large.

    Raises UnsupportedCompressionTypeError when the first batch to convert is zstd or of an unknown codec;
    MessageTooLargeError when a batch decompresses to more than DEFAULT_MAX_DECOMPRESSED_BYTES; CorruptMessageError and
    InvalidRecordError on damage; KafkaStorageError when reading fails.
    """
    remaining, is_first = max_bytes, True
    limit = limit or ConversionLimit()
    for batch in _iter_stored_batches(sources):
        if limit.records <= 0:
            return
        try:
            piece = convert_batch(batch, to_magic, first_offset, limit)
        except UnsupportedCompressionTypeError:
            if is_first:
                raise
            return
        if not piece:
            continue
        yield piece[: max(remaining, _bound_first(piece, first_bytes)) if is_first else remaining]
        remaining -= len(piece)
        if remaining <= 0:
            return
        is_first = False


def _bound_first(piece: bytes, first_bytes: int | None) -> int:
    """Return how many bytes of the first message may be sent: all of them, or at most ``first_bytes``."""
    size: int = LOG_OVERHEAD + _SIZE.unpack_from(piece, _SIZE_POSITION)[0]
    return size if first_bytes is None else min(size, first_bytes)


def convert_batch(
    batch: RecordBatch | LegacyRecordBatch, to_magic: int, first_offset: int, limit: ConversionLimit
) -> bytes:
    """Convert one batch to format ``to_magic``; empty when nothing of it remains. Raises as :func:`down_convert`.

    Records are left out at the batch's end if ``limit`` does not allow all; ``limit`` is used up then.
    """
    if batch.is_control:
        return b""
    if batch.compression_type == CompressionType.ZSTD:
        raise UnsupportedCompressionTypeError("Down-conversion of zstandard-compressed batches is not supported")
    if batch.magic <= to_magic:
        return bytes(batch.view())
    records = _convert_records(batch, first_offset, limit.records)
    limit.records -= len(records)
    append_time = batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None
    return build_message_set(records, MessageSetOptions(to_magic, batch.compression_type, None, append_time))


def _convert_records(batch: RecordBatch | LegacyRecordBatch, first_offset: int, max_records: int) -> list[Record]:
    """Return the records that a batch's converted form holds, at most ``max_records``."""
    if isinstance(batch, LegacyRecordBatch):
        messages = list(batch.records(DEFAULT_MAX_DECOMPRESSED_BYTES))
        if len(messages) <= max_records:
            return messages
        return [message for message in messages if message.offset >= first_offset][:max_records]
    section = batch.uncompressed_section(DEFAULT_MAX_DECOMPRESSED_BYTES)
    if batch.record_count <= max_records:
        records = list(batch.parse(section))
        kept = [record for record in records if record.offset >= first_offset]
        return records if kept and batch.is_compressed else kept
    return list(islice(batch.parse_from(section, first_offset), max_records))


def _iter_stored_batches(sources: Iterable[Source]) -> Iterator[RecordBatch | LegacyRecordBatch]:
    """Yield the whole batches of the sources; slices of files are read one batch at a time."""
    for source in sources:
        if isinstance(source, TransferableRecords):
            for stored in _read_batches(source):
                yield from iter_batches(stored)
        else:
            yield from iter_batches(source)


def _read_batches(source: TransferableRecords) -> Iterator[bytes]:
    position, end = source.position, source.position + source.size
    while end - position >= LOG_OVERHEAD:
        (length,) = _SIZE.unpack(read_exactly(source, _SIZE.size, position + _SIZE_POSITION))
        if length < MIN_ENTRY_BYTES:
            raise CorruptMessageError(f"Entry at byte {position} has size {length}, less than {MIN_ENTRY_BYTES}")
        size = LOG_OVERHEAD + length
        if size > end - position:
            return
        yield read_exactly(source, size, position)
        position += size


def read_exactly(source: TransferableRecords, size: int, position: int) -> bytes:
    """Read exactly ``size`` bytes. Raises KafkaStorageError when the file cannot give them."""
    try:
        data = os.pread(source.file.fileno(), size, position)
        while len(data) < size and (more := os.pread(source.file.fileno(), size - len(data), position + len(data))):
            data += more
    except OSError as error:
        raise KafkaStorageError(f"Reading {size} bytes at {position} failed: {error}") from error
    if len(data) < size:
        raise KafkaStorageError(f"The file ends {size - len(data)} bytes before the end of the fetched range")
    return data
