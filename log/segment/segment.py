# cython: wraparound=True, boundscheck=True
"""A segment: one record file with its offset, time and transaction index, all named by the base offset in 20 digits.

Invariants:

- batches lie in offset order; the first offset is >= the base offset, and the last one at most 2^31 - 1 above it;
- a batch gets an index entry when its start lies more than ``index.interval.bytes`` after the start of the batch of the
  last entry. So a rebuild, which sees only bytes, makes the same entries as the appends did. Only for a set of old
  messages may it make more: the append of such a set makes at most one entry;
- in a closed segment, the last entry of the time index has the segment's largest timestamp.

Appends hold the log's lock. Reads take no lock: they copy ``records.size`` (or the log's published end) once and read
nothing beyond it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.files.file_records import FileRecords
from tidelog.log.index.abstract_index import seal_index
from tidelog.log.index.offset_index import OffsetIndex, OffsetPosition
from tidelog.log.index.time_index import TimeIndex, TimestampOffset
from tidelog.log.index.transaction_index import TransactionIndex
from tidelog.log.segment.batch_scan import BatchHeader, iter_batches, iter_headers
from tidelog.log.segment.resync import find_resume_position
from tidelog.log.system.file_system import FileSystem
from tidelog.log.system.time import Time
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError
from tidelog.protocol.record.record_batch import NO_TIMESTAMP, Buffer
from tidelog.protocol.transferable import TransferableRecords

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig

logger = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
SEGMENT_FILE_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def file_name(base_offset: int, suffix: str) -> str:
    """Make the name ``00000000000000000042.log``: the base offset in 20 digits, so that names sort as offsets do."""
    return f"{base_offset:020d}{suffix}"


class SegmentPosition(NamedTuple):
    """Position and size, in bytes, of the first batch that ends at or after an offset."""

    position: int
    size: int


class SegmentCut(NamedTuple):
    """Place at which a segment is truncated: byte ``position``. Index entries from ``offset`` on are removed."""

    position: int
    offset: int


class SegmentRead(NamedTuple):
    """A slice of a segment: ``size`` bytes from ``position``. ``first_size`` is the size of its first batch, which may
    be cut."""

    position: int
    size: int
    first_size: int


class BatchesToAppend(NamedTuple):
    """Whole batches and what their append changes: index entries in the form of the files, the position that the last
    offset index entry has, and the segment's largest timestamp after the append. ``first_timestamp`` is the largest of
    the first batch."""

    records: Buffer
    offset_entries: bytes
    time_entries: bytes
    last_entry_position: int
    largest: TimestampOffset
    first_timestamp: int


class LogSegment:
    """One segment of a log: its record file, offset index, time index and transaction index."""

    __slots__ = (
        "_bytes_since_entry",
        "_created_ms",
        "_file_system",
        "_index_interval_bytes",
        "_index_room",
        "_largest",
        "_rolling_timestamp",
        "_sequential_hint",
        "_time",
        "base_offset",
        "directory",
        "offset_index",
        "records",
        "resets",
        "roll_jitter_ms",
        "suffix",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self, directory: str, base_offset: int, config: LogConfig, file_system: FileSystem, time: Time,
        *, size: int = 0, suffix: str = "",
    ) -> None:  # fmt: skip
        stem = os.path.join(directory, f"{base_offset:020d}")
        self._file_system = file_system
        self._time = time
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self.records = FileRecords(file_system, stem + LOG_SUFFIX + suffix, size)
        index_bytes = config.segment_index_bytes
        self.offset_index = OffsetIndex(file_system, stem + INDEX_SUFFIX + suffix, base_offset, index_bytes)
        self.time_index = TimeIndex(file_system, stem + TIME_INDEX_SUFFIX + suffix, base_offset, index_bytes)
        self.transaction_index = TransactionIndex(file_system, stem + TXN_INDEX_SUFFIX + suffix, base_offset)
        self.roll_jitter_ms = config.random_segment_jitter()
        self._index_interval_bytes = config.index_interval_bytes
        self._created_ms = time.monotonic_ms()
        self._rolling_timestamp: int | None = None
        self._largest: TimestampOffset | None = None
        self.resets = 0  # number of calls of forget_state, by which a reader notices one
        self._bytes_since_entry = -1 if size else 0
        self._index_room = 0  # entries that surely fit into both indices; 0: the indices have to be asked
        self._sequential_hint = OffsetPosition(-1, 0)

    @classmethod
    def create(
        cls, directory: str, base_offset: int, config: LogConfig, file_system: FileSystem, time: Time, suffix: str = ""
    ) -> LogSegment:
        """Make the files of an empty segment. Raises KafkaStorageError, leaving none of them; a record file that exists
        and is not empty stays."""
        segment = cls(directory, base_offset, config, file_system, time, suffix=suffix)
        segment.records.create()
        made = False
        try:
            segment.offset_index.create()
            segment.time_index.create()
            # The transaction index of an earlier segment of this name must not be read as this one's.
            file_system.unlink(segment.transaction_index.path, missing_ok=True)
            made = True
        finally:
            if not made:
                segment.close()
                segment.delete_files()
        return segment

    @property
    def size(self) -> int:
        """Bytes of records."""
        return self.records.size

    @property
    def paths(self) -> tuple[str, str, str, str]:
        """The paths of the segment's files (the last one often does not exist)."""
        return self.records.path, self.offset_index.path, self.time_index.path, self.transaction_index.path

    # ---- append and roll

    def append(self, records: Buffer, last_offset: int, max_timestamp: int, offset_of_max: int) -> int:
        """Write batches at the end and return the byte at which they begin. ``last_offset`` is the first batch's, for
        an index entry; ``offset_of_max`` is the last offset of the batch with ``max_timestamp``.

        Raises KafkaStorageError; ``size`` is unchanged then. Under the log's lock.
        """
        size = self.records.size
        since = self._bytes_since_entry
        if since < 0:
            since = _bytes_since_last_entry(self)
        largest = self._largest or self.largest  # may read files and fail, so it comes before the write
        position = self.records.append(records)
        if size == 0:
            self._rolling_timestamp = max_timestamp
        if max_timestamp > largest.timestamp:
            self._largest = largest = TimestampOffset(max_timestamp, offset_of_max)
        if since > self._index_interval_bytes:
            self._index_room -= 1
            if _append_entries(self, last_offset, position, largest):
                since = 0
        self._bytes_since_entry = since + len(records)
        return position

    def append_batches(self, batches: BatchesToAppend) -> int:
        """Write batches at the end, then their index entries, and return the byte at which the batches begin.

        Raises KafkaStorageError; ``size`` is unchanged then. Under the log's lock.
        """
        position = self.records.append(batches.records)
        if position == 0:
            self._rolling_timestamp = batches.first_timestamp
        self._largest = batches.largest
        self._bytes_since_entry = self.records.size - batches.last_entry_position
        if batches.offset_entries:
            self._index_room = 0
            try:
                self.offset_index.append_packed(batches.offset_entries)
                self.time_index.append_packed(batches.time_entries)
            except KafkaStorageError as error:  # not undone, as in ``_append_entries``: only look-ups take longer
                logger.warning("no index entries for the batches from byte %d on: %s", position, error)
                self._bytes_since_entry = -1
        return position

    @property
    def last_entry_position(self) -> int:
        """The byte from which ``index.interval.bytes`` are counted: the last index entry's position, or 0."""
        if self._bytes_since_entry < 0:
            self._bytes_since_entry = _bytes_since_last_entry(self)
        return self.records.size - self._bytes_since_entry

    def should_roll(self, segment_bytes: int, segment_ms: int, size: int, max_timestamp: int, last_offset: int) -> bool:
        """Return whether ``size`` more bytes, with this largest timestamp and last offset, need a new segment: because
        of size, age, full indices or range of offsets. ``segment_bytes`` and ``segment_ms`` are the topic's configs.
        """
        own_size = self.records.size
        if own_size > segment_bytes - size or last_offset - self.base_offset > 0x7FFFFFFF:
            return True
        if self._index_room <= 0:
            self._index_room = min(self.offset_index.room, self.time_index.room)
            if self._index_room <= 0:
                return True
        if own_size == 0:
            return False
        return self._waited_for_roll(max_timestamp) > segment_ms - self.roll_jitter_ms

    def _waited_for_roll(self, max_timestamp: int) -> int:
        """Return the milliseconds from the first batch's timestamp to ``max_timestamp``. If that batch has none, return
        those since the segment was made, loaded or emptied.
        """
        first = self._rolling_timestamp
        if first is None:
            first = self._rolling_timestamp = _first_timestamp(self)
        if first < 0:
            return int(self._time.monotonic_ms() - self._created_ms)
        # ``max_timestamp`` may be -2^63: a difference to it would not fit into 64 bits. Older records do not age the
        # segment.
        return max_timestamp - first if max_timestamp > first else 0

    @property
    def first_batch_timestamp(self) -> int:
        """The first batch's largest timestamp, by which the cleaner judges the segment's age; 2^63 - 1 if there is
        none."""
        first = _first_timestamp(self) if self._rolling_timestamp is None else self._rolling_timestamp
        return first if first >= 0 else 2**63 - 1

    def on_become_inactive(self) -> None:
        """Finish the indices before the log appends to a new segment."""
        if self.records.size:
            self.time_index.maybe_append(*self.largest, on_roll=True)
        self.offset_index.trim()
        self.time_index.trim()

    @property
    def largest(self) -> TimestampOffset:
        """The largest timestamp with its offset; after a restart it is read from the time index and later batches."""
        largest = self._largest
        if largest is None:
            resets = self.resets
            largest = _read_largest(self)
            # A reader holds no lock: meanwhile an append may have stored a larger one, or a truncation cut the bytes.
            if self._largest is None and self.resets == resets:  # no call up to the next line, as in translate_offset
                self._largest = largest
        return largest

    def adopt_largest(self, largest: TimestampOffset) -> None:
        """Set the largest timestamp as the writer of the records (the cleaner) knows it, which spares a scan."""
        self._largest = largest

    @property
    def largest_timestamp(self) -> int:
        """Timestamp by which retention judges the segment: its records' largest, or else the file's last change."""
        timestamp = self.largest.timestamp
        if timestamp >= 0:
            return timestamp
        names = {entry.name: entry.modified_ms for entry in self._file_system.list_directory(self.directory)}
        return names.get(os.path.basename(self.records.path), self._time.milliseconds())

    # ---- read

    def translate_offset(self, offset: int, start: int = 0) -> SegmentPosition | None:
        """Find the first batch, from byte ``start`` on, that ends at or after ``offset``; None if there is none. Any
        thread.

        Raises CorruptMessageError, KafkaStorageError.
        """
        hint = self._sequential_hint
        if hint.offset == offset and hint.position >= start:
            position = hint.position
        else:
            position = max(self.offset_index.lookup(offset).position, start)
        for header in iter_headers(self.records, position, self.records.size):
            if header.last_offset >= offset:
                # A consumer that gets one large batch in a fetch asks for the next one: the hint spares that search
                # (8 µs). It is not stored if a truncation has reset it meanwhile: the bytes may have changed.
                following = OffsetPosition(header.last_offset + 1, header.position + header.size)
                if hint is self._sequential_hint:  # no call up to the next line, in which another thread could run
                    self._sequential_hint = following
                return SegmentPosition(header.position, header.size)
        return None

    def read(self, offset: int, max_bytes: int, max_position: int, *, min_one_message: bool) -> SegmentRead | None:
        """Find the batches for a fetch at ``offset``, below byte ``max_position``; None when the segment has none.

        Any thread. Raises CorruptMessageError, KafkaStorageError.
        """
        found = self.translate_offset(offset)
        if found is None or found.position >= max_position:
            return None
        if min_one_message:
            max_bytes = max(max_bytes, found.size)
        return SegmentRead(found.position, min(max_bytes, max_position - found.position), found.size)

    def slice(self, position: int, size: int) -> TransferableRecords:
        """Return a slice of the record file, to be sent later."""
        return self.records.slice(position, size)

    def headers(self, start: int = 0, end: int | None = None) -> Iterator[BatchHeader]:
        """Iterate over batch headers from byte ``start``."""
        return iter_headers(self.records, start, self.records.size if end is None else end)

    def batches(self, start: int = 0, end: int | None = None) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Iterate over batches with their bytes, from byte ``start``; each view is valid until the next step."""
        return iter_batches(self.records, start, self.records.size if end is None else end)

    def read_next_offset(self) -> int:
        """Return the offset after the last one in the segment; the base offset when it is empty. The segment is scanned
        from the last index entry.
        """
        next_offset = self.base_offset
        entries = self.offset_index.entries
        start = self.offset_index.entry(entries - 1).position if entries else 0
        for header in iter_headers(self.records, start, self.records.size):
            next_offset = header.last_offset + 1
        return next_offset

    # ---- truncate, flush, files

    def truncate_to(self, cut: SegmentCut) -> int:
        """Drop the batches from ``cut`` on; return the number of bytes removed. Under the log's lock."""
        self.offset_index.truncate_to(cut.offset)
        self.time_index.truncate_to(cut.offset)
        self.transaction_index.truncate_to(cut.offset)
        removed = self.records.truncate_to(cut.position)
        if self.records.size == 0:
            self._created_ms = self._time.monotonic_ms()
            self._rolling_timestamp = None
        self.forget_state()
        return removed

    def forget_state(self) -> None:
        """Forget what was read from the files, after a truncation or a rebuild of the indices, so that it is read
        again."""
        self.resets += 1
        self._largest = None
        self._rolling_timestamp = None
        self._bytes_since_entry = -1
        self._index_room = 0
        self._sequential_hint = OffsetPosition(-1, 0)

    def flush(self, *, with_indices: bool = True) -> None:
        """Make records and indices durable. Raises KafkaStorageError. Any thread, no lock.

        The active segment is flushed without its indices, so that a flush costs one fdatasync: recovery rebuilds
        them anyway.
        """
        self.records.flush()
        if with_indices:
            flush_indices(self)

    def rename_suffix(self, suffix: str) -> None:
        """Give all four files the ending ``suffix`` (in place of the present one); the record file goes last."""
        stem = os.path.join(self.directory, f"{self.base_offset:020d}")
        self.offset_index.rename_to(stem + INDEX_SUFFIX + suffix)
        self.time_index.rename_to(stem + TIME_INDEX_SUFFIX + suffix)
        self.transaction_index.rename_to(stem + TXN_INDEX_SUFFIX + suffix)
        self.records.rename_to(stem + LOG_SUFFIX + suffix)
        self.suffix = suffix

    def close(self) -> None:
        """Close all files; readers keep the record file open until they release it."""
        if self._largest is not None and self.records.size and not self.suffix:
            self.time_index.maybe_append(*self._largest, on_roll=True)
        self.offset_index.close()
        self.time_index.close()
        self.transaction_index.close()
        self.records.close()

    def release(self) -> None:
        """Close all files as they are, for a deleted segment."""
        self._largest = None
        # The records are closed first: a reader that finds no transaction index must not get a slice of them.
        self.records.close()
        self.offset_index.release()
        self.time_index.release()
        self.transaction_index.release()

    def delete_files(self) -> None:
        """Unlink those of the files that exist. Call ``close`` or ``release`` first."""
        for path in self.paths:
            self._file_system.unlink(path, missing_ok=True)


