"""The audit of one segment: every batch's frame and CRC, gaps, producers' sequences, indices, records per ten minutes.

    read 2 MB -> walk_batches -> rows -> gaps, overlaps     base offset against the expected offset
                                      -> producers          sequence against the producer's last one
                                      -> indices            entries against batches
                                      -> hashes of records  summed per ten minutes; committed data only
                                      -> times              the header's largest against the records'

Offsets missing between two batches are *compacted* or *lost* by the rules of ``tidelog.pipeline.plan.holes``. They are
compacted in a file that a cleaner has worked on, and before a batch that only a cleaner can have written: nothing else
removes records from the middle of a log. Offsets missing inside a batch are compacted for the same reason.

Aborted records and control batches are not visible to readers of committed records. They and the records of open
transactions are counted, but not hashed.

Damage is a finding, and the walk goes on by the rule of ``tidelog.log.segment.resync``, as an export does. The bytes
from the damage to the next batch are counted as unreadable, and their offsets are a gap of the kind *damaged*.

One thread. A SegmentPlan and a SegmentAudit can be pickled. Needs numpy.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

import numpy as np

from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.segment.batch_scan import CONTROL_MASK
from tidelog.log.segment.resync import find_resume_position, reaches_next
from tidelog.pipeline.audit import buckets as audit_buckets
from tidelog.pipeline.audit.batch_times import check_batch_times, find_wrong_time
from tidelog.pipeline.audit.buckets import Buckets
from tidelog.pipeline.audit.indices import IndexCheck
from tidelog.pipeline.audit.producers import ProducerSpan, follow
from tidelog.pipeline.audit.transactions import TransactionAudit, TransactionPlan
from tidelog.pipeline.engine import reference as at
from tidelog.pipeline.engine.engine import AuditEngine, HashRoom, bases_of, engine
from tidelog.pipeline.engine.reference import IntegerArray
from tidelog.pipeline.errors import ObjectGoneError
from tidelog.pipeline.files.segment_files import SWAP_PATIENCE_S, SegmentFile
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.stamps import stamp_of
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.compression import decompress
from tidelog.protocol.record.message_set import LegacyRecordBatch
from tidelog.protocol.record.record_batch import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    DELETE_HORIZON_MASK,
    HEADER,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MAGIC_V1,
    MAGIC_V2,
    RecordBatch,
)

#: 2 MB stay in a core's cache from the read to the checksums.
CHUNK_BYTES = 2 * 1024 * 1024
TABLE_ROWS = 4096
MAX_FINDINGS = 100
MAX_GAPS = 1000
_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")
_POLL_S = 0.01
_COMPRESSED = 0x07
_MIN_RECORD_BYTES = 7


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """One segment to audit; ``inode`` is its file's, 0 when unknown; ``ctime_ns`` as in ``plan.rows.SegmentSlice``.
    ``has_final_indices``: a roll has cut its indices to their entries.

    ``clean_below``: offset up to which a cleaner has worked; it takes a file as a whole, so a segment that begins below
    this offset was cleaned to its end. ``stable_below``: the last stable offset; records from it on belong to open
    transactions or follow their first record. ``indexed``: (producer id, first, last offset) of the aborted
    transactions in ``.txnindex`` files. With ``records`` false nothing is hashed.
    """

    topic: str
    partition: int
    segment: SegmentFile
    size: int
    is_closed: bool
    has_final_indices: bool = False
    inode: int = 0
    ctime_ns: int = 0
    clean_below: int = 0
    stable_below: int = 2**63 - 1
    indexed: tuple[tuple[int, int, int], ...] = ()
    records: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that an audit found. ``kind``: checksum, framing, order, duplicate, index, transaction, timestamp,
    records, file, table. ``position`` and ``offset`` are -1 if they are not known."""

    kind: str
    path: str
    position: int
    offset: int
    message: str

    def __str__(self) -> str:
        where = f"{self.path} at byte {self.position}" if self.position >= 0 else self.path
        return f"{where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets from ``start`` to below ``end`` that are in no readable batch; ``kind`` is compacted, lost or damaged."""

    start: int
    end: int
    kind: str


