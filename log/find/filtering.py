"""Filtered reads: the records of a log that match a query, in batches as compaction would leave them.

A *virtual topic* is a name with a query; its consumers get these records.

    position -> next candidate (of the key or tag index; after its end each offset) -> batches from its own on
             -> no record of a batch from the offset asked for on matches:    the batch is left out
                all records match:            its bytes as they are
                some match:                   rebuilt: offsets, base offset and timestamps kept, CRC new
    end      -> if the result ends before the next offset to read: an empty batch up to there, so that consumers go on

If a result begins with SLICE_BYTES of batches that match as a whole, it consists of these: a slice of the segment, to
be sent without a copy. Under read_committed, records of aborted transactions are left out here, because the control
batches that would tell clients about them match no query. A call returns about ``max_bytes`` at most (but at least one
batch) and reads about WORK_BYTES at most.

A read blocks on the disk: call it in worker threads.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.fetch import FetchIsolation
from tidelog.log.find.engine import engine
from tidelog.log.find.engine.reference import MatchQuery
from tidelog.log.find.hashing import key_hash, key_seed, tag_hash
from tidelog.log.find.lookup import Query, is_aborted, records_of
from tidelog.protocol.errors import KafkaStorageError, OffsetOutOfRangeError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.message_set import LegacyRecordBatch
from tidelog.protocol.record.record_batch import (
    DELETE_HORIZON_MASK,
    LOG_APPEND_TIME,
    BatchOptions,
    BatchTimes,
    Record,
    RecordBatch,
    RecordContext,
    assemble_batch,
    build_batch,
    parse_records,
)
from tidelog.protocol.transferable import TransferableRecords

if TYPE_CHECKING:
    from tidelog.log.find.indexer import LogIndexer
    from tidelog.log.find.key_index import KeyIndex
    from tidelog.log.index.transaction_index import AbortedTxn
    from tidelog.log.unified_log import UnifiedLog

WORK_BYTES = 16 * 1024 * 1024
"""Bytes after which a call reads no more; the result then ends there, even if it has no records."""
SLICE_BYTES = 64 * 1024
"""Smallest size of unchanged batches, at the beginning of a result, that are returned as a slice of the file; others
are copied."""
SMALLEST_READ, DENSE_READ, LARGEST_READ = 16 * 1024, 256 * 1024, 1024 * 1024
"""Bytes of a read from one candidate on, of a first read where every offset is a candidate, and of the largest read."""
_MAX_DELTA = 2**31 - 1
MAX_KEY_CANDIDATES = 4_000_000
"""Largest number of offsets of one key that are remembered; with more, the log is read without the index."""


class Matching(NamedTuple):
    """Result of a filtered read.

    ``records`` are bytes, or a slice that the receiver releases. The next read begins at ``next_offset``. ``is_gap``
    says that no record matched.
    """

    records: bytes | TransferableRecords
    next_offset: int
    is_gap: bool


class Reading(NamedTuple):
    """Arguments of a filtered read: the range of offsets from ``offset`` to below ``upper``, the largest size of the
    result, and whether only committed records are read."""

    offset: int
    upper: int
    max_bytes: int
    committed: bool


class KeyCandidates:
    """The offsets of records that may have a key, ascending. They are kept between calls, so that the key's chain
    (``tidelog.log.find.index_file``) is walked once, and later only its new entries."""

    __slots__ = ("_are_too_many", "_covered", "_hash", "_offsets", "_query", "_source")

    def __init__(self, topic: str, query: Query) -> None:
        assert query.key is not None
        self._query = query
        self._hash = key_hash(key_seed(topic), query.key)
        self._offsets = array("q")
        self._covered = 0
        self._are_too_many = False
        self._source: tuple[KeyIndex, int] | None = None  # the index with the offsets, and its number of restarts

    @property
    def held_bytes(self) -> int:
        """Bytes of the remembered offsets."""
        return len(self._offsets) * self._offsets.itemsize

    def iterate(self, indexer: LogIndexer, start: int) -> tuple[Iterator[int], int]:
        """Iterate over candidates from ``start`` on; return also an offset below which no other record matches. Raises
        IndexDamagedError, LogStorageError.
        """
        keys = indexer.keys
        if keys is None:
            return iter(()), start
        source = keys, keys.restarts
        end = min(keys.next_offset, indexer.log.index_bound)
        if source != self._source or end < self._covered:
            self._offsets, self._covered, self._are_too_many, self._source = array("q"), 0, False, source
        if self._are_too_many:
            return iter(()), start
        if end > self._covered:
            found = keys.select(self._hash, self._query.begin, self._query.end, self._covered)
            room = MAX_KEY_CANDIDATES - len(self._offsets)
            fresh = array("q", islice(found, room + 1))
            if len(fresh) > room:
                self._offsets, self._are_too_many = array("q"), True
                return iter(()), start
            if keys.restarts != source[1]:  # the files were removed meanwhile: ``fresh`` may be empty for that reason
                return iter(()), start
            fresh.reverse()
            self._offsets += array("q", fresh[: bisect_left(fresh, end)])
            self._covered = end
        offsets = self._offsets
        return (offsets[at] for at in range(bisect_left(offsets, start), len(offsets))), end


class MatchReader:
    """Reader of the records that match ``query``. One call at a time."""

    def __init__(self, log: UnifiedLog, query: Query) -> None:
        self._log = log
        self._query = query
        self._keys = KeyCandidates(log.topic_partition.topic, query) if query.key is not None else None

    @property
    def held_bytes(self) -> int:
        """Bytes that are remembered between two reads."""
        return 0 if self._keys is None else self._keys.held_bytes

    def read(self, reading: Reading, indexer: LogIndexer | None) -> Matching:
        """Read the next matching records. Raises IndexDamagedError, KafkaStorageError, and what :func:`select_part`
        raises."""
        return _ReadState(self._log, self._query, reading, self._candidates(reading, indexer)).run()

    def _candidates(self, reading: Reading, indexer: LogIndexer | None) -> tuple[Iterator[int], int]:
        start = reading.offset
        if self._keys is not None:
            return self._keys.iterate(indexer, start) if indexer is not None else (iter(()), start)
        if self._query.tag is not None:
            tags = None if indexer is None else indexer.tags
            if indexer is None or tags is None:
                return iter(()), start
            restarts, end = tags.restarts, min(tags.next_offset, indexer.log.index_bound)
            offsets = tags.select(tag_hash(self._query.tag), start, min(end, reading.upper))
            return (offsets, end) if tags.restarts == restarts else (iter(()), start)
        if self._query.begin > 0:  # no record matches before the first one of that time
            found = self._log.fetch_offset_by_timestamp(self._query.begin)
            return iter(()), reading.upper if found is None else found.offset
        return iter(()), start


class _ReadState:
    """State of one filtered read: its position and the result so far."""

    def __init__(self, log: UnifiedLog, query: Query, reading: Reading, candidates: tuple[Iterator[int], int]) -> None:
        self._log = log
        self._query = query
        self._reading = reading
        self._candidates, self._indexed_end = candidates
        self._next_candidate = next(self._candidates, None)
        self._position = reading.offset
        self._out: list[bytes | memoryview] = []
        self._size = 0
        self._covered = reading.offset  # the offset after the last batch of the result
        self._work = WORK_BYTES  # bytes that may still be read
        self._slice: TransferableRecords | None = None

    def run(self) -> Matching:
        read_bytes = SMALLEST_READ
        upper = self._reading.upper
        while self._position < upper and self._size < self._reading.max_bytes and self._work > 0:
            start = self._next_start()
            if start >= upper:
                self._position = upper
                break
            # Where every offset is a candidate, or there is no index, more is read at a time.
            is_dense = start == self._position
            read_bytes = min(max(read_bytes * 4, DENSE_READ), LARGEST_READ) if is_dense else SMALLEST_READ
            self._position = start
            if not self._read_some(min(read_bytes, self._work)):
                break
            if self._slice is not None:
                return Matching(self._slice, self._covered, False)
        return self._finish()

    def _next_start(self) -> int:
        """Return the next offset that may match."""
        while self._next_candidate is not None and self._next_candidate < self._position:
            self._next_candidate = next(self._candidates, None)
        if self._next_candidate is not None:
            return self._next_candidate
        return max(self._position, self._indexed_end)

    def _read_some(self, max_bytes: int) -> bool:
        """Filter some batches from the position on; return False if there are no more to read."""
        log, reading = self._log, self._reading
        isolation = FetchIsolation.TXN_COMMITTED if reading.committed else FetchIsolation.HIGH_WATERMARK
        try:
            found = log.read(self._position, max_bytes, isolation=isolation, min_one_message=True)
        except OffsetOutOfRangeError:  # retention moved the log start offset: records below it are gone
            self._position = max(self._position + 1, log.log_start_offset)
            return True
        if not isinstance(found.records, TransferableRecords):
            self._position = reading.upper
            return False
        try:
            stored = memoryview(os.pread(found.records.file.fileno(), found.records.size, found.records.position))
            self._work -= len(stored)
            self._filter(stored, found.records, found.aborted_transactions or ())
        except OSError as error:
            raise KafkaStorageError(f"cannot read {log.topic_partition}: {error}") from error
        finally:
            found.records.release()
        return True

    def _filter(self, stored: memoryview, source: TransferableRecords, aborted: object) -> None:
        unchanged_until = 0
        lost = list(aborted) if isinstance(aborted, list) else []
        for batch in iter_batches(stored):
            if batch.base_offset >= self._reading.upper:
                self._position = max(self._position, self._reading.upper)
                break
            piece = self._select_part(batch, lost)
            end = batch.position + batch.size_in_bytes
            if isinstance(piece, memoryview) and unchanged_until == batch.position:
                if not self._out or unchanged_until:
                    unchanged_until = end
            elif unchanged_until >= SLICE_BYTES:
                break
            self._position = batch.last_offset + 1
            if piece is not None:
                self._out.append(piece)
                self._size += len(piece)
                self._covered = self._position
            if self._size >= self._reading.max_bytes:
                break
        if unchanged_until >= SLICE_BYTES and unchanged_until == self._size:
            source.file.retain()
            self._slice = TransferableRecords(source.file, source.position, unchanged_until)

    def _select_part(
        self, batch: RecordBatch | LegacyRecordBatch, aborted: list[AbortedTxn]
    ) -> bytes | memoryview | None:
        if batch.is_control or batch.max_timestamp < self._query.begin:
            return None
        last = batch.last_offset
        if last < self._indexed_end:
            while self._next_candidate is not None and self._next_candidate < batch.base_offset:
                self._next_candidate = next(self._candidates, None)
            if self._next_candidate is None or self._next_candidate > last:
                return None
        if is_aborted(batch, aborted):
            return None
        piece, wanted = select_part(batch, self._query), self._reading.offset
        if piece is None or batch.base_offset >= wanted:
            return piece
        # The batch holds the offset, and the cleaner may have removed what follows it.
        kept = (record.offset for part in iter_batches(piece) for record in part.records())
        return piece if any(offset >= wanted for offset in kept) else None

    def _finish(self) -> Matching:
        is_gap = not self._out
        position = min(self._position, self._covered + _MAX_DELTA)
        if position > self._covered:
            self._out.append(gap_batch(self._covered, position))
        return Matching(b"".join(self._out), position, is_gap)


def gap_batch(offset: int, next_offset: int) -> bytes:
    """Build an empty batch from ``offset`` to below ``next_offset``, as compaction leaves it."""
    last_offset_delta = min(next_offset - 1 - offset, _MAX_DELTA)
    return bytes(build_batch((), BatchOptions(base_offset=offset, last_offset_delta=last_offset_delta)))


def select_part(batch: RecordBatch | LegacyRecordBatch, query: Query) -> bytes | memoryview | None:
    """Return the batch with only the records that match; unchanged if all match, None if none does.

    Raises CorruptMessageError, InvalidRecordError, and what decompression raises.
    """
    batch.ensure_valid()
    if isinstance(batch, LegacyRecordBatch):
        records = list(records_of(batch))
        kept = [record for record in records if query.matches(record)]
        if not kept:
            return None
        return batch.view() if len(kept) == len(records) else _rebuild_legacy(batch, kept)
    section = bytes(batch.uncompressed_section())
    spans = _find_matches(batch, section, query)
    if not spans:
        return None
    if len(spans) == batch.record_count:
        return batch.view()
    return rebuild(batch, section, spans)


def _find_matches(batch: RecordBatch, section: bytes, query: Query) -> list[tuple[int, int]]:
    """Find the byte ranges of the matching records in a section. Raises InvalidRecordError."""
    if query.tag is not None and query.tag_header is None:
        return []
    header = (query.tag_header or "").encode()
    append_time = batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None
    asked = MatchQuery(query.key, query.tag, header, batch.base_timestamp, append_time, query.begin, query.end)
    return engine.match_records(section, batch.record_count, asked)


def rebuild(batch: RecordBatch, section: bytes, spans: list[tuple[int, int]]) -> bytes:
    """Build the batch with only the records at the byte ranges ``spans`` of its uncompressed section.

    Base offset and base timestamp are kept, so the records' bytes are the same.
    """
    is_append_time = batch.timestamp_type == LOG_APPEND_TIME
    options = BatchOptions(
        partition_leader_epoch=batch.partition_leader_epoch,
        compression=batch.compression_type,
        log_append_time=batch.max_timestamp if is_append_time else None,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        delete_horizon_ms=batch.base_timestamp if batch.attributes & DELETE_HORIZON_MASK else None,
    )
    kept = b"".join(section[start:end] for start, end in spans)
    max_timestamp = batch.max_timestamp
    if not is_append_time:
        context = RecordContext(batch.base_offset, batch.base_timestamp)
        max_timestamp = max(record.timestamp for record in parse_records(kept, len(spans), context))
    return bytes(
        assemble_batch(
            kept,
            options,
            base_offset=batch.base_offset,
            last_offset_delta=batch.last_offset_delta,
            times=BatchTimes(batch.base_timestamp, max_timestamp),
            count=len(spans),
        )
    )


def _rebuild_legacy(batch: LegacyRecordBatch, kept: list[Record]) -> bytes:
    """Build a magic 2 batch from the matching messages of a compressed wrapper. Old clients get it down-converted."""
    append_time = batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None
    options = BatchOptions(last_offset_delta=batch.last_offset - kept[0].offset, log_append_time=append_time)
    return bytes(build_batch(kept, options))
