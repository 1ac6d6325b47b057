"""One cleaning round over one log, in the caller's thread; the caller passes the time in.

    index pass   dirty section -> one "superseded" bit per record          (``tidelog.cleaner.round.superseded``)
    copy pass    group by group: filter -> .cleaned -> flush -> swap -> progress

A *group* is neighbouring segments that one new segment replaces. A round works on a snapshot of segments, whose files
it holds open while it reads them. Truncation, deletion and retention may go on meanwhile: a group is swapped only if
all its segments are still in the log and ``check`` has not raised. A group in which nothing changes is not rewritten.
After each group that ends above the first dirty offset the log is clean up to the group's end, and that offset is
saved.

A segment with a wrong length field cannot be divided into batches (framed): it is not rewritten either, and it is
reported. Records that cannot be read stay, and readers may get them all the same. So the tombstones after them stay
too, and the markers of their transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine.arrays import IntegerArray
from tidelog.cleaner.engine.engine import Engine
from tidelog.cleaner.engine.offset_map import SIPHASH_ALGORITHM
from tidelog.cleaner.engine.transaction_rows import TransactionRows
from tidelog.cleaner.errors import CleaningAbortedError, UnframedSegmentError
from tidelog.cleaner.log_to_clean import LogToClean
from tidelog.cleaner.round.chunk import TABLE_ROWS, Reading
from tidelog.cleaner.round.segment_reader import REPORTED_BATCHES, SegmentReader, UnreadableBatch, is_always_allowed
from tidelog.cleaner.round.segment_writer import CleanedSegment, group_segments
from tidelog.cleaner.round.stretches import Stretch
from tidelog.cleaner.round.superseded import KeyIndex, Section
from tidelog.log.index.transaction_index import AbortedTxn
from tidelog.log.index_proof import ensure_proven
from tidelog.log.producer.state import PRODUCERS_UNDER_LOCK, ProducerEntry, producers_in_parts
from tidelog.log.segment.segment import LogSegment
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

_NEVER_MS = 2**63 - 1
_BEFORE_ALL_MS = -(2**63)

#: Dirty bytes for each byte of a new map: with a new key in every fourth record of 100 bytes, the map need not grow.
DATA_PER_MAP_BYTE = 16


@dataclass(slots=True)
class CleanerStats:
    """Counts of one round: bytes and records of the cleaned range, batches that could not be read, and how full the map
    of keys became."""

    end_offset: int = -1
    bytes_indexed: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    keyless_records: int = 0
    tombstones_dropped: int = 0
    groups_rewritten: int = 0
    groups_unchanged: int = 0
    map_utilization: float = 0.0
    collision_rate: float = 0.0
    spilled_bytes: int = 0
    unreadable_batches: int = 0
    unreadable: list[UnreadableBatch] = field(default_factory=list)

    def add_unreadable(self, batches: list[UnreadableBatch]) -> None:
        """Count these batches, and keep the first ones for reports."""
        self.unreadable_batches += len(batches)
        self.unreadable += batches[: max(0, REPORTED_BATCHES - len(self.unreadable))]


@dataclass(frozen=True, slots=True)
class CleanerOptions:
    """Memory and limits of one round. ``reads_ahead`` returns, before each step (``tidelog.cleaner.round.chunk``),
    whether a helper thread may read the next step meanwhile."""

    map_bytes: int = 128 * 1024 * 1024
    io_buffer_bytes: int = 1024 * 1024
    load_factor: float = 0.9
    hash_algorithm: str = SIPHASH_ALGORITHM
    max_decompressed_bytes: int = 64 * 1024 * 1024
    reads_ahead: Callable[[], bool] = is_always_allowed


@dataclass(frozen=True, slots=True)
class RoundHooks:
    """Callbacks of a round.

    ``check`` gets the number of bytes read or to be written; it may wait (throttle) or raise CleaningAbortedError.
    ``progress`` gets, after each group that ends above the first dirty offset, the offset below which the log is clean.
    """

    check: Callable[[int], None] = lambda _bytes: None
    progress: Callable[[int], None] = lambda _offset: None


class ProducerNeeds(NamedTuple):
    """The needs of producers: (last offset, producer id) of the batches with their last sequences, and
    (producer id, epoch) of producers that are known by a marker only."""

    last_batches: IntegerArray
    fences: IntegerArray


NO_NEEDS = ProducerNeeds(np.zeros((0, 2), np.int64), np.zeros((0, 2), np.int64))


def read_needs(log: UnifiedLog, clean_bound: int) -> ProducerNeeds:
    """Read what the producers need of the log, some of them under its lock at a time: appends wait for it.

    A producer that is added or writes between two parts needs records at the log's end, which the round does not read:
    at worst an older batch of the producer is kept, too. A truncation rebuilds the producers' state, in another order.
    Raises CleaningAbortedError if one has lowered ``log.clean_bound`` below ``clean_bound``, its value at the round's
    start.
    """
    parts, tables = producers_in_parts(log.producer_state, PRODUCERS_UNDER_LOCK), [np.zeros((0, 3), np.int64)]
    part: list[ProducerEntry] | None = []
    while part is not None:
        with log.lock:
            _abort_if_truncated(log, clean_bound)
            part = next(parts, None)
            rows = [(entry.last_offset, entry.producer_id, entry.producer_epoch) for entry in part or ()]
        tables.append(np.array(rows, np.int64).reshape(-1, 3))
    table = np.concatenate(tables)
    is_fence = table[:, 0] < 0
    return ProducerNeeds(table[~is_fence, :2], table[is_fence, 1:])


def _abort_if_truncated(log: UnifiedLog, clean_bound: int) -> None:
    """Raise CleaningAbortedError if the log was truncated in the round: then an earlier batch of a producer may be its
    last one again. Under the log's lock."""
    if log.clean_bound < clean_bound:
        raise CleaningAbortedError(f"the log of {log.topic_partition} was truncated")


