"""Look-ups in one log: candidates from an index, newest first, each compared with its record.

    key         KeyIndex.select           -> offsets whose hash and time match
    tag         TagIndex.select_newest    -> offsets whose hash matches
    time only   the log itself, in windows from its end; batches older than wanted are not decoded

A candidate becomes a result only if the record at its offset still exists and has the key, tag and time of the query.
Records below the log start offset, removed by the cleaner, or of another key with the same hash are left out. So no
result is stale.

A look-up blocks on the disk: call it in worker threads. It returns records below the high watermark, as a consumer
gets them. With ``committed`` these are the records below the last stable offset that no aborted transaction wrote, as
for ``isolation.level=read_committed``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.fetch import FetchIsolation
from tidelog.log.find.engine import engine
from tidelog.log.find.engine.reference import tag_of
from tidelog.log.find.hashing import key_hash, key_seed, tag_hash
from tidelog.protocol.errors import InvalidRecordError, KafkaStorageError, OffsetOutOfRangeError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.message_set import LegacyRecordBatch
from tidelog.protocol.record.record_batch import (
    LOG_APPEND_TIME,
    Record,
    RecordBatch,
    RecordContext,
    parse_records,
    read_varint,
    read_varlong,
)
from tidelog.protocol.transferable import TransferableRecords

if TYPE_CHECKING:
    from tidelog.log.find.indexer import LogIndexer
    from tidelog.log.index.transaction_index import AbortedTxn
    from tidelog.log.unified_log import UnifiedLog

MIN_TIME, MAX_TIME = -(1 << 63), (1 << 63) - 1
_WINDOW_OFFSETS = 4096
"""Number of offsets that are read at a time where no index is used."""
_READ_BYTES = 1024 * 1024


class NotIndexedError(Exception):
    """The topic has no index for this query; the message names the config that switches it on."""


class Query(NamedTuple):
    """Query for records, by key, tag and time from ``begin`` to ``end`` (ms, both included). None means any key, or any
    tag."""

    key: bytes | None = None
    tag: bytes | None = None
    tag_header: str | None = None
    begin: int = MIN_TIME
    end: int = MAX_TIME

    def matches(self, record: Record) -> bool:
        """Return whether ``record`` has the key, tag and time of the query."""
        if self.key is not None and record.key != self.key:
            return False
        if self.tag is not None and (self.tag_header is None or tag_of(record, self.tag_header.encode()) != self.tag):
            return False
        return self.begin <= record.timestamp <= self.end


def find_newest(
    log: UnifiedLog, indexer: LogIndexer | None, query: Query, below: int | None = None, *, committed: bool = False
) -> Iterator[Record]:
    """Yield the records of a log that match, highest offset first; with ``below`` only offsets below it.

    Raises NotIndexedError, IndexDamagedError (the caller has the index rebuilt), CorruptMessageError,
    InvalidRecordError, KafkaStorageError, and what decompression raises.
    """
    upper = log.last_stable_offset if committed else log.high_watermark
    upper = upper if below is None else min(below, upper)
    if query.key is None and query.tag is None:
        yield from scan_newest(log, query, upper, committed=committed)
        return
    reader = RecordReader(log, committed=committed)
    for offset in candidates_newest(log, indexer, query, upper):
        if offset < log.log_start_offset:
            return
        record = reader.record_at(offset)
        if record is not None and query.matches(record):
            yield record


def candidates_newest(log: UnifiedLog, indexer: LogIndexer | None, query: Query, upper: int) -> Iterator[int]:
    """Iterate over the offsets below ``upper`` of records that may match, highest first."""
    start = log.log_start_offset
    keys, tags = (None, None) if indexer is None else (indexer.keys, indexer.tags)
    if query.key is not None:
        if keys is None:
            raise NotIndexedError(f"{log.topic_partition.topic} has no key index; set index.keys=true on the topic")
        hashed = key_hash(key_seed(log.topic_partition.topic), query.key)
        for offset in keys.select(hashed, query.begin, query.end, start):
            if offset < upper:
                yield offset
        return
    assert query.tag is not None
    if tags is None:
        raise NotIndexedError(f"{log.topic_partition.topic} has no tag index; set index.tag.header on the topic")
    yield from tags.select_newest(tag_hash(query.tag), start, upper)


def scan_newest(log: UnifiedLog, query: Query, upper: int, *, committed: bool = False) -> Iterator[Record]:
    """Yield matching records below ``upper``, highest offset first, without an index: the log is read a window at a
    time."""
    upper = min(upper, log.last_stable_offset) if committed else upper
    lowest = log.log_start_offset
    if query.begin > 0:  # negative times are special values of ListOffsets
        found = log.fetch_offset_by_timestamp(query.begin)
        if found is None:
            return
        lowest = max(lowest, found.offset)
    while upper > lowest:
        first = max(lowest, upper - _WINDOW_OFFSETS)
        yield from reversed(list(scan(log, query, first, upper, committed=committed)))
        upper = first


def scan(log: UnifiedLog, query: Query, start: int, end: int, *, committed: bool = False) -> Iterator[Record]:
    """Yield matching records from ``start`` to below ``end``, lowest offset first, without an index."""
    aborted = log.collect_aborted_transactions(start, end) if committed else []
    while start < end:
        try:
            stored = read_batches(log, start, _READ_BYTES)
        except OffsetOutOfRangeError:
            start = max(start + 1, log.log_start_offset)
            continue
        last = start
        for batch in iter_batches(stored):
            last = batch.last_offset + 1
            if batch.max_timestamp < query.begin or batch.is_control or is_aborted(batch, aborted):
                continue
            for record in records_of(batch):
                if start <= record.offset < end and query.matches(record):
                    yield record
            if last >= end:
                return
        if last == start:
            return
        start = last


def read_batches(log: UnifiedLog, offset: int, max_bytes: int) -> bytes:
    """Read about ``max_bytes`` of the log from the batch that holds ``offset`` on, at least that batch; empty at the
    high watermark.

    Raises OffsetOutOfRangeError, CorruptMessageError, KafkaStorageError.
    """
    found = log.read(offset, max_bytes, isolation=FetchIsolation.HIGH_WATERMARK, min_one_message=True).records
    if not isinstance(found, TransferableRecords):
        return b""
    try:
        return os.pread(found.file.fileno(), found.size, found.position)
    except OSError as error:
        raise KafkaStorageError(f"cannot read {log.topic_partition}: {error}") from error
    finally:
        found.release()


def records_of(batch: RecordBatch | LegacyRecordBatch) -> Iterator[Record]:
    """Yield the batch's records with their timestamps as consumers get them."""
    if isinstance(batch, RecordBatch) or batch.timestamp_type != LOG_APPEND_TIME:
        yield from batch.records()
    else:
        yield from (record._replace(timestamp=batch.max_timestamp) for record in batch.records())