@dataclass(slots=True)
class SegmentAudit:
    """Counts, findings and gaps of one segment. Lists are limited to MAX_FINDINGS and MAX_GAPS, counts are not.

    ``ends_damaged``: the bytes after ``next_offset`` cannot be read.
    ``marked_below``: the offset after the last batch that only a cleaner can have written; 0 without one.
    """

    topic: str
    partition: int
    base_offset: int
    path: str
    bytes_read: int = 0
    batches: int = 0
    records: int = 0
    control_batches: int = 0
    aborted_records: int = 0
    open_records: int = 0
    corrupt_batches: int = 0
    unreadable_bytes: int = 0
    compacted_offsets: int = 0
    lost_offsets: int = 0
    duplicate_batches: int = 0
    index_entries: int = 0
    index_faults: int = 0
    first_offset: int = -1
    next_offset: int = -1
    largest_timestamp: int = -1
    marked_below: int = 0
    ends_damaged: bool = False
    damaged_offsets: int = 0
    gap_count: int = 0
    finding_count: int = 0
    gaps: list[Gap] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    buckets: Buckets = field(default_factory=dict)
    producers: dict[int, ProducerSpan] = field(default_factory=dict)

    def find(self, kind: str, position: int, offset: int, message: str) -> None:
        """Add a finding in this segment."""
        self.add_finding(Finding(kind, self.path, position, offset, message))

    def find_in(self, kind: str, path: str, position: int, offset: int, message: str) -> None:
        """Add a finding in a file of the segment, such as an index."""
        self.add_finding(Finding(kind, path, position, offset, message))

    def add_finding(self, finding: Finding) -> None:
        """Add a finding."""
        self.finding_count += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    def add_gap(self, gap: Gap) -> None:
        """Add offsets that are missing between two batches."""
        self.gap_count += 1
        if gap.kind == "lost":
            self.lost_offsets += gap.end - gap.start
        elif gap.kind == "damaged":
            self.damaged_offsets += gap.end - gap.start
        else:
            self.compacted_offsets += gap.end - gap.start
        if len(self.gaps) < MAX_GAPS:
            self.gaps.append(gap)

    def explain_gaps(self) -> None:
        """Count all lost gaps so far as compacted, because a cleaner has worked on later batches."""
        self.compacted_offsets += self.lost_offsets
        self.lost_offsets = 0
        self.gaps = [gap if gap.kind == "damaged" else Gap(gap.start, gap.end, "compacted") for gap in self.gaps]


def audit_segment(plan: SegmentPlan, using: AuditEngine | None = None) -> SegmentAudit | None:
    """Audit one segment; None when its file was deleted or replaced, or its indices were replaced and do not fit it.

    Raises PipelineError when it cannot be read.
    """
    before = files_of(plan.segment)
    try:
        file = OpenSegment(plan.segment.path)
    except FileNotFoundError:
        return None
    with file:
        if plan.inode and not file.is_same(plan.inode, plan.ctime_ns, plan.size):
            return None
        file.expect(0, plan.size)
        try:
            audited = _SegmentWalk(plan, file, using or engine()).run()
        except ObjectGoneError:
            return None
        if file.was_replaced() or (audited.index_faults and _have_changed(plan.segment, before)):
            return None
        return audited


def _have_changed(segment: SegmentFile, before: list[int | None]) -> bool:
    """Return whether other files have the names of a segment's files now. While a swap of them is under way, wait for
    its end: SWAP_PATIENCE_S at most, as a crash may have left it so."""
    deadline = time.monotonic() + SWAP_PATIENCE_S
    while files_of(segment) == before:
        swaps = (stamp_of(segment.sibling(f"{suffix}.swap")) for suffix in _SUFFIXES)
        if time.monotonic() > deadline or all(stamp is None for stamp in swaps):
            return files_of(segment) != before  # a swap may have ended since they were compared
        time.sleep(_POLL_S)
    return True