def seal(segment: LogSegment) -> None:
    """Forbid the segment to open a file by its name, which may belong to another log by now. Open files stay usable.
    Any thread."""
    segment.records.seal()
    seal_index(segment.offset_index)
    seal_index(segment.time_index)
    segment.transaction_index.seal()


def _append_entries(segment: LogSegment, last_offset: int, position: int, largest: TimestampOffset) -> bool:
    """Add index entries for the batch at ``position``; return False if that failed.

    A full disk, or an index that cannot be read, does not undo the append: the records are in place, and an index
    that lacks an entry only makes look-ups longer; the next append tries again.
    """
    try:
        segment.offset_index.append(last_offset, position)
        segment.time_index.maybe_append(largest.timestamp, largest.offset)
    except KafkaStorageError as error:
        logger.warning("no index entry for offset %d: %s", last_offset, error)
        return False
    return True


def _bytes_since_last_entry(segment: LogSegment) -> int:
    """Count the bytes since the last index entry, after a restart, so that the next entry lies where a rebuild would
    put it.
    """
    entries = segment.offset_index.entries
    return segment.size - (segment.offset_index.entry(entries - 1).position if entries else 0)


def _first_timestamp(segment: LogSegment) -> int:
    header = next(readable_headers(segment, 0), None)
    return NO_TIMESTAMP if header is None else header.max_timestamp