def is_aborted(batch: RecordBatch | LegacyRecordBatch, aborted: Sequence[AbortedTxn]) -> bool:
    """Return whether one of the ``aborted`` transactions wrote the batch."""
    return batch.is_transactional and any(
        each.producer_id == batch.producer_id and each.first_offset <= batch.base_offset <= each.last_offset
        for each in aborted
    )


class RecordReader:
    """Reader of single records of a log. It keeps the batch that it read last, for further records of that batch. One
    thread."""

    def __init__(self, log: UnifiedLog, *, committed: bool = False) -> None:
        """With ``committed``, records of aborted transactions are left out."""
        self._log = log
        self._committed = committed
        self._batch: RecordBatch | LegacyRecordBatch | None = None
        self._section: bytes = b""

    def record_at(self, offset: int) -> Record | None:
        """Find the record at ``offset``; None if there is none any more, or if it is left out as aborted. Raises
        CorruptMessageError, InvalidRecordError, KafkaStorageError, and what decompression raises."""
        batch = self._batch
        if batch is None or not batch.base_offset <= offset <= batch.last_offset:
            batch = self._read(offset)
        if batch is None or batch.is_control or batch.last_offset < offset:
            return None
        if isinstance(batch, LegacyRecordBatch):
            return next((record for record in records_of(batch) if record.offset == offset), None)
        if batch.base_offset > offset:
            return None
        span: tuple[int, int] | None
        if batch.record_count == batch.last_offset_delta + 1:
            span = engine.find_nth_record(self._section, offset - batch.base_offset)
        else:
            span = find_record_range(self._section, batch.record_count, offset - batch.base_offset)
        if span is None:
            return None
        append_time = batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None
        context = RecordContext(batch.base_offset, batch.base_timestamp, -1, append_time)
        return next(parse_records(self._section[span[0] : span[1]], 1, context))

    def _read(self, offset: int) -> RecordBatch | LegacyRecordBatch | None:
        self._batch = None
        try:
            stored = read_batches(self._log, offset, 1)
        except OffsetOutOfRangeError:
            return None
        batch = next(iter_batches(stored), None)
        if batch is None:
            return None
        batch.ensure_valid()
        if isinstance(batch, RecordBatch):
            if self._committed and batch.is_transactional:
                aborted = self._log.collect_aborted_transactions(batch.base_offset, batch.last_offset + 1)
                if is_aborted(batch, aborted):
                    return None
            self._section = bytes(batch.uncompressed_section())
        self._batch = batch
        return batch


def find_record_range(section: bytes, count: int, offset_delta: int) -> tuple[int, int] | None:
    """Find the byte range of the record with that offset delta in a section; None if there is none. Raises
    InvalidRecordError."""
    position = 0
    try:
        for _ in range(count):
            start = position
            length, position = read_varint(section, start)
            if length < 0:
                break
            _, at = read_varlong(section, position + 1)
            delta, _ = read_varint(section, at)
            position += length
            if delta >= offset_delta:
                return (start, position) if delta == offset_delta else None
    except IndexError:
        raise InvalidRecordError("Found invalid record structure") from None
    return None
