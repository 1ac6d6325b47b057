"""Indexer of one log: it indexes records after they were appended, up to the high watermark.

    step     read up to ``max_bytes`` of whole batches -> rows -> key index, tag index -> next offset published

A *row* has what the indices need of one record (``tidelog.log.find.rows``).

An indexer has no thread: the caller of ``step`` decides when and how often. ``step`` changes nothing that the append
path reads, and holds the log's lock only for a comparison, after an error or a truncation: appends do not wait for
indexing. Each index has its own next offset: one that was switched on later, or has to be rebuilt, catches up alone
from the log start offset.

Invariants: all records below an index's ``next_offset`` are in it. ``next_offset`` moves by whole batches and never
above the high watermark. A batch that cannot be read is skipped with one log line: no reader gets its records either.
After an impossible header the next batch that can be found by its offset is the next one in the offset index. A batch
whose offsets are impossible (``ensure_possible``) is damaged.

A log may lose records that an index has entries for: in a power loss before it was opened, or by a truncation, which an
unclean leader election can make below the high watermark. Other records may get their offsets, so the index is rebuilt
(``UnifiedLog.index_bound``). A damaged index is reported and rebuilt. If the disk is full, the step raises and the
caller tries again later.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, TypeVar

from tidelog.log.fetch import FetchIsolation
from tidelog.log.find.engine import engine
from tidelog.log.find.engine.reference import RowSettings, WalkStop, append_batch, ensure_possible
from tidelog.log.find.hashing import key_seed
from tidelog.log.find.index_checkpoint import KEYS_DIRECTORY, TAGS_DIRECTORY
from tidelog.log.find.index_file import IndexDamagedError
from tidelog.log.find.key_index import IndexSizes, KeyIndex
from tidelog.log.find.rows import Rows
from tidelog.log.find.tag_index import TagIndex
from tidelog.log.unified_log import UNBOUND
from tidelog.protocol.errors import CorruptMessageError, KafkaError, KafkaStorageError, OffsetOutOfRangeError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.transferable import TransferableRecords

if TYPE_CHECKING:
    from tidelog.log.config import LogConfig
    from tidelog.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

STEP_BYTES = 4 * 1024 * 1024
"""Largest number of bytes that a step reads by default. It takes the interpreter lock half a dozen times for them
(docs/internals/find.md)."""
CHECKPOINT_BYTES = 1024 * 1024 * 1024
"""Indexed bytes after which a step writes a checkpoint, so that a crash costs only seconds of work. A step writes none
earlier: a checkpoint syncs files, and appends to the log may have to wait while the file system commits them."""

Index = TypeVar("Index", KeyIndex, TagIndex)


class LogIndexer:
    """The indexer of one log, with its indices.

    Only one thread at a time may call ``step``; look-ups read ``keys`` and ``tags`` on any thread.
    """

    def __init__(self, log: UnifiedLog, rows: Rows | None = None) -> None:
        """``rows`` is working memory that indexers of the same thread may share."""
        self.log = log
        self.keys: KeyIndex | None = None
        self.tags: TagIndex | None = None
        self.config: LogConfig | None = None
        self.rebuilds = 0
        self.skipped_batches = 0
        self._rows = rows if rows is not None else Rows()
        self._header: str | None = None
        self._unsaved_bytes = 0
        self._reached = 0
        """The offset below which this indexer has tried to put entries. A put that failed may have left some from an
        index's ``next_offset`` up to here."""
        self._seed = key_seed(log.topic_partition.topic)

    # ---- topic configuration

    def configure(self, config: LogConfig | None = None) -> None:
        """Open, remove or change indices as the topic's configuration says. Raises KafkaStorageError; ``self.config``
        is unchanged then, and the caller tries again later.
        """
        config = self.log.config if config is None else config
        sizes = IndexSizes(config.index_slots, config.index_entries, config.index_tag_entries)
        file_system, directory = self.log.environment.file_system, self.log.directory
        if not config.index_keys:
            self.keys = None
            file_system.remove_directory(os.path.join(directory, KEYS_DIRECTORY))
        elif self.keys is None:
            self.keys = self._open(KeyIndex(file_system, directory, sizes))
        if config.index_tag_header is None:
            self.tags = self._header = None
            file_system.remove_directory(os.path.join(directory, TAGS_DIRECTORY))
        elif config.index_tag_header != self._header:
            self.tags = self._header = None
            self.tags = self._open(TagIndex(file_system, directory, sizes, config.index_tag_header))
            self._header = config.index_tag_header
        self._restart_after_cut()
        self.config = config

    def _open(self, index: Index) -> Index:
        try:
            offset = index.open()
        except IndexDamagedError as error:
            logger.warning("%s: %s; rebuilding the index", self.log.topic_partition, error)
            self.rebuilds += 1
            offset = -1
        if offset < 0:
            index.restart_at(self.log.log_start_offset)
        return index

    def _restart_after_cut(self) -> None:
        """Rebuild the indices that have entries for records which the log has lost. Raises KafkaStorageError."""
        log = self.log
        bound = log.index_bound
        if bound == UNBOUND:
            return
        indices = [index for index in (self.keys, self.tags) if index is not None]
        cut = [index for index in indices if max(index.next_offset, self._reached) > bound]
        if cut:
            self._reached = UNBOUND  # until all are rebuilt: a directory that cannot be made again is tried again
        for index in cut:
            logger.warning("%s: the log has lost records that its index has; rebuilding the index", log.topic_partition)
            self.rebuilds += 1
            index.restart_at(log.log_start_offset)
        if self._reached > bound:
            self._reached = 0
        with log.lock:
            if log.index_bound == bound:  # else the log was truncated meanwhile
                log.index_bound = UNBOUND

    # ---- progress

    @property
    def next_offset(self) -> int:
        """Offset below which all indices of the log are complete; the log end offset if it has no index. Until the
        first step after a truncation it is at most the offset at which the log was cut."""
        offsets = [index.next_offset for index in (self.keys, self.tags) if index is not None]
        return min(self.log.index_bound, *offsets) if offsets else self.log.log_end_offset

    @property
    def lag(self) -> int:
        """Number of offsets below the high watermark that are not indexed yet."""
        return max(0, self.log.high_watermark - self.next_offset)

    def step(self, max_bytes: int = STEP_BYTES) -> int:
        """Index up to ``max_bytes`` more of the log, but at least one batch.

        Returns the number of bytes read, 1 if it only passed over removed or unreadable records, and 0 if there is
        nothing to do.
        Raises KafkaStorageError; the next step goes on where each index ends.
        """
        log = self.log
        self._restart_after_cut()
        start, watermark = self.next_offset, log.high_watermark
        if start < log.log_start_offset:
            self._move_to(log.log_start_offset)
            start = log.log_start_offset
        if start >= watermark or (self.keys is None and self.tags is None):
            return 0
        try:
            found = log.read(start, max_bytes, isolation=FetchIsolation.HIGH_WATERMARK, min_one_message=True)
        except OffsetOutOfRangeError:  # retention moved the log start offset: the next step begins there
            return 1
        except CorruptMessageError:
            self._pass_over_damage(start, watermark)
            return 1
        if not isinstance(found.records, TransferableRecords):
            self._move_to(watermark)  # the cleaner has removed the records below it
            return 1
        try:
            chunk = self._rows.chunk(found.records.size)
            chunk = chunk[: os.preadv(found.records.file.fileno(), [chunk], found.records.position)]
            self._index(chunk, found.records.position)
            if self.next_offset == start and len(chunk) == found.records.size:
                self._pass_over_damage(start, watermark)
        except OSError as error:
            raise KafkaStorageError(f"cannot read {log.topic_partition} for its index: {error}") from error
        finally:
            found.records.release()
        self._unsaved_bytes += len(chunk)
        if self._unsaved_bytes >= CHECKPOINT_BYTES:
            self.checkpoint()
        return len(chunk)

    def _index(self, chunk: memoryview, position: int) -> None:
        rows = self._rows
        header = self._header.encode() if self._header is not None else None
        settings = RowSettings(self._seed, header, end=self.log.log_end_offset, due=self.next_offset)
        done = 0
        while done < len(chunk):
            rows.count = 0
            walk = engine.walk_chunk(rows, chunk[done:], settings, position + done)
            next_offset = walk.next_offset
            if walk.stop is WalkStop.FULL and not walk.position:
                rows.make_room(next(iter_batches(chunk, done)).record_count)
                continue
            if walk.stop is WalkStop.ODD and not walk.position:
                size, next_offset = self._walk_odd(chunk, done, position + done, settings)
                if not size:
                    return
                done += size
            else:
                done += walk.position
            if next_offset >= 0:
                self._put(next_offset)
                settings = settings._replace(begin=next_offset, due=next_offset)
            if walk.stop is WalkStop.END:
                return

    def _walk_odd(self, chunk: memoryview, at: int, position: int, settings: RowSettings) -> tuple[int, int]:
        """Add the rows of the batch at ``at``, which ``walk_chunk`` cannot read: a compressed one, for example.

        Returns the batch's size and the offset after it. The size is 0 if the chunk ends within the batch, or if its
        header is impossible; the offset is -1 then, and if the offsets of the batch are impossible.
        """
        try:
            batch = next(iter_batches(chunk, at), None)
        except CorruptMessageError:
            batch = None
        if batch is None:
            return 0, -1
        size, next_offset = batch.size_in_bytes, -1
        try:
            ensure_possible(chunk, batch, settings)
            next_offset = batch.last_offset + 1
            if not batch.is_control:
                append_batch(self._rows, batch, settings, (position, size))
        except KafkaError as error:
            self._rows.count = 0
            self.skipped_batches += 1
            logger.warning("%s: a batch is not indexed: %s", self.log.topic_partition, error)
        return size, next_offset

    def _put(self, next_offset: int) -> None:
        self._reached = max(self._reached, next_offset)
        for index in (self.keys, self.tags):
            if index is None or index.next_offset >= next_offset:
                continue
            # The step began where the other index ends, so this one may have the first rows already.
            index.put(self._rows, self._rows.first_at(index.next_offset), next_offset)

    def _pass_over_damage(self, offset: int, watermark: int) -> None:
        """Go on after a damaged batch that keeps ``offset`` from being found: at the next batch in the segment's offset
        index, or else at the next segment, but at most at ``watermark``."""
        segments = self.log.segments
        at = segments.floor_index(offset)
        if at < 0:
            return  # retention has removed the segment: the next step begins at the log start offset
        index = segments[at].offset_index
        end = index.upper_bound_offset(index.lookup(offset).position + 1)
        if end is None:
            end = segments[at + 1].base_offset if at + 1 < len(segments) else watermark
        end = min(end, watermark)
        self.skipped_batches += 1
        logger.warning("%s: offsets %d to %d are not indexed: a header is damaged", self.log.directory, offset, end - 1)
        self._move_to(end)

    def _move_to(self, offset: int) -> None:
        for index in (self.keys, self.tags):
            if index is not None and index.next_offset < offset:
                index.next_offset = offset

    # ---- maintenance

    def trim(self) -> None:
        """Remove index files whose records retention has deleted. Raises KafkaStorageError."""
        self._restart_after_cut()  # else ``trim`` could write a checkpoint that counts lost records as indexed
        for index in (self.keys, self.tags):
            if index is not None:
                index.trim(self.log.log_start_offset)

    def checkpoint(self, *, sync: bool = True) -> None:
        """Write the checkpoints of the indices, and sync them unless ``sync`` is false. Raises KafkaStorageError."""
        self._restart_after_cut()
        self._unsaved_bytes = 0
        for index in (self.keys, self.tags):
            if index is not None:
                index.checkpoint(sync=sync)

    @property
    def is_unsaved(self) -> bool:
        """True if records were indexed since the last checkpoint."""
        return self._unsaved_bytes > 0

    def rebuild(self) -> None:
        """Rebuild all indices from the log start, after one of them was found damaged. Raises KafkaStorageError."""
        logger.warning("%s: an index is damaged; rebuilding all indices", self.log.topic_partition)
        self.rebuilds += 1
        for index in (self.keys, self.tags):
            if index is not None:
                index.restart_at(self.log.log_start_offset)