@dataclass(frozen=True, slots=True)
class _Copy:
    """Destination of a group of segments, and the transactions' state in the copy pass."""

    target: CleanedSegment
    transactions: TransactionRows
    dry_run: bool


class Cleaner:
    """Runner of rounds, one log at a time, without state between rounds. One thread."""

    def __init__(self, engine: Engine, options: CleanerOptions | None = None) -> None:
        self._engine = engine
        self._options = options or CleanerOptions()

    def clean(
        self, cleanable: LogToClean, now_ms: int, hooks: RoundHooks | None = None, *, dry_run: bool = False
    ) -> CleanerStats:
        """Clean a log and return the counts; with ``dry_run`` only read and count.

        Raises CleaningAbortedError, KafkaStorageError; then each group is either cleaned or unchanged. Temporary files
        are removed; those of a failed swap stay until a later round or the log's next load removes or renames them.
        """
        cleaning = CleaningRound(self._engine, self._options, cleanable, now_ms, hooks or RoundHooks())
        try:
            return cleaning.run(dry_run=dry_run)
        finally:
            cleaning.close()


class CleaningRound:
    """One round over one log, with its state."""

    def __init__(
        self, engine: Engine, options: CleanerOptions, cleanable: LogToClean, now_ms: int, hooks: RoundHooks
    ) -> None:
        self._engine = engine
        self._log = log = cleanable.log
        self._cleanable = cleanable
        self._hooks = hooks
        self._times = at.FilterTimes(now_ms, min(now_ms + log.config.delete_retention_ms, _NEVER_MS))
        self._reader = SegmentReader(
            engine, options.io_buffer_bytes, options.max_decompressed_bytes, reads_ahead=options.reads_ahead
        )
        dirty = log.segments.values(cleanable.first_dirty_offset, cleanable.first_uncleanable_offset)
        first_bytes = sum(segment.size for segment in dirty) // DATA_PER_MAP_BYTE
        key_map = engine.new_map(options.map_bytes, options.load_factor, options.hash_algorithm, first_bytes)
        self._index = KeyIndex(engine, key_map, log.directory, hooks.check)
        self._out = np.zeros(2 * options.io_buffer_bytes + at.PADDING, np.uint8)
        self._out_table: IntegerArray = np.zeros((TABLE_ROWS, at.OUT_COLUMNS), np.int64)
        self._counts: IntegerArray = np.zeros(at.STATS, np.int64)
        self._aborted: list[AbortedTxn] = []
        self._clean_bound = log.clean_bound  # a truncation lowers it
        self._needs = NO_NEEDS
        self.stats = CleanerStats()

    def close(self) -> None:
        """Free the round's memory."""
        self._reader.close()
        self._index.close()

    def run(self, *, dry_run: bool) -> CleanerStats:
        """Run both passes and return the counts."""
        clean, dirty = self._sections()
        end = self._cleanable.first_uncleanable_offset
        start = clean.segments[0].base_offset if clean.segments else self._cleanable.first_dirty_offset
        with self._abort_if_removed([*clean.segments, *dirty.segments]):
            for segment in (*clean.segments, *dirty.segments):
                ensure_proven(self._log, segment)
            self._aborted = self._log.collect_aborted_transactions(start, end) if end > start else []
            self._aborted.sort()
            self._needs = read_needs(self._log, self._clean_bound)
            self._index.build(self._reader, clean, dirty, self._transactions)
        self.stats.bytes_indexed = self._reader.bytes_read
        if not dry_run:
            # A power loss may take neither a record after those it superseded are gone, nor a marker after the records
            # it aborted are gone.
            self._log.flush()
        self._copy(Section([*clean.segments, *dirty.segments], [*clean.ends, *dirty.ends]), dry_run=dry_run)
        self._sum_up(end)
        return self.stats

    def _sections(self) -> tuple[Section, Section]:
        """Divide the segments into clean and dirty ones. A segment that holds the first dirty offset is dirty as a
        whole.
        """
        cleanable = self._cleanable
        upper = cleanable.first_uncleanable_offset
        segments = [s for s in self._log.segments.values(self._log.log_start_offset, upper) if s.base_offset < upper]
        ends = [*(segment.base_offset for segment in segments[1:]), upper][: len(segments)]
        first = next((i for i, end in enumerate(ends) if end > cleanable.first_dirty_offset), len(segments))
        return Section(segments[:first], ends[:first]), Section(segments[first:], ends[first:])

    def _transactions(self) -> TransactionRows:
        """Build the transactions' state for a pass, with the batches and epochs that producers still need."""
        return TransactionRows(
            [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in self._aborted],
            self._needs.last_batches,
            self._needs.fences,
            now_ms=self._times.now,
            end_offset=self._cleanable.first_uncleanable_offset,
        )

    @contextmanager
    def _abort_if_removed(self, segments: Sequence[LogSegment]) -> Iterator[None]:
        """Turn a storage error of the block into CleaningAbortedError if the log was closed, or if retention or
        truncation has removed one of ``segments``.

        Nothing is wrong with the log then: the next round begins with the segments that are left.
        """
        log = self._log
        try:
            yield
        except KafkaStorageError as error:
            if log.is_closed:
                raise CleaningAbortedError(f"the log of {log.topic_partition} was closed") from error
            if log.failure is None and any(segment not in log.segments for segment in segments):
                raise CleaningAbortedError(
                    f"segments of {log.topic_partition} were removed during the round"
                ) from error
            raise

    # ---- copy pass

    def _copy(self, section: Section, *, dry_run: bool) -> None:
        ends = dict(zip((s.base_offset for s in section.segments), section.ends, strict=True))
        transactions = self._transactions()
        unframed = dict(self._index.unframed)
        passed: set[int] = set()
        groups = self._groups(section, unframed)
        while groups:
            group = groups.pop(0)
            for segment in section.segments:
                if segment.base_offset < group[0].base_offset and segment.base_offset in unframed.keys() - passed:
                    passed.add(segment.base_offset)
                    self._pass_over_unframed(segment, ends[segment.base_offset], transactions)
            state, counts = transactions.snapshot(), self._counts.copy()
            unreadable = (self.stats.unreadable_batches, list(self.stats.unreadable))
            try:
                with self._abort_if_removed(group):
                    self._clean_group(group, ends, transactions, dry_run=dry_run)
            except UnframedSegmentError as error:
                unframed[error.base_offset] = error
                transactions.restore(state)
                self._counts = counts
                self.stats.unreadable_batches, self.stats.unreadable = unreadable
                done = group[0].base_offset
                groups = [g for g in self._groups(section, unframed) if g[0].base_offset >= done]
                continue
            if not dry_run and ends[group[-1].base_offset] > self._cleanable.first_dirty_offset:
                self._hooks.progress(ends[group[-1].base_offset])
        for fault in unframed.values():
            reason = f"the segment is not cleaned: {fault}"
            self._report([UnreadableBatch(fault.base_offset, fault.position, -1, reason)])

    def _pass_over_unframed(self, segment: LogSegment, end: int, transactions: TransactionRows) -> None:
        """Note the transactions with records in a segment that stays as it is, and keep the tombstones after it."""
        self._times = self._times._replace(now=_BEFORE_ALL_MS)
        reader, read_before = self._reader, self._reader.bytes_read
        with suppress(UnframedSegmentError):
            for rows in reader.steps(Reading(segment, end, 0, (0, segment.size))):
                self._hooks.check(reader.bytes_read - read_before)
                read_before = reader.bytes_read
                self._engine.decide(reader.buffer, reader.table, rows, transactions)
        # After the fault there may be records of any transaction that overlaps the segment.
        aborted = [one for one in self._aborted if one.first_offset < end and one.last_offset >= segment.base_offset]
        table: IntegerArray = np.zeros((len(aborted), at.COLUMNS), np.int64)
        table[:, at.PRODUCER_ID] = [one.producer_id for one in aborted]
        table[:, at.ATTRIBUTES], table[:, at.BASE_OFFSET] = at.TRANSACTIONAL_MASK, segment.base_offset
        self._engine.decide(np.zeros(at.PADDING, np.uint8), table, (0, len(aborted)), transactions)

    def _groups(self, section: Section, unframed: dict[int, UnframedSegmentError]) -> list[list[LogSegment]]:
        config = self._log.config
        return group_segments(
            list(section.segments),
            list(section.ends),
            set(unframed),
            max_bytes=config.segment_bytes,
            max_index_bytes=config.segment_index_bytes,
        )

    def _clean_group(
        self, group: list[LogSegment], ends: dict[int, int], transactions: TransactionRows, *, dry_run: bool
    ) -> None:
        """Write the group's new segment and swap it in, unless nothing changes or ``dry_run``."""
        target = CleanedSegment(self._log, self._engine, group[0].base_offset, self._hooks.check)
        sizes = [segment.size for segment in group]
        changed_before = int(self._counts[at.STAT_BATCHES_CHANGED])
        finished = False
        try:
            for segment in group:
                self._clean_segment(segment, ends[segment.base_offset], _Copy(target, transactions, dry_run))
            changed = int(self._counts[at.STAT_BATCHES_CHANGED]) > changed_before
            new = target.finish(group[-1])
            if new is not None:
                self._swap(new, group, sizes, target)
            finished = True
        finally:
            if not finished:
                target.discard()
        self.stats.bytes_before += sum(sizes)
        self.stats.bytes_after += target.size
        self.stats.bytes_written += target.bytes_written
        if changed:
            self.stats.groups_rewritten += 1
        else:
            self.stats.groups_unchanged += 1

    def _swap(self, new: LogSegment, group: list[LogSegment], sizes: list[int], target: CleanedSegment) -> None:
        log = self._log

        def check() -> None:
            self._hooks.check(0)
            _abort_if_truncated(log, self._clean_bound)
            # Retention or truncation may have removed a segment meanwhile; the new one must not bring its records back.
            gone = log.segments.active in group or any(segment not in log.segments for segment in group)
            if log.is_closed or gone or [segment.size for segment in group] != sizes:
                raise CleaningAbortedError(f"segments of {log.topic_partition} were removed during the round")

        # From here on the swap owns the files: if it fails, the next load of the log may need them to finish it.
        target.hand_over()
        try:
            log.replace_segments([new], group, check)
        except CleaningAbortedError:
            target.take_back(new)
            raise

    def _clean_segment(self, segment: LogSegment, end: int, copy: _Copy) -> None:
        """Read and filter the parts of a segment that may have records to keep; drop the others without reading."""
        position, ordinal = 0, self._index.first_ordinal(segment)
        for stretch in self._index.find_superseded(segment, copy.transactions.last_offsets):
            if stretch.start > position:
                self._clean_span(segment, end, ordinal, (position, stretch.start), copy)
                self._compare_ordinal(segment, stretch.ordinal)
            self._drop(stretch, copy)
            position, ordinal = stretch.end, stretch.ordinal_end
        if segment.size > position:
            self._clean_span(segment, end, ordinal, (position, segment.size), copy)
            self._compare_ordinal(segment, self._index.end_ordinal(segment))

    def _compare_ordinal(self, segment: LogSegment, expected: int | None) -> None:
        """Raise KafkaStorageError if the copy pass has numbered the records so far otherwise than the index pass: the
        disk returned other bytes, and the superseded bits would be those of other records. If the segment has become
        the active one, a truncation explains that: raise CleaningAbortedError."""
        if expected is None or self._reader.ordinal == expected:
            return
        if segment is self._log.segments.active:
            raise CleaningAbortedError(f"the log of {self._log.topic_partition} was truncated")
        raise KafkaStorageError(f"{segment.records.path} was read twice with different results")

    def _drop(self, stretch: Stretch, copy: _Copy) -> None:
        """Count the records of a stretch that is dropped."""
        self._hooks.check(0)
        self._counts[at.STAT_RECORDS_READ] += stretch.ordinal_end - stretch.ordinal
        self._counts[at.STAT_BATCHES_CHANGED] += stretch.batches
        if not copy.dry_run:
            copy.target.begin()

    def _clean_span(self, segment: LogSegment, end: int, ordinal: int, span: tuple[int, int], copy: _Copy) -> None:
        position, read_before = span[0], self._reader.bytes_read
        for rows in self._reader.steps(Reading(segment, end, ordinal, span)):
            self._hooks.check(self._reader.bytes_read - read_before)
            read_before = self._reader.bytes_read
            markers = self._engine.decide(self._reader.buffer, self._reader.table, rows, copy.transactions)
            for number in markers:  # indices of ``_aborted``, as the transactions' state has the same order
                copy.target.add_aborted(self._aborted[number])
            superseded = self._index.find_superseded_bits(self._reader, rows)
            if (self._reader.table[rows[0] : rows[1], at.STATE] == at.BatchState.POISON).any():
                self._times = self._times._replace(now=_BEFORE_ALL_MS)  # it may hold a value that a tombstone deletes
            position = self._filter(segment, position, rows, superseded, copy)
            self._report(self._reader.find_unreadable(rows))

    def _filter(
        self,
        segment: LogSegment,
        position: int,
        rows: tuple[int, int],
        superseded: at.SupersededBits,
        copy: _Copy,
    ) -> int:
        """Filter rows that begin at byte ``position`` of the segment's file; return the byte after them."""
        table, target = self._reader.table, copy.target
        row = rows[0]
        while row < rows[1]:
            changed_before = int(self._counts[at.STAT_BATCHES_CHANGED])
            done, size, written = self._engine.filter(
                self._reader.buffer,
                table,
                (row, rows[1]),
                superseded,
                self._times,
                at.FilterOutput(self._out, self._out_table),
                self._counts,
            )
            if done == row:
                self._out = np.zeros(2 * len(self._out), np.uint8)
                continue
            next_position = position + int(table[row:done, at.SIZE].sum())
            unchanged = int(self._counts[at.STAT_BATCHES_CHANGED]) == changed_before
            if unchanged and (target.segment is None or copy.dry_run):
                target.pass_over(segment, (position, next_position))
            elif copy.dry_run:
                target.pack(self._out, self._out_table, written, size)
            else:
                target.write(self._out, self._out_table, written, size)
            target.index(self._out_table, written)
            row, position = done, next_position
        return position

    # ---- report

    def _report(self, batches: list[UnreadableBatch]) -> None:
        for batch in batches:
            logger.warning("cleaning of %s keeps bytes that cannot be read: %s", self._log.topic_partition, batch)
        self.stats.add_unreadable(batches)

    def _sum_up(self, end: int) -> None:
        stats, counts = self.stats, self._counts.tolist()
        stats.end_offset = end
        stats.bytes_read = self._reader.bytes_read
        stats.records_before = counts[at.STAT_RECORDS_READ]
        stats.records_after = counts[at.STAT_RECORDS_KEPT]
        stats.keyless_records = counts[at.STAT_KEYLESS]
        stats.tombstones_dropped = counts[at.STAT_TOMBSTONES_DROPPED]
        stats.map_utilization = self._index.utilization
        stats.collision_rate = self._index.collision_rate
        stats.spilled_bytes = self._index.spilled_bytes
