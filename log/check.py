"""Check of one partition directory's invariants, read-only, for ``tidelog check``, ``tidelog dump-log``, the adoption
of Kafka's directories and fault tests.

These are checked:

- base offsets; every batch's header and CRC; offsets that strictly grow, within and across segments;
- offset indices: entries grow, and each names an append by its last offset and the position of its first batch;
- time indices: entries grow, have last offsets of batches, and no timestamp later than the latest record's;
- transaction indices have the aborted transactions that the markers in the records show;
- leader epochs grow, and none begins beyond the log's end;
- producer snapshots and ``partition.metadata`` can be read.

An index may differ from a rebuilt one: it may have fewer entries (a full disk, several batches in one append). The
index of a log that was not closed may end with zeros.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, NamedTuple

from tidelog.log.files.checkpoints import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    read_leader_epochs,
    read_partition_metadata,
)
from tidelog.log.files.segment_names import OFFSET_DIGITS, base_offset_of
from tidelog.log.index.offset_index import OffsetIndex
from tidelog.log.index.time_index import TimeIndex
from tidelog.log.producer.snapshot import decode_snapshot
from tidelog.log.segment.batch_scan import BatchHeader, crc_matches, iter_batches
from tidelog.log.segment.resync import find_resume_position, reaches_next
from tidelog.log.segment.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from tidelog.log.segment.transaction_check import TransactionIndexCheck, commits_transaction
from tidelog.log.system.file_system import FileSystem, OpenFile
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError

_Unpack = Callable[[bytes, int], tuple[Any, ...]]


class Finding(NamedTuple):
    """One broken invariant: the file, the byte in a record file or the number of the entry in an index (-1: the whole
    file), and a description."""

    path: str
    position: int
    message: str

    def __str__(self) -> str:
        where = f"{self.path} at {self.position}" if self.position >= 0 else self.path
        return f"{where}: {self.message}"


class IndexFindings(NamedTuple):
    """Findings of a segment's offset and time index: wrong entries, and those that could not be compared with the
    segment. If both lists are empty, each entry was compared and is right."""

    wrong: list[Finding]
    unchecked: list[Finding]


class _IndexEntry(NamedTuple):
    """An entry of an offset index. ``limit``: the position of the next one, before which its append must end."""

    position: int
    offset: int
    limit: int


class _SegmentSummary(NamedTuple):
    """Summary of a record file, with which its indices are compared."""

    size: int
    batches: set[int]  # their positions
    next_offset: int
    largest_timestamp: int
    positions: dict[int, int]  # last offset of a batch -> its position
    damaged_bytes: list[tuple[int, int]]  # first byte, and the one after the last
    lost_offsets: list[tuple[int, int]]

    def is_damaged_at(self, position: int) -> bool:
        return any(first <= position < end for first, end in self.damaged_bytes)

    def is_damaged_between(self, position: int, limit: int) -> bool:
        return any(first < limit and position < end for first, end in self.damaged_bytes)

    def is_lost(self, offset: int) -> bool:
        return any(first <= offset < end for first, end in self.lost_offsets)

    def is_uncertain(self, entry: _IndexEntry) -> bool:
        """Return whether damage hides the batch at which an entry of the offset index points, or the one that ends at
        its offset."""
        position, offset, limit = entry
        return self.is_damaged_at(position) or (
            position in self.batches and self.is_lost(offset) and self.is_damaged_between(position, limit)
        )

    def fault_of(self, entry: _IndexEntry) -> str:
        """Describe what is wrong with an entry of the offset index; empty if nothing is.

        Apache Kafka writes an entry for an append, which is several batches if a follower fetched them at once: the
        last offset of all, and the position of the first.
        """
        position, offset, limit = entry
        if self.is_uncertain(entry):
            return ""
        if position not in self.batches:
            return f"no batch begins at byte {position}"
        if position <= self.positions.get(offset, -1) < limit:
            return ""
        return f"no batch from byte {position} up to the next entry's has the last offset {offset}"


def check_directory(file_system: FileSystem, directory: str) -> list[Finding]:
    """Check one partition directory; return the findings, none if it is in order. The indices of a segment whose
    records have findings are not checked.

    Raises KafkaStorageError if the directory or a segment's file cannot be read.
    """
    names = {entry.name for entry in file_system.list_directory(directory) if entry.is_file}
    return list(_Checker(file_system, directory, names).run())


def check_indices(file_system: FileSystem, directory: str, base_offset: int) -> IndexFindings:
    """Check the offset and the time index of one segment, also of a damaged one: only entries that name damaged bytes
    are left out. Raises KafkaStorageError if a file cannot be read.
    """
    names = [file_name(base_offset, suffix) for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
    present = {name for name in names if file_system.exists(os.path.join(directory, name))}
    return _Checker(file_system, directory, present).compare_indices(base_offset)


def iter_indexed_batches(file_system: FileSystem, directory: str, base_offset: int) -> Iterator[tuple[int, int]]:
    """Yield byte position and last offset of the appends that a segment's offset index names, if it has one."""
    name = file_name(base_offset, INDEX_SUFFIX)
    present = {name} if file_system.exists(os.path.join(directory, name)) else set()
    yield from _Checker(file_system, directory, present).iter_indexed_batches(base_offset)