def _read_largest(segment: LogSegment) -> TimestampOffset:
    largest = segment.time_index.last_entry
    for header in readable_headers(segment, segment.offset_index.lookup(largest.offset).position):
        if header.max_timestamp > largest.timestamp:
            largest = TimestampOffset(header.max_timestamp, header.last_offset)
    return largest


def readable_headers(segment: LogSegment, position: int) -> Iterator[BatchHeader]:
    """Iterate over batch headers from byte ``position``, without damaged ones: neither appends, nor retention, nor a
    start may fail because of them. Raises KafkaStorageError."""
    index, size = segment.offset_index, segment.size
    while position < size:
        try:
            for header in segment.headers(position, size):
                position = header.position + header.size
                yield header
            if position < size:
                raise CorruptMessageError(f"incomplete batch at byte {position} of {segment.records.path}")
        except CorruptMessageError as error:
            logger.warning("a damaged batch is passed over: %s", error)
            entries = (index.entry(slot) for slot in range(index.entries))
            indexed = ((entry.position, entry.offset) for entry in entries)
            position = find_resume_position(segment.records, position, size, indexed)


def find_cut(segment: LogSegment, offset: int) -> SegmentCut:
    """Find where a truncation to ``offset`` cuts: before the batch that holds it, or before a damaged one in front of
    that. Under the log's lock.

    The batches between a damaged header and ``offset`` cannot be told from those to be removed, so they are removed
    too: a follower gets them from its leader again.
    """
    while True:
        entry = segment.offset_index.lookup(offset - 1)
        position, end = entry.position, entry.offset
        try:
            for header in segment.headers(position):
                if header.last_offset >= offset:
                    return SegmentCut(header.position, offset)
                position, end = header.position + header.size, header.last_offset + 1
            return SegmentCut(position, offset)
        except CorruptMessageError as error:
            logger.error("records up to offset %d are removed with those after it: %s", offset - 1, error)
        if position > entry.position or position == 0:
            return SegmentCut(position, end)
        offset = entry.offset  # the entry's own batch is damaged: begin at the entry before it


def flush_indices(segment: LogSegment) -> None:
    """Make the indices durable, also those of a closed segment. Raises KafkaStorageError. Any thread, no lock."""
    segment.offset_index.flush()
    segment.time_index.flush()
    segment.transaction_index.flush()
