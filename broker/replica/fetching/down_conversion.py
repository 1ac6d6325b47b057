"""Fetch v0-3: stored batches turned into the message sets that clients from before 0.11 read (KIP-283).

One partition's answer is at most MAX_CONVERTED_BYTES, because converted bytes are in memory while slices are not; the
client fetches the rest later. Only its first message may be larger: from v3 on it is whole. Within this bound the
client's own limit applies. Up to v2 that limit is hard: a first message beyond it is cut, which makes the client ask
for more (KIP-74). At most ``MAX_CONVERTED_RECORDS`` records of one request are converted; its later partitions get
none, and the client fetches them again. Conversions beyond ``INLINE_BYTES`` or ``INLINE_RECORDS``, and those of
compressed batches, are done in a thread: everything here may run in any thread. A range of control batches has no
messages. Reading continues after such a range, or the client would ask for the same offset without end. A request that
has passed over MAX_PASSED_BYTES ends there, and the next one goes on there (``Partition.passed_over``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidelog.broker.replica.partition import Partition, PassedOver
from tidelog.log.fetch import FetchIsolation
from tidelog.log.records.down_convert import ConversionLimit, down_convert, read_exactly
from tidelog.log.segment.batch_scan import BatchHeader, iter_headers
from tidelog.protocol.errors import CorruptMessageError, KafkaError, UnsupportedVersionError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.message_set import LegacyRecordBatch
from tidelog.protocol.transferable import TransferableRecords

MAX_CONVERTED_BYTES = 1024 * 1024
INLINE_BYTES, INLINE_RECORDS = 32 * 1024, 200
"""Uncompressed records within both limits are converted on the loop, which is less work than to hand them to a
thread."""
_LAST_VERSION_OF_MAGIC_0 = 1
_LAST_VERSION_WITH_HARD_LIMIT = 2
_MAX_PASSED_RANGES = 8
"""Largest number of ranges that are noted for a partition. Clients that are far apart find one each."""


class Conversion(NamedTuple):
    """One partition's records to convert. It owns ``records``, which ``convert`` releases."""

    partition: Partition
    records: TransferableRecords | bytes
    version: int
    fetch_offset: int
    isolation: FetchIsolation
    max_bytes: int
    """The client's limit for this partition."""
    leader_epoch: int
    """The partition's when the records were read: a log is not truncated within one."""


def fits_turn(conversions: Sequence[Conversion]) -> bool:
    """Return whether all of these can be converted in one turn of the loop."""
    left = INLINE_RECORDS
    if sum(len(conversion.records) for conversion in conversions) > INLINE_BYTES:
        return False
    for conversion in conversions:
        left -= _count_records(conversion, left)
        if left < 0:
            return False
    return True


def _count_records(conversion: Conversion, enough: int) -> int:
    """Count the records of a short range by its headers.

    Return ``enough`` + 1, too, if the headers cannot tell how much there is to convert: a few bytes of a compressed
    batch may hold megabytes. Return it also if no complete batch is certain to have a record from the fetch offset on:
    ``convert`` may then read another range, of up to MAX_CONVERTED_BYTES.
    """
    data = conversion.records
    if isinstance(data, TransferableRecords):
        try:
            data = os.pread(data.file.fileno(), data.size, data.position)
        except OSError:
            return enough + 1
    count, has_some = 0, False
    try:
        for batch in iter_batches(data):
            if batch.is_compressed:
                return enough + 1
            if isinstance(batch, LegacyRecordBatch):
                count, has_some = count + 1, True
            elif not batch.is_control:
                count += batch.record_count
                is_dense = batch.record_count == batch.last_offset_delta + 1
                has_some = has_some or (is_dense and batch.last_offset >= conversion.fetch_offset)
            if count > enough:
                break
    except CorruptMessageError:
        return enough + 1
    return count if has_some else enough + 1


def convert(conversion: Conversion, limit: ConversionLimit) -> bytes:
    """Convert records to the message set for the client. Any thread; blocks on disk and codecs. Releases the records.

    Raises UnsupportedVersionError if the topic forbids conversion, what ``down_convert`` raises, and what
    ``Partition.read_in_thread`` raises.
    """
    partition, records, version, offset, isolation, allowed, _ = conversion
    magic = 0 if version <= _LAST_VERSION_OF_MAGIC_0 else 1
    max_bytes = min(allowed, MAX_CONVERTED_BYTES)
    first_bytes = allowed if version <= _LAST_VERSION_WITH_HARD_LIMIT else None
    while True:
        try:
            if not partition.config.message_downconversion_enable:
                raise UnsupportedVersionError(f"message.downconversion.enable is false for {partition.topic_partition}")
            source, end = records, offset
            if isinstance(records, TransferableRecords):
                source, end = _skip_markers(records, offset)
            converted = b"".join(down_convert([source], magic, offset, max_bytes, first_bytes=first_bytes, limit=limit))
            if converted or min(max_bytes, limit.records) <= 0 or not isinstance(source, TransferableRecords):
                return converted
            offset = _pass_over(conversion, max(offset, _end_of(source, end)))
            limit.passed_bytes -= len(records)
        finally:
            if isinstance(records, TransferableRecords):
                records.release()
        if limit.passed_bytes <= 0:
            return b""
        records = partition.read_in_thread(
            offset, MAX_CONVERTED_BYTES, isolation=isolation, min_one_message=True
        ).records
        if not records:
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


class _Range:
    """Reader of the batch headers of a fetched range, many at once."""

    path = "a fetched range"

    def __init__(self, records: TransferableRecords) -> None:
        self._records = records

    def read_at(self, position: int, size: int) -> bytes:
        """Read bytes of the range's file. Raises KafkaStorageError."""
        return read_exactly(self._records, size, position)

    def headers(self) -> Iterator[BatchHeader]:
        """Iterate over the headers of the complete batches. Raises KafkaStorageError, CorruptMessageError."""
        records = self._records
        return iter_headers(self, records.position, records.position + records.size)


def _skip_markers(records: TransferableRecords, offset: int) -> tuple[TransferableRecords, int]:
    """Return the range without the control batches at its beginning, of which only the headers are read, and the offset
    after them; ``offset`` if there are none. The result does not retain the file. Raises KafkaStorageError,
    CorruptMessageError."""
    position, end = records.position, records.position + records.size
    for header in _Range(records).headers():
        if not header.is_control:
            break
        position, offset = header.position + header.size, header.last_offset + 1
    return TransferableRecords(records.file, position, end - position), offset


def _end_of(records: TransferableRecords, offset: int) -> int:
    """Return the offset after the last complete batch of a range; ``offset`` if there is none. Raises
    KafkaStorageError, CorruptMessageError."""
    for header in _Range(records).headers():
        offset = header.last_offset + 1
    return offset


def _pass_over(conversion: Conversion, end: int) -> int:
    """Note that no messages follow the fetch offset below ``end``. Return the offset at which to go on: it is higher if
    an earlier request came further."""
    partition, epoch, first = conversion.partition, conversion.leader_epoch, conversion.fetch_offset
    others = []
    for known in partition.passed_over:
        if known.leader_epoch == epoch and known.first <= end and first <= known.end:
            first, end = min(first, known.first), max(end, known.end)
        elif known.leader_epoch == epoch:
            others.append(known)
    if end > first:
        partition.passed_over = (*others[1 - _MAX_PASSED_RANGES :], PassedOver(epoch, first, end))
    return end