def files_of(segment: SegmentFile) -> list[int | None]:
    """Return a number for the file that has the name of the segment, and of each of its indices, now; None for a
    missing one. In an object store it is the time of the upload."""
    stamps = [stamp_of(segment.sibling(suffix)) for suffix in _SUFFIXES]
    return [None if stamp is None else stamp.inode or stamp.mtime_ns for stamp in stamps]


class _SegmentWalk:
    """The walk over one segment, and its state."""

    def __init__(self, plan: SegmentPlan, file: OpenSegment, using: AuditEngine) -> None:
        self._plan = plan
        self._file = file
        self._engine = using
        self._end = min(plan.size, file.size)
        self._indices = IndexCheck.open(plan.segment)
        self._table = np.zeros((TABLE_ROWS, at.COLUMNS), np.int64)
        self._room = HashRoom()
        # A cleaner works on whole files, so a file that begins below its checkpoint has no lost gaps.
        self._clean_below = 2**63 - 1 if plan.segment.base_offset < plan.clean_below else 0
        self._expected = base = plan.segment.base_offset  # a segment is named by its first offset
        audit = self.audit = SegmentAudit(plan.topic, plan.partition, base, plan.segment.path, next_offset=base)

        partition = TopicPartition(plan.topic, plan.partition)
        transactions = TransactionPlan(partition, plan.segment, plan.is_closed, plan.stable_below, plan.indexed)
        self._transactions = TransactionAudit(transactions, file, using, audit.find_in)

    def run(self) -> SegmentAudit:
        """Walk to the end of the planned bytes."""
        end = self._end
        try:
            self._read(end)
        finally:
            self._transactions.close()
        self._finish(end)
        return self.audit

    def _read(self, end: int) -> None:
        buffer = np.empty(min(CHUNK_BYTES, max(end, 1)), np.uint8)
        position = 0
        while position < end:
            size = self._file.read_into(position, buffer[: min(len(buffer), end - position)].data)
            self._transactions.find_aborted(buffer, size, position)
            stop, done = self._walk(buffer, size, position)
            if stop == at.NEED_BYTES and not done:
                claimed = int.from_bytes(buffer[8:12].tobytes(), "big") + LOG_OVERHEAD
                if len(buffer) < claimed <= end - position:
                    buffer = np.empty(claimed, np.uint8)
                else:
                    position = self._judge_cut_batch(position, end)
            position += done
            if stop == at.NOT_MAGIC_2:
                position = self._take_other(buffer[done:size], position, end)

    def _walk(self, buffer: at.ByteArray, size: int, position: int) -> tuple[int, int]:
        """Walk over a chunk's magic 2 batches; return why the walk stopped, and the bytes done. After damage the bytes
        done may go beyond the chunk.
        """
        done = 0
        while True:
            stop, count, done = self._engine.walk_batches(buffer, done, size, self._table)
            rows = self._table[:count]
            bad = self._first_bad(rows, position)
            if bad:
                self._take(buffer, rows[:bad], position)
            if bad < count:
                done = self._pass_bad(rows[bad], position) - position
                if done >= size:
                    return at.TABLE_FULL, done
            elif stop != at.TABLE_FULL:
                return stop, done

    def _take(self, buffer: at.ByteArray, rows: IntegerArray, position: int) -> None:
        """Check the rows of valid batches; ``buffer`` begins at byte ``position`` of the file."""
        audit = self.audit
        positions = rows[:, at.POSITION] + position
        audit.batches += len(rows)
        audit.bytes_read += int(rows[:, at.SIZE].sum())
        self._follow_offsets(rows)
        self._indices.see(positions, rows)
        audit.largest_timestamp = max(audit.largest_timestamp, int(rows[:, at.MAX_TIMESTAMP].max()))
        self._follow_producers(rows, positions)
        self._transactions.follow(buffer, rows)
        self._hash(buffer, self._select_committed(rows, position), position)

    # ---- damage

    def _first_bad(self, rows: IntegerArray, position: int) -> int:
        """Find the first row with a wrong checksum or offset; returns the number of rows when there is none.

        No checksum covers offsets: a batch whose offsets go back, or overlap the next batch, is damaged.
        """
        if not len(rows):
            return 0
        base, last = rows[:, at.BASE_OFFSET], rows[:, at.LAST_OFFSET]
        expected = np.concatenate(([self._expected], last[:-1] + 1))
        following = np.append(base[1:], self._offset_after(rows[-1], position) if base[-1] > expected[-1] else -1)
        reaches = (base > expected) & (following >= 0) & (following <= last)
        bad = np.flatnonzero((rows[:, at.IS_VALID] == 0) | (base < expected) | reaches)
        return int(bad[0]) if len(bad) else len(rows)

    def _offset_after(self, row: IntegerArray, position: int) -> int:
        """Read the base offset of the batch after a row's; -1 when there is none of magic 2."""
        data = self._file.read_at(position + int(row[at.POSITION] + row[at.SIZE]), HEADER.size)
        return int.from_bytes(data[:8], "big") if len(data) == HEADER.size and data[MAGIC_OFFSET] == MAGIC_V2 else -1

    def _pass_bad(self, row: IntegerArray, position: int) -> int:
        offset = int(row[at.BASE_OFFSET])
        if not row[at.IS_VALID]:
            self.audit.corrupt_batches += 1
            kind, why = "checksum", f"wrong CRC in the batch of offset {offset}"
        elif offset < self._expected:
            kind, why = "order", f"offset {offset} after {self._expected - 1}"
        else:
            kind, why = "order", f"offset {offset} reaches into the next batch, {self._expected} should follow"
        return self._pass_damage(kind, position + int(row[at.POSITION]), offset, why)

    def _pass_damage(self, kind: str, position: int, offset: int, why: str) -> int:
        """Record damage and return the byte at which to go on. The next batch shows which offsets are damaged."""
        target = find_resume_position(self._file, position, self._end, self._indices.batches_after(position))
        self.audit.unreadable_bytes += target - position
        self.audit.ends_damaged = True
        self.audit.find(kind, position, offset, f"{why}; {target - position} bytes are unreadable")
        return target

    # ---- offsets

    def _follow_offsets(self, rows: IntegerArray) -> None:
        audit, base, last = self.audit, rows[:, at.BASE_OFFSET], rows[:, at.LAST_OFFSET]
        if audit.first_offset < 0:
            audit.first_offset = int(base[0])
        self._follow_marks(rows)
        if audit.ends_damaged and base[0] > self._expected:
            audit.add_gap(Gap(self._expected, int(base[0]), "damaged"))
            self._expected = int(base[0])
        audit.ends_damaged = False
        expected = np.concatenate(([self._expected], last[:-1] + 1))
        for row in np.flatnonzero(base > expected).tolist():
            wanted, found = int(expected[row]), int(base[row])
            audit.add_gap(Gap(wanted, found, "compacted" if found <= self._clean_below else "lost"))
        self._expected = audit.next_offset = int(last[-1]) + 1
        audit.compacted_offsets += int((last - base + 1 - rows[:, at.RECORD_COUNT]).sum())

    def _follow_marks(self, rows: IntegerArray) -> None:
        """Note the last batch that a cleaner has written: it lacks records or has a delete horizon."""
        lacks = rows[:, at.RECORD_COUNT] <= rows[:, at.LAST_OFFSET] - rows[:, at.BASE_OFFSET]
        marked = (lacks | (rows[:, at.ATTRIBUTES] & DELETE_HORIZON_MASK != 0)) & (rows[:, at.IS_VALID] == 1)
        if marked.any():
            self.audit.marked_below = int(rows[marked, at.LAST_OFFSET].max()) + 1
            self._clean_below = 2**63 - 1
            self.audit.explain_gaps()

    # ---- producers

    def _follow_producers(self, rows: IntegerArray, positions: IntegerArray) -> None:
        wanted = (rows[:, at.PRODUCER_ID] >= 0) & (rows[:, at.ATTRIBUTES] & CONTROL_MASK == 0)
        wanted &= rows[:, at.SEQUENCE] >= 0
        if not wanted.any():
            return
        rows, positions = rows[wanted], positions[wanted]
        for number in follow(rows, self.audit.producers):
            self.audit.duplicate_batches += 1
            row = rows[number].tolist()
            self.audit.find(
                "duplicate",
                int(positions[number]),
                row[at.BASE_OFFSET],
                f"sequence {row[at.SEQUENCE]} of producer {row[at.PRODUCER_ID]} epoch {row[at.PRODUCER_EPOCH]} "
                "was written before",
            )

    # ---- records

    def _select_committed(self, rows: IntegerArray, position: int) -> IntegerArray:
        """Select the rows of data batches that a reader of committed records gets; counts all kinds."""
        audit, attributes = self.audit, rows[:, at.ATTRIBUTES]
        control = attributes & CONTROL_MASK != 0
        is_open = (rows[:, at.BASE_OFFSET] >= self._plan.stable_below) & ~control
        aborted = self._transactions.select_aborted(rows, ~(control | is_open), position)
        audit.control_batches += int(control.sum())
        audit.aborted_records += int(rows[aborted, at.RECORD_COUNT].sum())
        audit.open_records += int(rows[is_open, at.RECORD_COUNT].sum())
        data = ~(control | aborted | is_open)
        audit.records += int(rows[data, at.RECORD_COUNT].sum())
        return rows if data.all() else rows[data]

    def _hash(self, buffer: at.ByteArray, rows: IntegerArray, position: int) -> None:
        if not self._plan.records:
            return
        done = 0
        while done < len(rows):
            before = done
            done, count = self._engine.hash_rows(buffer, rows, (done, len(rows)), self._room)
            _, timestamps, hashes = self._room.first(count)
            audit_buckets.add(self.audit.buckets, timestamps, hashes)
            check_batch_times(self.audit.find, rows[before:done], timestamps, position)
            if done == before:
                self._hash_alone(buffer, rows[done].tolist(), position)
                done += 1

    def _hash_alone(self, buffer: at.ByteArray, row: list[int], position: int) -> None:
        """Hash a batch that is compressed, large, or malformed."""
        start, count = row[at.POSITION], row[at.RECORD_COUNT]
        section = buffer[start + 61 : start + row[at.SIZE]]
        why = "its records do not fit their batch"
        try:
            if codec := row[at.ATTRIBUTES] & _COMPRESSED:
                plain = decompress(section.data, codec, DEFAULT_MAX_DECOMPRESSED_BYTES)
                section = np.frombuffer(plain, np.uint8)
            is_possible = count * _MIN_RECORD_BYTES <= len(section)  # checked before room for them is made
            done = self._engine.hash_section(section, bases_of(row), count, self._room) if is_possible else -1
        except KafkaError as error:
            done, why = -1, str(error)
        if done < 0:
            offset = row[at.BASE_OFFSET]
            self.audit.find("records", position + start, offset, f"the batch of offset {offset} cannot be read: {why}")
            return
        _, timestamps, hashes = self._room.first(done)
        audit_buckets.add(self.audit.buckets, timestamps, hashes)
        check_batch_times(self.audit.find, np.array([row]), timestamps, position)

    # ---- messages of magic 0 and 1, and bytes that are not a batch

    def _take_other(self, rest: at.ByteArray, position: int, end: int) -> int:
        """Check one message of magic 0 or 1, or bytes that are not a batch; returns the byte at which to go on."""
        try:
            entry = next(iter_batches(rest.data), None)
        except KafkaError as error:
            return self._pass_damage("framing", position, self._expected, f"no batch begins here ({error})")
        if entry is None:
            wanted = int.from_bytes(rest[8:12].tobytes(), "big") + 12 if len(rest) >= 12 else 0
            if not len(rest) < wanted <= end - position:
                return self._judge_cut_batch(position, end)
            rest = np.empty(wanted, np.uint8)
            self._file.read_into(position, rest.data)
            return self._take_other(rest, position, end)
        if rest[16] == MAGIC_V2:  # the walk refused its header
            why = "no batch begins here (the batch header has impossible values)"
            return self._pass_damage("framing", position, self._expected, why)
        return self._take_old(entry, position)

    def _take_old(self, entry: RecordBatch | LegacyRecordBatch, position: int) -> int:
        """Check a message of magic 0 or 1, or a wrapper with its inner messages; returns the byte at which to go on."""
        audit = self.audit
        row = np.zeros((1, at.COLUMNS), np.int64)
        row[0, [at.SIZE, at.LAST_OFFSET, at.PRODUCER_ID, at.IS_VALID]] = entry.size_in_bytes, entry.last_offset, -1, 1
        try:
            entry.ensure_valid()
            records = list(entry.records())
        except KafkaError as error:
            audit.corrupt_batches += 1
            return self._pass_damage("checksum", position, entry.last_offset, str(error))
        first = records[0].offset if records else entry.last_offset
        if first < self._expected:
            return self._pass_damage("order", position, first, f"offset {first} after {self._expected - 1}")
        if first > self._expected and reaches_next(self._file, position + entry.size_in_bytes, entry.last_offset):
            why = f"offset {first} reaches into the next batch, {self._expected} should follow"
            return self._pass_damage("order", position, first, why)
        largest = max((record.timestamp for record in records), default=-1)
        count = len(records) or 1
        row[0, [at.BASE_OFFSET, at.MAX_TIMESTAMP, at.RECORD_COUNT]] = first, largest, count
        audit.batches += 1
        audit.bytes_read += entry.size_in_bytes
        self._follow_offsets(row)
        self._indices.see(np.array([position]), row)
        audit.largest_timestamp = max(audit.largest_timestamp, largest)
        audit.records += len(records)
        if entry.magic == MAGIC_V1 and records and entry.max_timestamp != largest:
            find_wrong_time(audit.find, position, entry.last_offset, said=entry.max_timestamp, largest=largest)
        if self._plan.records and records:
            hashes = [at.record_hash(r.offset, r.timestamp, r.key, r.value) for r in records]
            times = np.array([record.timestamp for record in records], np.int64)
            audit_buckets.add(audit.buckets, times, np.array(hashes, np.uint64))
        return position + entry.size_in_bytes

    def _judge_cut_batch(self, position: int, end: int) -> int:
        """Handle a batch that is longer than the rest of the file; returns the byte at which to go on.

        In an active segment it is a write in progress, unless the index leads to a valid batch within it. In all other
        cases it is damage.
        """
        indexed = self._indices.batches_after(position)
        if not self._plan.is_closed and find_resume_position(self._file, position, end, indexed) >= end:
            return end
        return self._pass_damage(
            "framing", position, self._expected, f"{end - position} bytes of an incomplete batch at the end"
        )

    def _finish(self, end: int) -> None:
        audit, indices = self.audit, self._indices
        is_whole = not audit.unreadable_bytes and not audit.corrupt_batches
        indices.finish(audit.largest_timestamp, is_final=self._plan.has_final_indices, is_whole=is_whole)
        audit.index_entries = indices.entries
        missing = indices.missing if end else []
        audit.index_faults = indices.fault_count + len(missing)
        for path in missing:
            audit.add_finding(Finding("index", path, -1, -1, f"{os.path.basename(path)} is missing"))
        for fault in indices.faults:
            message = f"entry {fault.slot}: {fault.message}" if fault.slot >= 0 else fault.message
            audit.add_finding(Finding("index", fault.path, -1, -1, message))
        audit.finding_count += indices.fault_count - len(indices.faults)
        if is_whole:
            self._transactions.finish(audit.next_offset)
        audit.index_faults += self._transactions.faults
