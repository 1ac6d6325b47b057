"""Recovery of one segment after a crash, and rebuild of its indices.

``recover_segment`` checks CRC and offsets of every batch, and makes index entries, leader epochs and producer state as
appends would have made them. The file is cut at the first damage, if a crash can have caused it there:

==================================  =================================================================================
damage at bytes that ...            result
==================================  =================================================================================
were never synced (at or after      cut there; nothing after it was synced either
the recovery point)
were synced                         kept and reported, up to the next batch that has a right CRC; readers of the damaged
                                    batch see its CRC fail, all others read on
were synced, nothing valid follows  LogLoadError: after a cut, new records would get old offsets
==================================  =================================================================================

Valid batches are walked by compiled code (``tidelog.log.recovery.walk``) where the package is compiled. Plain Python
walks where it is not, and from the first batch on that the compiled walk cannot take.

``index_fault`` finds what is wrong with the indices of a segment, by their first and last entries or by every entry.
``end_after_entries`` finds where the segment ends, and whether entries are missing at its end. ``rebuild_indices``
builds the indices from batch headers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.log.damage import DamageCounts
from tidelog.log.index.time_index import TimestampOffset
from tidelog.log.index.transaction_index import AbortedTxn
from tidelog.log.leader_epochs import LeaderEpochCache
from tidelog.log.producer.replay import replay_batch, replay_segment
from tidelog.log.producer.state import ProducerStateManager
from tidelog.log.records.section_walk import IS_COMPILED
from tidelog.log.recovery.progress import RecoveryProgress
from tidelog.log.segment.batch_scan import (
    BODY_CHUNK_BYTES,
    BatchHeader,
    crc_matches,
    iter_batches,
    iter_headers,
    parse_header,
)
from tidelog.log.segment.segment import LogSegment
from tidelog.log.system.reserve import write_if_room
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError
from tidelog.protocol.record.record_batch import NO_TIMESTAMP, RECORD_BATCH_OVERHEAD

logger = logging.getLogger(__name__)

_ANY_TIME = (1 << 63) - 1


class LogLoadError(KafkaStorageError):
    """The files of a partition do not form a log that may be served; the message names the file and the fault."""


class RecoveredSegment(NamedTuple):
    """Result of a segment's recovery: the number of bytes cut, and the offset after the last valid batch."""

    cut_bytes: int
    end_offset: int


def has_index_room(segment: LogSegment, largest: TimestampOffset) -> bool:
    """Return whether both indices can take the entries of another batch, up to which ``largest`` is the largest
    timestamp.

    Appends to a full index roll the segment. A rebuild may have more entries than appends made, and less room: after
    ``index.interval.bytes`` or ``segment.index.bytes`` was lowered.
    """
    if segment.offset_index.room <= 0:
        return False
    return segment.time_index.room > 0 or largest.timestamp <= segment.time_index.last_entry.timestamp


class _IndexBuilder:
    """Builder of a segment's offset and time index, with the entries that appends of the batches would have made."""

    __slots__ = ("_segment", "interval_bytes", "largest", "last_entry_position")

    def __init__(self, segment: LogSegment, interval_bytes: int) -> None:
        self._segment = segment
        self.interval_bytes = interval_bytes
        self.last_entry_position = 0
        self.largest = TimestampOffset(-1, segment.base_offset)
        segment.offset_index.reset()
        segment.time_index.reset()

    def add(self, header: BatchHeader) -> None:
        """Add what an append of the batch would have added. Entries that a full index cannot take are left out."""
        segment = self._segment
        if header.max_timestamp > self.largest.timestamp:
            self.largest = TimestampOffset(header.max_timestamp, header.last_offset)
        if header.position - self.last_entry_position > self.interval_bytes and has_index_room(segment, self.largest):
            segment.offset_index.append(header.last_offset, header.position)
            segment.time_index.maybe_append(*self.largest)
            self.last_entry_position = header.position

    def finish(self) -> None:
        if self.largest.timestamp >= 0:
            self._segment.time_index.maybe_append(*self.largest, on_roll=True)
        self._segment.offset_index.trim()
        self._segment.time_index.trim()
        self._segment.forget_state()


