"""Writer of the new segment that replaces a group of segments with the batches that the cleaner keeps of them.

A *group* is one or more neighbouring segments. Until the first change nothing is written and only index entries are
collected: a group without a change is not rewritten. At the first change the unchanged bytes before it are copied from
the old files (``copy_file_range``); filtered batches follow. Index entries are those that appends of the single batches
would have made, so a rebuild makes the same indices.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine.arrays import ByteArray, IntegerArray
from tidelog.cleaner.engine.engine import Engine
from tidelog.log.file_use import LogDeletedError
from tidelog.log.files.file_records import FileRecords
from tidelog.log.index.offset_index import OffsetIndex
from tidelog.log.index.time_index import TimeIndex, TimestampOffset
from tidelog.log.index.transaction_index import AbortedTxn
from tidelog.log.segment.segment import CLEANED_SUFFIX, SEGMENT_FILE_SUFFIXES, LogSegment, file_name
from tidelog.log.system.file_system import LogStorageError
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.record.compression import LZ4_DEFAULT_LEVEL, CompressionType, compress_many
from tidelog.protocol.record.record_batch import set_crc

logger = logging.getLogger(__name__)

_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
#: Largest number of bytes copied by one call; between two calls the round can be aborted and throttled.
COPY_STEP_BYTES = 4 * 1024 * 1024


def copy_range(source: FileRecords, target: FileRecords, span: tuple[int, int], check: Callable[[int], None]) -> None:
    """Append bytes ``span`` of ``source`` to ``target``. Raises KafkaStorageError and what ``check`` raises."""
    position, end = span
    while position < end:
        step = min(COPY_STEP_BYTES, end - position)
        check(step)
        copied = target.append_from(source, (position, step))
        if not copied:
            raise LogStorageError("read", source.path, errno.EIO)
        position += copied


class CleanedSegment:
    """New segment for a group of segments of ``log``. ``check`` is called before each write and may raise."""

    def __init__(self, log: UnifiedLog, engine: Engine, base_offset: int, check: Callable[[int], None]) -> None:
        self._log = log
        self._engine = engine
        self._base_offset = base_offset
        self._check = check
        self._passed: list[tuple[LogSegment, int, int]] = []
        self._entries: list[IntegerArray] = []
        # Position, bytes since the last index entry, largest timestamp and its offset (``Engine.index_entries``).
        self._index_state: IntegerArray = np.array([0, 0, -1, base_offset], np.int64)
        self._aborted: list[AbortedTxn] = []
        self._levels: dict[int, int | None] = {}
        self._packed: ByteArray = np.empty(0, np.uint8)
        self.segment: LogSegment | None = None
        self.bytes_written = 0
        self.size = 0

    def pass_over(self, segment: LogSegment, span: tuple[int, int]) -> None:
        """Note bytes ``span`` of a segment that stay unchanged; they are copied only if the group changes elsewhere."""
        last = self._passed[-1] if self._passed else None
        if last is not None and last[0] is segment and last[2] == span[0]:
            self._passed[-1] = (segment, last[1], span[1])
        else:
            self._passed.append((segment, *span))

    def begin(self) -> LogSegment:
        """Create the new segment's files if they do not exist, and copy the bytes noted by ``pass_over``. Raises
        KafkaStorageError and what ``check`` raises."""
        if self.segment is None:
            environment = self._log.environment
            with self._log.files:
                self._remove_leftovers()
                self.segment = LogSegment.create(
                    self._log.directory,
                    self._base_offset,
                    self._log.config,
                    environment.file_system,
                    environment.time,
                    CLEANED_SUFFIX,
                )
                self.segment.records.shared  # noqa: B018 - opens the file while the directory surely is this log's
        for source, start, end in self._passed:
            copy_range(source.records, self.segment.records, (start, end), self._check)
            self.bytes_written += end - start
        self._passed.clear()
        return self.segment

    def _remove_leftovers(self) -> None:
        """Remove files that an earlier round could neither swap in nor remove (a full disk, a read-only directory)."""
        for suffix in SEGMENT_FILE_SUFFIXES:
            path = os.path.join(self._log.directory, file_name(self._base_offset, suffix + CLEANED_SUFFIX))
            self._log.environment.file_system.unlink(path, missing_ok=True)

    def write(self, out: ByteArray, out_table: IntegerArray, written: int, size: int) -> None:
        """Append filtered batches, compressed by their codecs. Raises KafkaStorageError and what ``check`` raises."""
        segment = self.begin()
        data = self.pack(out, out_table, written, size)
        self._check(len(data))
        if data:
            segment.records.append(data)
        self.bytes_written += len(data)

    def pack(self, out: ByteArray, out_table: IntegerArray, written: int, size: int) -> memoryview:
        """Compress the filtered batches by their codecs; return their bytes, and set their final sizes in
        ``out_table``."""
        if not np.any(out_table[:written, at.OUT_CODEC]):
            return out.data[:size]
        # Data that cannot be compressed grow by a 255th, and by some bytes for each block and frame.
        max_packed_bytes = size + size // 128 + 64 * written
        if len(self._packed) < max_packed_bytes:
            self._packed = np.empty(max_packed_bytes, np.uint8)
        row = target = 0
        codecs = out_table[:written, at.OUT_CODEC].tolist()
        fast = (0, at.LZ4) if self._level(at.LZ4) in (None, LZ4_DEFAULT_LEVEL) else (0,)
        while row < written:
            if codecs[row] in fast:
                done, target = self._engine.pack(out, out_table, (row, written), self._packed, target)
                if done > row:
                    row = done
                    continue
            end = row + 1
            while end < written and codecs[end] == codecs[row]:
                end += 1
            target = self._pack_alike(out, out_table[row:end], codecs[row], target)
            row = end
        return self._packed.data[:target]

    def _pack_alike(self, out: ByteArray, rows: IntegerArray, codec: int, target: int) -> int:
        """Compress batches of one codec by its library, and write them from byte ``target`` on; return their end."""
        view, packed = out.data, self._packed.data
        spans = rows[:, [at.OUT_POSITION, at.OUT_SIZE]].tolist()
        bodies = [view[start + at.BATCH_OVERHEAD : start + size] for start, size in spans]
        for number, body in enumerate(compress_many(bodies, codec, self._level(codec)) if codec else bodies):
            start, end = spans[number][0], target + at.BATCH_OVERHEAD + len(body)
            packed[target : target + at.BATCH_OVERHEAD] = view[start : start + at.BATCH_OVERHEAD]
            packed[target + at.BATCH_OVERHEAD : end] = body
            if codec:
                packed[target + 8 : target + 12] = (end - target - at.LOG_OVERHEAD).to_bytes(4, "big")
                set_crc(packed, target, end - target)
            rows[number, at.OUT_SIZE] = end - target
            target = end
        return target

    def _level(self, codec: int) -> int | None:
        if codec not in self._levels:
            name = CompressionType(codec).name.lower()
            self._levels[codec] = self._log.config.values.get(f"compression.{name}.level")
        return self._levels[codec]

    def index(self, out_table: IntegerArray, written: int) -> None:
        """Collect the index entries of the next batches, written or unchanged, whose sizes are final."""
        entries: IntegerArray = np.empty((written, 4), np.int64)
        interval = self._log.config.index_interval_bytes
        found = self._engine.index_entries(out_table, written, interval, self._index_state, entries)
        if found:
            self._entries.append(entries[:found].copy())
        self.size = int(self._index_state[0])

    def add_aborted(self, transaction: AbortedTxn) -> None:
        """Add an aborted transaction, whose marker is kept, to the transaction index."""
        self._aborted.append(transaction)

    def finish(self, modified_from: LogSegment) -> LogSegment | None:
        """Write the indices, flush the segment, and give it the modification time of ``modified_from``. Return None if
        nothing was written. Raises KafkaStorageError and what ``check`` raises.
        """
        segment = self.segment
        if segment is None:
            return None
        self.begin()
        with self._log.files:
            self._write_offset_index(segment.offset_index)
            self._write_time_index(segment.time_index)
            for transaction in sorted(self._aborted, key=lambda aborted: aborted.last_offset):
                segment.transaction_index.append(transaction)
            segment.adopt_largest(TimestampOffset(int(self._index_state[2]), int(self._index_state[3])))
            segment.flush()
            self._copy_date(modified_from, segment)
        return segment

    def _write_offset_index(self, index: OffsetIndex) -> None:
        entries = self._all_entries()[: index.max_entries]
        rows: np.ndarray[Any, Any] = np.empty(len(entries), _OFFSET_ENTRY)
        rows["offset"], rows["position"] = entries[:, 0] - self._base_offset, entries[:, 1]
        self._write_index(index, rows)

    def _write_time_index(self, index: TimeIndex) -> None:
        """Write the entries with growing timestamps; the last one has the segment's largest."""
        entries = np.concatenate([self._all_entries()[:, 2:], self._index_state[None, 2:]])
        grows = np.diff(entries[:, 0], prepend=-1) > 0
        entries = entries[grows]
        if len(entries) > index.max_entries:
            entries = np.concatenate([entries[: index.max_entries - 1], entries[-1:]])
        rows: np.ndarray[Any, Any] = np.empty(len(entries), _TIME_ENTRY)
        rows["timestamp"], rows["offset"] = entries[:, 0], entries[:, 1] - self._base_offset
        self._write_index(index, rows)

    def _all_entries(self) -> IntegerArray:
        empty: IntegerArray = np.empty((0, 4), np.int64)
        return np.concatenate([empty, *self._entries])

    def _write_index(self, index: OffsetIndex | TimeIndex, rows: np.ndarray[Any, Any]) -> None:
        """Write the whole file at once: one by one, the 14,000 entries for 110 MB of records would take 0.3 s."""
        index.close()
        file = self._log.environment.file_system.open_file(index.path, create=True)
        try:
            if len(rows):
                file.write_at(rows.tobytes(), 0)
            file.sync()
        finally:
            file.close()

    @staticmethod
    def _copy_date(source: LogSegment, target: LogSegment) -> None:
        """Copy the file's modification time, which is the age of records without timestamps for retention."""
        try:
            modified = os.stat(source.records.path).st_mtime_ns
            os.utime(target.records.path, ns=(modified, modified))
        except OSError as error:
            logger.debug("the modification time of %s could not be set: %s", target.records.path, error)

    def hand_over(self) -> None:
        """Leave the files to the caller: ``discard`` does not remove them any more."""
        self.segment = None

    def take_back(self, segment: LogSegment) -> None:
        """Take the files back from the caller: ``discard`` removes them again."""
        self.segment = segment

    def discard(self) -> None:
        """Remove the files of a round that ended early. Raises KafkaStorageError."""
        segment, self.segment = self.segment, None
        if segment is None:
            return
        try:
            with self._log.files:
                segment.close()
                segment.delete_files()
        except LogDeletedError:  # the log's whole directory is removed
            segment.release()


