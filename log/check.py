"""Check of one partition directory's invariants, read-only (``tidelog check``, and after every fault test).

These are checked:

- base offsets; every batch's header and CRC; offsets that strictly grow, within and across segments;
- offset indices: entries grow, and each names a batch by its last offset and position;
- time indices: entries grow, have last offsets of batches, and no timestamp later than the latest record's;
- transaction indices have the aborted transactions that the markers in the records show;
- leader epochs grow and begin within the log; producer snapshots and ``partition.metadata`` can be read.

An index may differ from a rebuilt one: it may have fewer entries (a full disk, several batches in one append). The
index of a log that was not closed may end with zeros.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
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


class _SegmentSummary(NamedTuple):
    """Summary of a record file, with which its indices are compared."""

    size: int
    batch_ends: dict[int, int]  # position of a batch -> its last offset
    next_offset: int
    largest_timestamp: int
    offsets: set[int]


def check_directory(file_system: FileSystem, directory: str) -> list[Finding]:
    """Check one partition directory; return the findings, none if it is in order.

    Raises KafkaStorageError if it cannot be read.
    """
    return list(_Checker(file_system, directory).run())


class _Checker:
    def __init__(self, file_system: FileSystem, directory: str) -> None:
        self._file_system = file_system
        self._directory = directory
        self._transactions = TransactionIndexCheck()
        self._next_offset = 0
        self._is_damaged = False  # damage was found, and no batch after it was read yet
        self._fault = ""  # what is wrong with the batch at which the last walk stopped
        self._names = {entry.name for entry in file_system.list_directory(directory) if entry.is_file}

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
        ends: dict[int, int] = {}
        largest, position, size = -1, 0, file.size()
        self._next_offset = base
        try:
            while position < size:
                for header, batch in self._whole_batches(file, position):
                    position = header.position + header.size
                    self._report_lost(path, header, findings)
                    self._next_offset = header.last_offset + 1
                    largest = max(largest, header.max_timestamp)
                    ends[header.position] = header.last_offset
                    self._follow_transactions(header, batch)
                if position < size:
                    findings.append(
                        Finding(path, position, self._fault or f"{size - position} bytes of an incomplete last batch")
                    )
                    position = find_resume_position(file, position, size, self._iter_indexed_batches(base))
                    self._is_damaged = True
        finally:
            file.close()
        return _SegmentSummary(size, ends, self._next_offset, largest, set(ends.values()))

    def _whole_batches(self, file: OpenFile, position: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Iterate over the batches up to the first damaged or incomplete one. ``_fault`` describes the damage then."""
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

    def _iter_indexed_batches(self, base: int) -> Iterator[tuple[int, int]]:
        """Yield byte position and last offset of the batches that the offset index names."""
        path = self._path(base, INDEX_SUFFIX)
        for slot, (relative, position) in self._entries(path, OffsetIndex.ENTRY.size, OffsetIndex.ENTRY.unpack_from):
            if slot and relative == 0:
                return
            yield position, base + relative

    def _check_offset_index(self, base: int, summary: _SegmentSummary) -> Iterator[Finding]:
        path = self._path(base, INDEX_SUFFIX)
        previous = (base - 1, -1)
        for slot, (relative, position) in self._entries(path, OffsetIndex.ENTRY.size, OffsetIndex.ENTRY.unpack_from):
            offset = base + relative
            if slot and relative == 0:
                break  # zeros after the entries, in the index of a log that was not closed
            if offset <= previous[0] or position <= previous[1]:
                yield Finding(path, slot, f"entry ({offset}, {position}) does not follow {previous}")
            if summary.batch_ends.get(position) != offset:
                yield Finding(path, slot, f"no batch with last offset {offset} begins at byte {position}")
            previous = (offset, position)

    def _check_time_index(self, base: int, summary: _SegmentSummary) -> Iterator[Finding]:
        path = self._path(base, TIME_INDEX_SUFFIX)
        previous = (-1, base - 1)
        for slot, (timestamp, relative) in self._entries(path, TimeIndex.ENTRY.size, TimeIndex.ENTRY.unpack_from):
            offset = base + relative
            if slot and timestamp == 0 and relative == 0:
                break
            if timestamp <= previous[0] or offset < previous[1]:
                yield Finding(path, slot, f"entry ({timestamp}, {offset}) does not follow {previous}")
            if offset not in summary.offsets:
                yield Finding(path, slot, f"no batch ends at offset {offset}")
            previous = (timestamp, offset)
        if previous[0] > summary.largest_timestamp:
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


def _batch_fault(file: OpenFile, header: BatchHeader, batch: memoryview, next_offset: int) -> str:
    """Describe what is wrong with a batch's checksum or offset; empty if nothing is. No checksum covers the offset."""
    if not crc_matches(header, batch):
        return f"wrong CRC in the batch of offset {header.base_offset}"
    if header.base_offset < next_offset:
        return f"offset {header.base_offset} comes after {next_offset - 1}"
    if header.base_offset > next_offset and reaches_next(file, header.position + header.size, header.last_offset):
        return f"the batch of offset {header.base_offset} overlaps the next one; offset {next_offset} is expected"
    return ""