class SegmentRecovery:
    """Recovery of one segment: the walk, the valid bytes so far, and the indices and state built from them. One
    thread."""

    __slots__ = (
        "_progress",
        "_state",
        "builder",
        "damage",
        "epochs",
        "next_offset",
        "segment",
        "synced_below",
        "valid",
    )

    def __init__(
        self,
        segment: LogSegment,
        state: ProducerStateManager,
        epochs: LeaderEpochCache,
        *,
        synced_below: int,
        interval_bytes: int,
        progress: RecoveryProgress | None,
        damage: DamageCounts,
    ) -> None:
        self.segment = segment
        self.epochs = epochs
        self.synced_below = synced_below
        self.builder = _IndexBuilder(segment, interval_bytes)
        self.valid = 0
        self.next_offset = segment.base_offset
        self._state = state
        self._progress = progress
        self.damage = damage
        segment.transaction_index.reset()

    def run(self) -> RecoveredSegment:
        """Recover the segment; see :func:`recover_segment`."""
        if IS_COMPILED:
            from tidelog.log.recovery.walk import CompiledWalk  # late: a clean start does not need it

            CompiledWalk(self).run()
        self._walk()
        segment, size = self.segment, self.segment.size
        self._state.end_offset = max(self._state.end_offset, self.next_offset)
        if self.valid < size:
            self._ensure_unsynced(f"has no valid batch from byte {self.valid} on", self.next_offset)
            logger.warning("%s: cutting %d bytes from byte %d on", segment.records.path, size - self.valid, self.valid)
            self.damage.cut_bytes += size - self.valid
            segment.records.truncate_to(self.valid)
            # A later flush may leave this file out, and a second power loss must not bring the bytes back.
            segment.records.flush()
        self.builder.finish()
        write_if_room(segment.transaction_index.save, "aborted transactions are kept in memory")
        if self._progress is not None:
            self._progress.add(size - self.valid)
        return RecoveredSegment(size - self.valid, self.next_offset)

    def _walk(self) -> None:
        """Walk on in plain Python from byte ``valid``."""
        for header, batch in _intact_batches(self):
            if header.base_offset < self.next_offset or header.last_offset - self.segment.base_offset > 0x7FFFFFFF:
                # No checksum covers base offsets: a wrong one may have raised ``next_offset`` above what was synced.
                lowest = min(self.next_offset, header.base_offset)
                self._ensure_unsynced(f"goes back to offset {header.base_offset} at byte {header.position}", lowest)
                return
            self.builder.add(header)
            if header.magic == 2:
                if header.leader_epoch > self.epochs.latest_epoch:
                    self.epochs.assign(header.leader_epoch, header.base_offset, write=False)
                if header.producer_id >= 0:
                    self.replay(header, batch)
            self.advance(header.position + header.size, header.last_offset + 1)

    def advance(self, valid: int, next_offset: int) -> None:
        """Note that the bytes below ``valid`` and the offsets below ``next_offset`` are walked."""
        if self._progress is not None:
            self._progress.add(valid - self.valid)
        self.valid, self.next_offset = valid, next_offset

    def replay(self, header: BatchHeader, batch: memoryview) -> None:
        """Apply a producer's batch to the state and the transaction index."""
        aborted = replay_batch(self._state, header, batch)
        if aborted is not None:
            self.segment.transaction_index.append(aborted)

    def _ensure_unsynced(self, what: str, offset: int) -> None:
        """Raise LogLoadError if the records from ``offset`` on, which are about to be cut, were synced."""
        if offset < self.synced_below:
            raise LogLoadError(
                f"{self.segment.records.path} {what}, though offsets below {self.synced_below} were synced"
            )


def recover_segment(
    segment: LogSegment,
    state: ProducerStateManager,
    epochs: LeaderEpochCache,
    *,
    synced_below: int,
    interval_bytes: int,
    progress: RecoveryProgress | None = None,
    damage: DamageCounts,
) -> RecoveredSegment:
    """Recover one segment as the module says. ``synced_below`` is the recovery point.

    Raises LogLoadError, KafkaStorageError.
    """
    return SegmentRecovery(
        segment,
        state,
        epochs,
        synced_below=synced_below,
        interval_bytes=interval_bytes,
        progress=progress,
        damage=damage,
    ).run()