def group_segments(
    segments: list[LogSegment], ends: list[int], excluded: set[int], *, max_bytes: int, max_index_bytes: int
) -> list[list[LogSegment]]:
    """Group neighbouring segments that become one: together they have at most ``max_bytes`` of records and
    ``max_index_bytes`` in each index, and their offsets are within 2^31.

    ``ends`` are the segments' end offsets. Segments whose base offset is in ``excluded`` are in no group.
    """
    groups: list[list[LogSegment]] = []
    size = index_size = time_index_size = 0
    begins_group = True
    for segment, end in zip(segments, ends, strict=True):
        if segment.base_offset in excluded:
            begins_group = True
            continue
        size += segment.size
        index_size += segment.offset_index.size_bytes
        time_index_size += segment.time_index.size_bytes
        fits = size <= max_bytes and max(index_size, time_index_size) <= max_index_bytes
        if not begins_group and fits and end - 1 - groups[-1][0].base_offset <= 0x7FFFFFFF:
            groups[-1].append(segment)
            continue
        groups.append([segment])
        begins_group = False
        size, index_size = segment.size, segment.offset_index.size_bytes
        time_index_size = segment.time_index.size_bytes
    assert all(a[0].base_offset < b[0].base_offset for a, b in pairwise(groups))
    return groups
