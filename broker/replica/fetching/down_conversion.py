"""Fetch v0-3: stored batches turned into the message sets that clients from before 0.11 read (KIP-283).

One partition's answer is at most MAX_CONVERTED_BYTES, because converted bytes are in memory while slices are not; the
client fetches the rest later. Within this bound the client's own limit applies. Up to v2 the client's limit is hard: a
first message beyond it is cut, which makes the client ask for more (KIP-74). At most ``MAX_CONVERTED_RECORDS`` records
of one request are converted; its later partitions get none, and the client fetches them again. Longer conversions are
done in a thread: everything here may run in any thread. A range of control batches has no messages. Reading continues
after such a range, or the client would ask for the same offset without end.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple, cast

from tidelog.broker.replica.partition import Partition
from tidelog.log.fetch import FetchIsolation
from tidelog.log.records.down_convert import ConversionLimit, down_convert, read_exactly
from tidelog.protocol.errors import CorruptMessageError, KafkaError, UnsupportedVersionError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.message_set import LegacyRecordBatch
from tidelog.protocol.record.record_batch import HEADER, LOG_OVERHEAD
from tidelog.protocol.transferable import TransferableRecords

MAX_CONVERTED_BYTES = 1024 * 1024
INLINE_BYTES, INLINE_RECORDS = 32 * 1024, 200
"""Records within both limits are converted on the loop, which is less work than to hand them to a thread."""
_LAST_VERSION_OF_MAGIC_0 = 1
_LAST_VERSION_WITH_HARD_LIMIT = 2
_MAX_RANGES = 100
"""Largest number of ranges of control batches that one request skips; after them it is answered without records."""


class Conversion(NamedTuple):
    """One partition's records to convert. It owns ``records``, which ``convert`` releases."""

    partition: Partition
    records: TransferableRecords | bytes
    version: int
    fetch_offset: int
    isolation: FetchIsolation
    max_bytes: int
    """The client's limit for this partition."""


def fits_turn(conversions: Sequence[Conversion]) -> bool:
    """Return whether all of these can be converted in one turn of the loop."""
    left = INLINE_RECORDS
    if sum(len(conversion.records) for conversion in conversions) > INLINE_BYTES:
        return False
    for conversion in conversions:
        # A slice that fills its limit may be the beginning of a large batch, which is read whole to be converted.
        if len(conversion.records) >= conversion.max_bytes and conversion.max_bytes <= INLINE_BYTES:
            return False
        left -= _count_records(conversion.records, left)
    return left >= 0


def _count_records(records: TransferableRecords | bytes, enough: int) -> int:
    """Return a lower bound of the number of records in a short range, from its headers; more than ``enough`` if the
    headers do not have the number."""
    data = records
    if isinstance(records, TransferableRecords):
        try:
            data = os.pread(records.file.fileno(), records.size, records.position)
        except OSError:
            return enough + 1
    count = 0
    try:
        for batch in iter_batches(cast(bytes, data)):
            if isinstance(batch, LegacyRecordBatch):
                count += enough + 1 if batch.is_compressed else 1
            else:
                count += batch.record_count
            if count > enough:
                break
    except CorruptMessageError:
        return enough + 1
    return count


def convert(conversion: Conversion, limit: ConversionLimit) -> bytes:
    """Convert records to the message set for the client. Any thread; blocks on disk and codecs. Releases the records.

    Raises UnsupportedVersionError if the topic forbids conversion, UnsupportedCompressionTypeError for zstd,
    CorruptMessageError, KafkaStorageError.
    """
    partition, records, version, offset, isolation, allowed = conversion
    magic = 0 if version <= _LAST_VERSION_OF_MAGIC_0 else 1
    max_bytes = min(allowed, MAX_CONVERTED_BYTES)
    keeps_first = version > _LAST_VERSION_WITH_HARD_LIMIT
    for _ in range(_MAX_RANGES):
        try:
            if not partition.config.message_downconversion_enable:
                raise UnsupportedVersionError(f"message.downconversion.enable is false for {partition.topic_partition}")
            converted = b"".join(
                down_convert([records], magic, offset, max_bytes, first_whole=keeps_first, limit=limit)
            )
            if converted or limit.records <= 0 or not isinstance(records, TransferableRecords):
                return converted
            offset = _offset_after(records, offset)
        finally:
            if isinstance(records, TransferableRecords):
                records.release()
        records = partition.read_in_thread(
            offset, MAX_CONVERTED_BYTES, isolation=isolation, min_one_message=True
        ).records
        if not records:
            return b""
    return b""


def convert_all(conversions: Sequence[Conversion]) -> list[bytes | KafkaError]:
    """Convert each partition of a request; return the records or the error of each, in the order given."""
    limit = ConversionLimit()
    return [_converted_or_error(conversion, limit) for conversion in conversions]


def _converted_or_error(conversion: Conversion, limit: ConversionLimit) -> bytes | KafkaError:
    try:
        return convert(conversion, limit)
    except KafkaError as error:
        return error


def _offset_after(records: TransferableRecords, offset: int) -> int:
    """Return the offset after the last complete batch of a range. Raises KafkaStorageError."""
    position, end = records.position, records.position + records.size
    while end - position >= HEADER.size:
        header = HEADER.unpack(read_exactly(records, HEADER.size, position))
        position += LOG_OVERHEAD + header[1]
        if position <= end:
            offset = header[0] + header[6] + 1
    return offset
