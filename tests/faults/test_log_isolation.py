"""Readers without a lock beside one writer that does everything a log can do: no reader gets records that its isolation
level forbids.

Every record's value says its offset, its generation (truncation makes offsets again) and whether its transaction was
aborted, so each fetched batch proves itself. Checked by readers of all three isolation levels while the writer appends,
rolls, truncates, deletes, moves the log start, and opens, commits and aborts transactions:

- whole, valid batches only, from the one that holds the offset asked for on;
- nothing at or above the bound the log had *after* the read (bounds only grow between truncations);
- read_committed: every aborted record lies in a listed aborted transaction, no committed one does (F19, I4).
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import NOW_MS, LogBench, append, marker
from tidelog.log.check import check_directory
from tidelog.log.fetch import FetchDataInfo, FetchIsolation
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.unified_log import UnifiedLog
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError, OffsetOutOfRangeError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import BatchOptions, Record, RecordBatch, build_batch
from tidelog.protocol.transferable import TransferableRecords

SETTINGS: dict[str, Any] = {"segment_bytes": 3000, "index_interval_bytes": 200, "file_delete_delay_ms": 0}
ABORTING, COMMITTING, PLAIN = 0, 1, 2


def data_of(found: FetchDataInfo) -> bytes:
    """Return the bytes that a fetch sends. They may be fewer than promised only after a truncation."""
    records = found.records
    if not isinstance(records, TransferableRecords):
        assert isinstance(records, bytes)
        return records
    data = os.pread(records.file.fileno(), records.size, records.position)
    records.release()
    return data


class Writer:
    """Two transactional producers, one whose transactions all abort and one that commits, and one plain."""

    def __init__(self, log: UnifiedLog, seed: int) -> None:
        self.log = log
        self.chance = random.Random(seed)
        self.sequences = [0, 0]
        self.open = [False, False]
        self.truncations = 0
        self.epoch = 0

    def append_batch(self, kind: int) -> None:
        count, first = self.chance.randrange(1, 4), self.log.log_end_offset
        records = [
            Record(n, NOW_MS, b"%d" % kind, b"%d/%d" % (first + n, kind) + b"x" * self.chance.randrange(60))
            for n in range(count)
        ]
        if kind == PLAIN:
            append(self.log, build_batch(records), epoch=self.epoch)
            return
        options = BatchOptions(
            producer_id=kind, producer_epoch=0, base_sequence=self.sequences[kind], is_transactional=True
        )
        append(self.log, build_batch(records, options), epoch=self.epoch)
        self.sequences[kind] += count
        self.open[kind] = True

    def end(self, kind: int) -> None:
        if self.open[kind]:
            append(self.log, marker(kind, commit=kind == COMMITTING), AppendOrigin.COORDINATOR, self.epoch)
            self.open[kind] = False

    def step(self, *, truncates: bool) -> None:
        choice = self.chance.random()
        log = self.log
        if choice < 0.75:
            self.append_batch(self.chance.randrange(3))
        elif choice < 0.93:
            self.end(self.chance.randrange(2))
        elif choice < 0.95:
            log.roll()
        elif choice < 0.96:
            self.epoch += 1
        elif choice < 0.98:
            with contextlib.suppress(OffsetOutOfRangeError):
                log.maybe_increment_log_start_offset(max(0, log.last_stable_offset - 200))
            log.delete_old_segments(NOW_MS)
            log.environment.deletions.run()
        elif truncates:
            self.end(ABORTING)
            self.end(COMMITTING)
            self.truncations += 1
            log.truncate_to(log.log_end_offset)  # nothing to cut: no reader may notice


class Reader(threading.Thread):
    """Reads from the log start to the bound, again and again."""

    def __init__(self, log: UnifiedLog, isolation: FetchIsolation, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.log, self.isolation, self.stop = log, isolation, stop
        self.problems: list[str] = []
        self.batches = 0

    def bound(self) -> int:
        log = self.log
        if self.isolation is FetchIsolation.LOG_END:
            return log.log_end_offset
        return log.high_watermark if self.isolation is FetchIsolation.HIGH_WATERMARK else log.last_stable_offset

    def run(self) -> None:
        while not self.stop.is_set() and not self.problems:
            with contextlib.suppress(OffsetOutOfRangeError, KafkaStorageError):
                self.walk()

    def walk(self) -> None:
        offset = self.log.log_start_offset
        while not self.stop.is_set():
            found = self.log.read(offset, 900, isolation=self.isolation, min_one_message=True)
            data, bound = data_of(found), self.bound()
            if not data:
                return
            expected = offset
            for batch in iter_batches(data):
                self.check(batch, expected, bound, found)
                expected = batch.last_offset + 1
            offset = expected

    def check(self, batch: object, expected: int, bound: int, found: FetchDataInfo) -> None:
        assert isinstance(batch, RecordBatch)
        self.batches += 1
        if not batch.is_valid() or not batch.base_offset <= expected <= batch.last_offset:
            self.problems.append(f"asked {expected}, got {batch}")
        if batch.last_offset >= bound:
            self.problems.append(f"{batch.last_offset} served below the bound {bound}")
        for record in batch.records():
            if batch.is_control or record.value is None:
                continue
            number, kind = record.value.rstrip(b"x").split(b"/")
            if int(number) != record.offset:
                self.problems.append(f"offset {record.offset} holds the record of {number!r}")
            self.check_transaction(record.offset, int(kind), found)

    def check_transaction(self, offset: int, kind: int, found: FetchDataInfo) -> None:
        if self.isolation is not FetchIsolation.TXN_COMMITTED:
            return
        listed = [one for one in found.aborted_transactions or [] if one.producer_id == kind]
        covered = any(one.first_offset <= offset <= one.last_offset for one in listed)
        if covered != (kind == ABORTING):
            self.problems.append(f"offset {offset} of kind {kind}: aborted transactions listed {listed}")


@pytest.mark.parametrize("seed", range(3))
def test_readers_of_each_isolation_level_see_right_records_beside_a_writer(tmp_path: Path, seed: int) -> None:
    bench = LogBench(str(tmp_path), **SETTINGS)
    log = bench.open()
    writer, stop = Writer(log, seed), threading.Event()
    readers = [Reader(log, isolation, stop) for isolation in FetchIsolation]
    for _ in range(20):
        writer.step(truncates=False)
    for reader in readers:
        reader.start()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not any(reader.problems for reader in readers):
        writer.step(truncates=True)
        if log.log_end_offset > 3000 and all(reader.batches > 300 for reader in readers):
            break
    stop.set()
    for reader in readers:
        reader.join()
        assert reader.problems == []
        assert reader.batches > 100
    assert check_directory(OsFileSystem(), bench.directory) == []


def generation_value(generation: int, offset: int) -> bytes:
    return b"%d/%d/" % (generation, offset) + b"y" * (30 + 40 * (generation % 3))


def mixed_records(log: UnifiedLog, offset: int) -> list[str]:
    """Return the records of a read at ``offset`` that were never written there."""
    problems = []
    data = data_of(log.read(offset, 400, isolation=FetchIsolation.HIGH_WATERMARK, min_one_message=True))
    # A slice promised before a truncation may hold bytes written after it: a length or the CRC tells the client.
    with contextlib.suppress(CorruptMessageError):
        for batch in iter_batches(data):
            for record in batch.records() if batch.is_valid() else ():
                generation, number, _ = bytes(record.value or b"").split(b"/")
                if int(number) != record.offset or record.value != generation_value(int(generation), int(number)):
                    problems.append(f"offset {record.offset} holds {record.value!r}")
    return problems


def test_readers_beside_truncation_see_one_value_or_the_other_never_a_mix(tmp_path: Path) -> None:
    """Offsets are given again after a truncation: a batch is from the old log or the new one, complete and valid."""
    bench = LogBench(str(tmp_path), **SETTINGS)
    log = bench.open()
    stop, problems = threading.Event(), list[str]()

    def fill(generation: int, count: int) -> None:
        for _ in range(count):
            append(log, build_batch([Record(0, NOW_MS, b"k", generation_value(generation, log.log_end_offset))]))

    def read() -> None:
        while not stop.is_set():
            with contextlib.suppress(OffsetOutOfRangeError, KafkaStorageError):
                for offset in range(log.log_start_offset, log.high_watermark, 7):
                    problems.extend(mixed_records(log, offset))

    fill(0, 120)
    readers = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    for generation in range(1, 60):
        log.truncate_to(log.log_end_offset - 60)
        fill(generation, 70)
    stop.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert check_directory(OsFileSystem(), bench.directory) == []


def test_leader_epochs_answer_where_each_ended(tmp_path: Path) -> None:
    """OffsetForLeaderEpoch over restarts, truncation and retention (KIP-101, KIP-279)."""
    bench = LogBench(str(tmp_path), **SETTINGS)
    log = bench.open()
    for epoch, count in ((0, 30), (2, 25), (5, 40)):
        for _ in range(count):
            append(log, build_batch([Record(0, NOW_MS, None, b"z" * 40)]), epoch=epoch)

    def ends(of: UnifiedLog) -> list[tuple[int, int]]:
        return [of.leader_epochs.end_offset_for(epoch, of.log_end_offset) for epoch in (0, 1, 2, 3, 5, 6)]

    expected = [(0, 30), (0, 30), (2, 55), (2, 55), (5, 95), (-1, -1)]
    assert ends(log) == expected
    log.flush()
    assert ends(bench.open(recovery_point=0)) == expected, "from the batches"
    log.truncate_to(50)
    assert ends(log) == [(0, 30), (0, 30), (2, 50), (-1, -1), (-1, -1), (-1, -1)]
    log.maybe_increment_log_start_offset(40)
    assert log.leader_epochs.end_offset_for(0, log.log_end_offset) == (0, 40)
    log.close()
    again = bench.open(clean=True, log_start_offset=40)
    assert again.leader_epochs.end_offset_for(2, again.log_end_offset) == (2, 50)
