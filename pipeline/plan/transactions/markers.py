"""Aborted transactions from the markers in the log, since the index beside a segment may be missing or damaged.

    batch of a transaction   the next marker of its producer says whether it was committed
    a later marker           the walk reads ahead of the reader, through later segments too, to the transactions' ends
    damage on the way        a marker may be lost in it: for transactions open there the ``.txnindex`` files decide;
                             if one is damaged, or they lack the abort marker that comes next, reading is refused
    no later marker          the ``.txnindex`` files decide, too; a transaction without an entry is not aborted. If one
                             is damaged, reading is refused
    the segment is deleted   its ``.txnindex`` may be deleted, too, and then counts as damaged

A walk begins where its reader does and looks at each batch once, in the reader's own chunk if the batch is there. It
reads ahead only while a transaction is open, in steps that grow. A cleaner keeps the marker of a transaction as
long as it keeps a batch of it. Missing offsets between segments count as damage unless a cleaner has worked there. One
thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.segment.batch_scan import CONTROL_MASK, TRANSACTIONAL_MASK, parse_header
from tidelog.log.segment.resync import find_resume_position
from tidelog.log.segment.transaction_check import commits_transaction
from tidelog.pipeline.engine import reference as at
from tidelog.pipeline.engine.engine import AuditEngine
from tidelog.pipeline.engine.reference import ByteArray, IntegerArray
from tidelog.pipeline.errors import PipelineError, UndecidedTransactionError
from tidelog.pipeline.files.segment_files import SegmentFile, list_segments
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.sparse_index import indexed_batches
from tidelog.pipeline.plan.holes import checkpointed_below
from tidelog.pipeline.plan.transactions.aborted import aborted_transactions
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError
from tidelog.protocol.record.record_batch import (
    LOG_OVERHEAD,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
)

CHUNK_BYTES = 2 * 1024 * 1024
#: The first step ahead of the reader, for each chunk that ends within a transaction. Each further step is twice as
#: long, up to CHUNK_BYTES. The reader reads these bytes again.
STEP_BYTES = 128 * 1024
_TABLE_ROWS = 4096
_ATTEMPTS = 5


@dataclass(slots=True)
class _Open:
    """A transaction without a marker so far: its first offset, and its first byte in the reader's file.

    ``position`` is None if it begins in a later file. ``damage`` describes damage that may hide its marker.
    """

    first: int
    position: int | None
    damage: str | None = None


class _Bytes:
    """The file that a walk is in, and the byte it has reached. Batches below offset ``known_below`` were seen in
    earlier files."""

    def __init__(self, segment: SegmentFile, file: OpenSegment, position: int, known_below: int = 0) -> None:
        self.segment = segment
        self.file = file
        self.position = position
        self.known_below = known_below


class MarkerWalk:
    """A walk over the markers of a log. The caller closes ``file``; ``close`` closes files that the walk itself
    opened."""

    def __init__(
        self, partition: TopicPartition, segment: SegmentFile, file: OpenSegment, *, position: int, end_offset: int,
        engine: AuditEngine,
    ) -> None:  # fmt: skip
        """The walk begins at byte ``position``; only transactions that begin below ``end_offset`` matter."""
        self._partition = partition
        self._end_offset = end_offset
        self._engine = engine
        self._own = self._at = _Bytes(segment, file, position)
        self._open: dict[int, _Open] = {}
        self._aborted: list[tuple[int, int, int]] = []
        self._next_offset = segment.base_offset
        self._is_at_end = False
        self._index: list[tuple[int, int, int]] | None = None
        self._is_index_damaged = False
        self._table = np.zeros((_TABLE_ROWS, at.COLUMNS), np.int64)
        self._buffer = np.zeros(0, np.uint8)
        self._step = STEP_BYTES
        #: Start and end, within the last chunk, of the batches whose CRCs the walk found valid.
        self.verified = (0, 0)

    def close(self) -> None:
        """Close the file that the walk opened last."""
        if self._at is not self._own:
            self._at.file.close()

    def aborted_below(self, buffer: ByteArray, size: int, position: int) -> IntegerArray:
        """Collect the aborted transactions of the file's records up to byte ``position + size``: sorted rows of
        producer id, first and last offset. ``buffer[:size]`` holds the file's bytes from ``position`` on.

        Raises UndecidedTransactionError when damage hides whether a transaction was aborted: a further call goes on
        without that transaction. Raises other PipelineErrors when a file cannot be read.
        """
        self.verified = (0, 0)
        self._step = STEP_BYTES
        if self._at is self._own and position <= self._at.position < position + size:
            start = self._at.position - position
            self.verified = (start, start + self._take_chunk(buffer[start:size]))
        end = position + size
        while (self._is_behind(buffer, size, position) or self._waits_below(end)) and self._advance():
            pass
        for producer_id in [p for p, found in self._open.items() if self._matters(found, end)]:
            self._end(producer_id, None, is_abort=False)  # the log ends without its marker
        return np.array(sorted(self._aborted), np.int64).reshape(-1, 3)

    def _matters(self, found: _Open, end: int) -> bool:
        return found.position is not None and found.position < end and found.first < self._end_offset

    def _is_behind(self, buffer: ByteArray, size: int, position: int) -> bool:
        """Return whether these bytes hold batches that the walk has still to reach, other than one that their end
        cuts."""
        here = self._at
        if here is not self._own or here.position >= position + size:
            return False
        rest = buffer[max(0, here.position - position) : size]
        if here.position < position or len(rest) < LOG_OVERHEAD:
            return here.position < position or position + size >= here.file.size
        end = here.position + int.from_bytes(rest[8:LOG_OVERHEAD].tobytes(), "big") + LOG_OVERHEAD
        return not position + size < end <= here.file.size

    def _waits_below(self, end: int) -> bool:
        return any(self._matters(found, end) for found in self._open.values())

    # ---- bytes

    def _advance(self) -> bool:
        """Walk over some more bytes; False at the end of the log."""
        if self._is_at_end:
            return False
        here = self._at
        if here.position >= here.file.size:
            return self._go_to_next_segment()
        wanted = min(self._step, here.file.size - here.position)
        if len(self._buffer) < wanted:
            self._buffer = np.empty(wanted, np.uint8)
        size = here.file.read_into(here.position, self._buffer[:wanted].data)
        before = here.position
        self._take_chunk(self._buffer[:size])
        if here.position > before:
            self._step = min(2 * self._step, CHUNK_BYTES)
            return True
        claimed = int.from_bytes(self._buffer[8:12].tobytes(), "big") + LOG_OVERHEAD
        if size < claimed <= here.file.size - before:
            self._step = claimed
        else:
            self._resume(before, "it is cut by the end of the file")
        return True

    def _take_chunk(self, chunk: ByteArray) -> int:
        """Walk over the complete batches of a chunk that begins at the walk's position; returns how many of its first
        bytes are batches of magic 2 with valid checksums.
        """
        begin, done, size, valid = self._at.position, 0, len(chunk), -1
        while done < size:
            stop, count, done = self._engine.walk_batches(chunk, done, size, self._table)
            rows = self._table[:count]
            damaged = np.flatnonzero(rows[:, at.IS_VALID] == 0)
            self._take_rows(rows[: damaged[0]] if len(damaged) else rows, chunk, begin)
            is_whole = not len(damaged) and stop != at.NOT_MAGIC_2
            if valid < 0 and not is_whole:
                valid = int(rows[damaged[0], at.POSITION]) if len(damaged) else done
            if len(damaged):
                done = self._resume(begin + int(rows[damaged[0], at.POSITION]), "a wrong checksum") - begin
            elif stop == at.NOT_MAGIC_2:
                done = self._pass_other(chunk, done, begin)
                if done < 0:
                    return valid
            elif stop == at.NEED_BYTES:
                break
        self._at.position = begin + done
        return valid if valid >= 0 else done

    def _pass_other(self, chunk: ByteArray, done: int, begin: int) -> int:
        """Skip an old message, which is in no transaction, or damage; returns the position after it in the chunk, -1
        when more bytes are needed."""
        self._at.position = begin + done
        rest = chunk[done : done + RECORD_BATCH_OVERHEAD].tobytes()
        try:
            header = parse_header(rest, 0, begin + done, self._at.file.path)
        except (CorruptMessageError, IndexError):
            return self._resume(begin + done, "no batch begins there") - begin
        if header.magic == MAGIC_V2:
            return self._resume(begin + done, "an impossible header") - begin
        if done + header.size > len(chunk):
            return -1
        self._next_offset = header.last_offset + 1
        return done + header.size

    def _resume(self, position: int, why: str) -> int:
        """Move to the next batch after damage, and note that markers of open transactions may be lost in it."""
        here = self._at
        indexed = indexed_batches(here.segment, position)
        here.position = find_resume_position(here.file, position, here.file.size, indexed)
        self._note_damage(f"{here.file.path}: damaged at byte {position} ({why})")
        return here.position

    def _note_damage(self, damage: str) -> None:
        for found in self._open.values():
            found.damage = found.damage or damage

    def _go_to_next_segment(self) -> bool:
        """Open the segment that follows; False when there is none."""
        here = self._at
        for _ in range(_ATTEMPTS):
            try:
                following = self._next_segment(here)
                if following is None:
                    self._is_at_end = True
                    return False
                file = OpenSegment(following.path)
            except FileNotFoundError:
                continue
            self.close()
            self._at = _Bytes(following, file, 0, self._next_offset)
            if following.base_offset > max(self._next_offset, self._cleaned_below()):
                self._note_damage(f"{following.path}: nothing holds offset {self._next_offset}, which comes before it")
            return True
        raise PipelineError(
            f"{os.path.dirname(here.file.path)}: its segments were deleted faster than they could be read"
        )

    def _next_segment(self, here: _Bytes) -> SegmentFile | None:
        """Find the segment that follows. A file that the cleaner swapped may hold batches that were read and others
        after them; a file that was read whole is not read again.
        """
        found = None
        for segment in list_segments(os.path.dirname(here.file.path)):
            is_later = segment.base_offset > here.segment.base_offset
            if segment.base_offset <= self._next_offset and (is_later or self._is_another(segment, here)):
                found = segment
            elif is_later:
                return found or segment
        return found

    def _is_another(self, segment: SegmentFile, here: _Bytes) -> bool:
        if segment.base_offset != here.segment.base_offset:
            return False
        with OpenSegment(segment.path) as file:
            return not file.is_same(here.file.inode, 0, here.file.size)

    def _cleaned_below(self) -> int:
        try:
            return checkpointed_below(self._partition, os.path.dirname(self._at.file.path))
        except KafkaStorageError:
            return 0

    # ---- transactions

    def _take_rows(self, rows: IntegerArray, chunk: ByteArray, begin: int) -> None:
        if not len(rows):
            return
        self._next_offset = int(rows[-1, at.LAST_OFFSET]) + 1
        counts = rows[:, at.ATTRIBUTES] & (CONTROL_MASK | TRANSACTIONAL_MASK) != 0
        counts &= rows[:, at.BASE_OFFSET] >= self._at.known_below
        for row in rows[counts].tolist():
            producer_id = row[at.PRODUCER_ID]
            if row[at.ATTRIBUTES] & CONTROL_MASK:
                is_commit = commits_transaction(chunk.data[row[at.POSITION] : row[at.POSITION] + row[at.SIZE]])
                if is_commit is not None and producer_id in self._open:
                    self._end(producer_id, row[at.LAST_OFFSET], is_abort=not is_commit)
            elif producer_id not in self._open:
                position = begin + row[at.POSITION] if self._at is self._own else None
                self._open[producer_id] = _Open(row[at.BASE_OFFSET], position)

    def _end(self, producer_id: int, marker: int | None, *, is_abort: bool) -> None:
        """End the producer's transaction at the marker of offset ``marker``, or (None) at the end of the log."""
        found = self._open.pop(producer_id)
        if found.damage is None and marker is not None:
            if is_abort:
                self._aborted.append((producer_id, found.first, marker))
            return
        entries = [entry for entry in self._read_index() if entry[0] == producer_id and entry[2] > found.first]
        covering = [entry for entry in entries if entry[1] <= found.first]
        lacks_marker = is_abort and not any(entry[2] == marker for entry in entries)
        if covering:
            self._aborted.append((producer_id, found.first, covering[0][2]))
        elif lacks_marker or (self._is_index_damaged and (marker is None or found.damage is not None)):
            damage = found.damage or f"{self._at.file.path}: the log ends"
            raise UndecidedTransactionError(
                f"{damage}; the marker of producer {producer_id}'s transaction of offset {found.first} may be "
                "lost there, and no .txnindex says whether it was aborted (read_uncommitted reads it)"
            )

    def _read_index(self) -> list[tuple[int, int, int]]:
        """Read the index files' entries; none when one is damaged or keeps changing its name."""
        if self._index is None:
            try:
                found = aborted_transactions(os.path.dirname(self._own.file.path), 0, 2**63 - 1)
            except (PipelineError, FileNotFoundError):
                found, self._is_index_damaged = (), True
            self._is_index_damaged = self._is_index_damaged or not self._is_own_segment_there()
            self._index = [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in found]
        return self._index

    def _is_own_segment_there(self) -> bool:
        """Return whether the reader's file has still a name: a broker deletes a segment's record file before its
        ``.txnindex``. The names are tried in the order of renames, so a file that is renamed meanwhile is
        found."""
        stem = self._own.segment.path.rpartition(".log")[0]
        return any(_is_file(f"{stem}.log{ending}", self._own.file.inode) for ending in (".swap", "", ".deleted"))


def _is_file(path: str, inode: int) -> bool:
    try:
        with OpenSegment(path) as file:
            return file.inode == inode
    except FileNotFoundError:
        return False