class _Checker:
    def __init__(self, file_system: FileSystem, directory: str, names: set[str]) -> None:
        self._file_system = file_system
        self._directory = directory
        self._transactions = TransactionIndexCheck()
        self._next_offset = 0
        self._is_damaged = False  # damage was found, and no batch after it was read yet
        self._fault = ""  # what is wrong with the batch at which the last walk stopped
        self._names = names

    def run(self) -> Iterator[Finding]:
        found = (base_offset_of(name) for name in self._names if name[OFFSET_DIGITS:] == LOG_SUFFIX)
        bases = sorted(base for base in found if base is not None)
        if not bases:
            yield Finding(self._directory, -1, "no segment")
        next_offset = 0
        for base in bases:
            if base < next_offset:
                yield Finding(
                    self._path(base, LOG_SUFFIX), -1, f"overlaps the previous segment, which ends at {next_offset}"
                )
            findings: list[Finding] = []
            if self._is_damaged and base > next_offset:
                lost = f"offsets {next_offset} to {base - 1} are lost to damage"
                findings.append(Finding(self._path(base, LOG_SUFFIX), 0, lost))
            self._is_damaged = False
            summary = self._read_segment(base, findings)
            yield from findings
            if not findings:
                # After damage the summary is incomplete, and every index entry there would look wrong.
                yield from self._check_offset_index(base, summary)
                yield from self._check_time_index(base, summary)
                yield from self._check_transaction_index(base)
            else:
                self._transactions.forget()
            next_offset = max(next_offset, summary.next_offset)
        yield from self._check_small_files(next_offset)

    def _path(self, base: int, suffix: str) -> str:
        return os.path.join(self._directory, file_name(base, suffix))

    def _open(self, path: str) -> OpenFile:
        return self._file_system.open_file(path, writable=False)

    def _read_segment(self, base: int, findings: list[Finding]) -> _SegmentSummary:
        path = self._path(base, LOG_SUFFIX)
        file = self._open(path)
        positions: dict[int, int] = {}
        damaged: list[tuple[int, int]] = []
        lost: list[tuple[int, int]] = []
        largest, position, size = -1, 0, file.size()
        self._next_offset = base
        try:
            while position < size:
                for header, batch in self._whole_batches(file, position):
                    position = header.position + header.size
                    if self._is_damaged:
                        lost.append((self._next_offset, header.base_offset))
                    self._report_lost(path, header, findings)
                    self._next_offset = header.last_offset + 1
                    largest = max(largest, header.max_timestamp)
                    positions[header.last_offset] = header.position
                    self._follow_transactions(header, batch)
                if position < size:
                    findings.append(
                        Finding(path, position, self._fault or f"{size - position} bytes of an incomplete last batch")
                    )
                    resume = find_resume_position(file, position, size, self.iter_indexed_batches(base))
                    damaged.append((position, resume))
                    position = resume
                    self._is_damaged = True
        finally:
            file.close()
        if self._is_damaged:
            lost.append((self._next_offset, sys.maxsize))
        batches = set(positions.values())
        return _SegmentSummary(size, batches, self._next_offset, largest, positions, damaged, lost)

    def _whole_batches(self, file: OpenFile, position: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Iterate over the batches up to the first damaged or incomplete one. ``_fault`` then describes the damage, and
        is empty at an incomplete one."""
        self._fault = ""
        size = file.size()
        try:
            for header, batch in iter_batches(file, position, size):
                self._fault = _batch_fault(file, header, batch, self._next_offset)
                if self._fault:
                    return
                yield header, batch
        except CorruptMessageError as error:
            self._fault = str(error)

    def _report_lost(self, path: str, header: BatchHeader, findings: list[Finding]) -> None:
        """Add a finding for the offsets that damage before a batch has made unreadable."""
        if self._is_damaged and header.base_offset > self._next_offset:
            lost = f"offsets {self._next_offset} to {header.base_offset - 1} are lost to damage"
            findings.append(Finding(path, header.position, lost))
        self._is_damaged = False

    def iter_indexed_batches(self, base: int) -> Iterator[tuple[int, int]]:
        """Yield byte position and last offset of the appends that the offset index names."""
        path = self._path(base, INDEX_SUFFIX)
        for slot, (relative, position) in self._entries(path, OffsetIndex.ENTRY.size, OffsetIndex.ENTRY.unpack_from):
            if slot and relative == 0:
                return
            yield position, base + relative

    def compare_indices(self, base: int) -> IndexFindings:
        """Compare the offset and the time index of one segment with its records, as far as these can be read."""
        wrong = [
            *self._check_end(base, INDEX_SUFFIX, OffsetIndex.ENTRY),
            *self._check_end(base, TIME_INDEX_SUFFIX, TimeIndex.ENTRY),
        ]
        if file_name(base, LOG_SUFFIX) not in self._names:
            alone = [self._path(base, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
            return IndexFindings(
                wrong, [Finding(path, -1, "there is no segment with which to compare it") for path in alone]
            )
        summary = self._read_segment(base, [])
        wrong += [*self._check_offset_index(base, summary), *self._check_time_index(base, summary)]
        return IndexFindings(wrong, list(self._list_unchecked(base, summary)))

    def _check_end(self, base: int, suffix: str, entry: Struct) -> Iterator[Finding]:
        """Check that an index ends after a whole entry, and that only zeros follow its first empty one."""
        path = self._path(base, suffix)
        data = self._content(path)
        if len(data) % entry.size:
            yield Finding(path, -1, f"{len(data)} bytes are not a multiple of an entry's {entry.size}")
        for slot, fields in self._entries(path, entry.size, entry.unpack_from):
            if slot and not any(fields if suffix == TIME_INDEX_SUFFIX else fields[:1]):
                if any(data[slot * entry.size :]):
                    yield Finding(path, slot, "an empty entry is followed by other bytes than zeros")
                return

    def _list_unchecked(self, base: int, summary: _SegmentSummary) -> Iterator[Finding]:
        """Yield a finding for each index that has entries for damaged bytes of the segment."""
        slots = [slot for slot, entry in enumerate(self._index_entries(base)) if summary.is_uncertain(entry)]
        if slots:
            yield Finding(self._path(base, INDEX_SUFFIX), slots[0], _count_unchecked(slots))
        path = self._path(base, TIME_INDEX_SUFFIX)
        entries = [one for _, one in self._entries(path, TimeIndex.ENTRY.size, TimeIndex.ENTRY.unpack_from)]
        slots = [
            slot for slot, one in enumerate(entries) if (any(one) or not slot) and _is_unproven(base, one, summary)
        ]
        if slots:
            yield Finding(path, slots[0], _count_unchecked(slots))

    def _index_entries(self, base: int) -> list[_IndexEntry]:
        """Read the offset index, up to the zeros with which the index of a log that was not closed may end."""
        found = list(self.iter_indexed_batches(base))
        limits = [*(position for position, _ in found[1:]), sys.maxsize]
        return [
            _IndexEntry(position, offset, limit if limit > position else sys.maxsize)
            for (position, offset), limit in zip(found, limits, strict=False)
        ]

    def _check_offset_index(self, base: int, summary: _SegmentSummary) -> Iterator[Finding]:
        path = self._path(base, INDEX_SUFFIX)
        previous = (base - 1, -1)
        for slot, entry in enumerate(self._index_entries(base)):
            if entry.offset <= previous[0] or entry.position <= previous[1]:
                yield Finding(path, slot, f"entry ({entry.offset}, {entry.position}) does not follow {previous}")
            if fault := summary.fault_of(entry):
                yield Finding(path, slot, fault)
            previous = (entry.offset, entry.position)

    def _check_time_index(self, base: int, summary: _SegmentSummary) -> Iterator[Finding]:
        path = self._path(base, TIME_INDEX_SUFFIX)
        previous = (-1, base - 1)
        for slot, (timestamp, relative) in self._entries(path, TimeIndex.ENTRY.size, TimeIndex.ENTRY.unpack_from):
            offset = base + relative
            if slot and timestamp == 0 and relative == 0:
                break
            if timestamp <= previous[0] or offset < previous[1]:
                yield Finding(path, slot, f"entry ({timestamp}, {offset}) does not follow {previous}")
            if offset not in summary.positions and not summary.is_lost(offset):
                yield Finding(path, slot, f"no batch ends at offset {offset}")
            previous = (timestamp, offset)
        if previous[0] > summary.largest_timestamp and not summary.damaged_bytes:
            yield Finding(path, -1, f"ends with timestamp {previous[0]}, later than any record")

    def _follow_transactions(self, header: BatchHeader, batch: memoryview) -> None:
        if header.is_control:
            is_commit = commits_transaction(batch)
            if is_commit is not None:
                self._transactions.see_marker(header.producer_id, header.base_offset, is_abort=not is_commit)
        elif header.is_transactional and header.record_count:
            self._transactions.see_records(header.producer_id, header.base_offset)

    def _check_transaction_index(self, base: int) -> Iterator[Finding]:
        path = self._path(base, TXN_INDEX_SUFFIX)
        for slot, message in self._transactions.finish_segment(self._content(path)):
            yield Finding(path, slot, message)

    def _entries(self, path: str, size: int, unpack: _Unpack) -> Iterator[tuple[int, tuple[int, ...]]]:
        data = self._content(path)
        for slot in range(len(data) // size):
            yield slot, unpack(data, slot * size)

    def _content(self, path: str) -> bytes:
        """Read the bytes of an index file; empty if there is none."""
        if os.path.basename(path) not in self._names:
            return b""
        file = self._open(path)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def _check_small_files(self, next_offset: int) -> Iterator[Finding]:
        epochs = os.path.join(self._directory, LEADER_EPOCH_FILE)
        try:
            entries = read_leader_epochs(self._file_system, epochs)
            for before, after in itertools.pairwise(entries):
                if after.epoch <= before.epoch or after.start_offset < before.start_offset:
                    yield Finding(epochs, -1, f"{after} does not follow {before}")
            if entries and entries[-1].start_offset > next_offset:
                yield Finding(epochs, -1, f"{entries[-1]} begins after the log's end {next_offset}")
        except KafkaStorageError as error:
            yield Finding(epochs, -1, str(error))
        for name in sorted(self._names):
            path = os.path.join(self._directory, name)
            try:
                if name.endswith(SNAPSHOT_SUFFIX):
                    decode_snapshot(self._file_system.read_file(path), path)
                elif name == PARTITION_METADATA_FILE:
                    read_partition_metadata(self._file_system, self._directory)
            except KafkaStorageError as error:
                yield Finding(path, -1, str(error))


def _is_unproven(base: int, entry: tuple[int, ...], summary: _SegmentSummary) -> bool:
    """Return whether an entry of the time index cannot be compared: its batch, or the record of its time, is lost."""
    timestamp, relative = entry
    is_later = bool(summary.damaged_bytes) and timestamp > summary.largest_timestamp
    return is_later or summary.is_lost(base + relative)


def _count_unchecked(slots: list[int]) -> str:
    return f"{len(slots)} of its entries cannot be compared with the segment, which is damaged there"


def _batch_fault(file: OpenFile, header: BatchHeader, batch: memoryview, next_offset: int) -> str:
    """Describe what is wrong with a batch's checksum or offset; empty if nothing is. No checksum covers the offset."""
    if not crc_matches(header, batch):
        return f"wrong CRC in the batch of offset {header.base_offset}"
    if header.base_offset < next_offset:
        return f"offset {header.base_offset} comes after {next_offset - 1}"
    if header.base_offset > next_offset and reaches_next(file, header.position + header.size, header.last_offset):
        return f"the batch of offset {header.base_offset} overlaps the next one; offset {next_offset} is expected"
    return ""