def _intact_batches(work: SegmentRecovery) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield batches with a right CRC, in order, from byte ``work.valid`` on. Damaged ones below the recovery point are
    skipped; the first damaged one from there on ends the walk.
    """
    segment = work.segment
    position, next_offset = work.valid, work.next_offset
    while True:
        try:
            for header, batch in iter_batches(segment.records, position, segment.size):
                if not crc_matches(header, batch):
                    raise CorruptMessageError(f"wrong CRC at byte {header.position} of {segment.records.path}")
                yield header, batch
                position, next_offset = header.position + header.size, header.last_offset + 1
            if position == segment.size:
                return
            raise CorruptMessageError(f"incomplete batch at byte {position} of {segment.records.path}")
        except CorruptMessageError as error:
            if next_offset >= work.synced_below:
                logger.warning("a segment is valid only up to a damaged batch: %s", error)
                return
            work.damage.batches += 1
            logger.error("a damaged batch is kept, but its records cannot be read: %s", error)
            found = find_next_batch(segment, position + 1, next_offset)
            if found is None:
                return
            position = found


def find_next_batch(segment: LogSegment, start: int, next_offset: int) -> int | None:
    """Find the byte at or after ``start`` at which the next batch with a right CRC and no offset below ``next_offset``
    begins; None if there is none.

    Only batches of magic 2 are found: their headers are long enough to be recognized.
    """
    size = segment.size
    position = start
    while position + RECORD_BATCH_OVERHEAD <= size:
        chunk = segment.records.read_at(position, min(BODY_CHUNK_BYTES, size - position))
        at = chunk.find(b"\x02", 16)
        while at >= 0 and at - 16 + RECORD_BATCH_OVERHEAD <= len(chunk):
            candidate = position + at - 16
            if _is_intact_batch(segment, chunk, at - 16, candidate, next_offset):
                return candidate
            at = chunk.find(b"\x02", at + 1)
        if position + len(chunk) >= size:
            return None
        position += len(chunk) - RECORD_BATCH_OVERHEAD + 1
    return None


def _is_intact_batch(segment: LogSegment, chunk: bytes, at: int, position: int, next_offset: int) -> bool:
    try:
        header = parse_header(chunk, at, position, segment.records.path)
    except CorruptMessageError:
        return False
    if header.base_offset < next_offset or header.position + header.size > segment.size:
        return False
    if header.last_offset - segment.base_offset > 0x7FFFFFFF:
        return False
    return _is_intact(segment, header)


def rebuild_indices(segment: LogSegment, interval_bytes: int) -> int | None:
    """Rebuild offset and time index of a segment from the headers of :func:`headers_past_damage`.

    Return the offset after the last batch; None if the segment does not end with a batch whose header can be read.
    Raises KafkaStorageError.
    """
    builder = _IndexBuilder(segment, interval_bytes)
    position, end = 0, segment.base_offset
    for header in headers_past_damage(segment):
        builder.add(header)
        position, end = header.position + header.size, header.last_offset + 1
    builder.finish()
    return end if position == segment.size else None


def headers_past_damage(segment: LogSegment) -> Iterator[BatchHeader]:
    """Yield the headers of a segment in order, without impossible ones. Checksums are compared only after damage and
    where offsets go back, so the records of a batch may be damaged all the same. Raises KafkaStorageError."""
    end = segment.base_offset
    resumed: int | None = 0
    while resumed is not None:
        position = resumed
        try:
            for header in _headers_in_order(segment, position, end):
                yield header
                position, end = header.position + header.size, header.last_offset + 1
        except CorruptMessageError as error:
            logger.error("a damaged batch is left out: %s", error)
        resumed = find_next_batch(segment, position + 1, end)


def _headers_in_order(segment: LogSegment, position: int, end: int) -> Iterator[BatchHeader]:
    """Yield the headers from byte ``position`` on; ``end`` is the lowest offset that the first may have.

    A batch with a wrong checksum is left out if the next one begins at or below its last offset. Raises
    CorruptMessageError at an impossible header, and at a batch that begins below the end of one that was yielded.
    """
    held: BatchHeader | None = None
    try:
        for header in iter_headers(segment.records, position, segment.size):
            if held is not None and (header.base_offset > held.last_offset or _is_intact(segment, held)):
                yield held
                end, held = held.last_offset + 1, None
            if header.base_offset < end or header.last_offset - segment.base_offset > 0x7FFFFFFF:
                raise CorruptMessageError(
                    f"impossible offset {header.base_offset} at byte {header.position} of {segment.records.path}"
                )
            held = header
    except CorruptMessageError:
        if held is not None:
            yield held
        raise
    if held is not None:
        yield held


def _is_intact(segment: LogSegment, header: BatchHeader) -> bool:
    return crc_matches(header, memoryview(segment.records.read_at(header.position, header.size)))


def rebuild_transaction_index(segment: LogSegment, state: ProducerStateManager, end_offset: int) -> bool:
    """Rebuild the transaction index of a segment, which ends at most at ``end_offset``; ``state`` is the producer state
    at its base offset. Return False, and leave the index as it is, if damage may hide the end of a transaction. Raises
    KafkaStorageError.
    """
    found: list[AbortedTxn] = []
    if not replay_segment(state, segment, end_offset, found.append):
        return False
    segment.transaction_index.reset()
    for transaction in found:
        segment.transaction_index.append(transaction)
    write_if_room(segment.transaction_index.save, "aborted transactions are kept in memory")
    return True


def index_fault(segment: LogSegment, *, every_entry: bool) -> str | None:
    """Return a fault of the offset or time index; None if there is none. The first and last entries are checked, or
    every entry."""
    try:
        return _offset_index_fault(segment, every_entry=every_entry) or _time_index_fault(
            segment, every_entry=every_entry
        )
    except CorruptMessageError as error:
        return str(error)


def _offset_index_fault(segment: LogSegment, *, every_entry: bool) -> str | None:
    index = segment.offset_index
    if index.has_partial_entry:
        return f"{index.path} ends within an entry"
    count = index.entries
    slots = range(count) if every_entry else sorted({0, count - 1} if count else ())
    previous = (segment.base_offset - 1, -1)
    for slot in slots:
        entry = index.entry(slot)
        if entry.offset <= previous[0] or entry.position <= previous[1] or entry.position >= segment.size:
            return f"{index.path} entry {slot} ({entry.offset} at byte {entry.position}) is impossible"
        previous = entry
    if count:
        last = index.entry(count - 1)
        # The batch at the entry's position may end before the entry's offset: Apache Kafka makes one entry for all
        # batches that a follower appends at once, with the offset of the last one.
        ends = (header.last_offset for header in segment.headers(last.position))
        if next((end for end in ends if end >= last.offset), None) != last.offset:
            return f"{index.path} entry {count - 1} does not point at the append of offset {last.offset}"
    return None


def end_after_entries(segment: LogSegment, interval_bytes: int) -> int | None:
    """Read the offset after the last batch; None if a rebuild would add offset index entries after the last one, or if
    bytes there are damaged, which the rebuild reports.

    Entries are missing at the end after a restart of Apache Kafka, clean or not: it begins to count the bytes for the
    next entry from 0 again. Look-ups would only take longer, but one rebuild ends that.
    """
    index, end = segment.offset_index, segment.base_offset
    start = index.entry(index.entries - 1).position if index.entries else 0
    position, has_room, latest = start, index.room > 0, _latest_indexed(segment)
    try:
        for header in _headers_in_order(segment, start, end):
            has_room = has_room and header.max_timestamp <= latest
            if has_room and header.position - start > interval_bytes:
                return None
            position, end = header.position + header.size, header.last_offset + 1
    except CorruptMessageError:
        return None
    return end if position == segment.size else None


def _latest_indexed(segment: LogSegment) -> int:
    """Return the largest timestamp up to which batches can still have index entries. There is no limit unless the time
    index is full; then it is the timestamp of its last entry, not counting the one that a roll added."""
    index = segment.time_index
    if index.room > 0:
        return _ANY_TIME
    last = index.max_entries - index.RESERVED_SLOTS - 1
    return index.entry(last).timestamp if last >= 0 else NO_TIMESTAMP


def _time_index_fault(segment: LogSegment, *, every_entry: bool) -> str | None:
    index = segment.time_index
    if index.has_partial_entry:
        return f"{index.path} ends within an entry"
    count = index.entries
    previous = TimestampOffset(-1, segment.base_offset - 1)
    for slot in range(count) if every_entry else sorted({0, count - 1} if count else ()):
        entry = index.entry(slot)
        if (
            entry.timestamp <= previous.timestamp
            or entry.offset < previous.offset
            or entry.offset < segment.base_offset
        ):
            return f"{index.path} entry {slot} ({entry.timestamp} at {entry.offset}) is impossible"
        previous = entry
    return _last_time_entry_fault(segment, previous if count else None)


def _last_time_entry_fault(segment: LogSegment, last: TimestampOffset | None) -> str | None:
    """Return a fault if no batch has the timestamp and offset of the ``last`` entry. Without entries it is a fault if
    the first batch has a timestamp and the offset index has entries.
    """
    index = segment.time_index
    if last is None:
        for header in segment.headers():
            return f"{index.path} is empty" if header.max_timestamp >= 0 and segment.offset_index.entries else None
        return None
    for header in segment.headers(segment.offset_index.lookup(last.offset).position):
        if header.last_offset == last.offset and header.max_timestamp == last.timestamp:
            return None
        if header.last_offset >= last.offset:
            break
    return f"{index.path} ends with {last.timestamp} at {last.offset}, which no batch has"
