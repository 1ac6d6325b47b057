"""Lives of a compacted log in seeded orders: appends of leaders and followers, transactions, rounds of the cleaner,
truncations, restarts and power losses.

Each operation is followed by all checks: what consumers read at each isolation level, the last stable offset, look-ups
by time, and the sequences of producers are those of a model.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cleaning import NOW_MS, PARTITION, compacted
from tests.support.faulty_file_system import FaultyFileSystem
from tests.support.logs import read_bytes
from tidelog.cleaner.cleaner_manager import LogCleanerManager
from tidelog.cleaner.engine.engine import ENGINE, ReferenceEngine
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions, RoundHooks
from tidelog.log.check import check_directory
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.fetch import FetchIsolation
from tidelog.log.follower.append import append_as_follower
from tidelog.log.follower.truncation import lowered_recovery_point, sync_cut
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import (
    BatchOptions,
    EndTransactionMarker,
    Record,
    build_batch,
    end_transaction_marker,
    parse_end_transaction_marker,
)

SEEDS = int(os.environ.get("TIDELOG_FUZZ_SEEDS", "25"))
STEPS = 40
KEYS = [b"a", b"b", b"c", b"d", b"e"]
TRANSACTIONAL, IDEMPOTENT = (1, 2, 3), 7
RETENTION_MS = 1000


class Appended(NamedTuple):
    """A batch as it was appended: a marker has no records, and says whether it aborts."""

    first: int
    last: int
    producer_id: int = -1
    last_sequence: int = -1
    is_abort: bool | None = None


class Life:
    """The log, and the model of what it must hold."""

    def __init__(self, root: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = FaultyFileSystem(root, seed)
        self.root = root
        self.time = ManualTime(NOW_MS)
        self.environment = LogEnvironment(self.disk, self.time)
        self.config = compacted(
            segment_bytes=self.random.choice([400, 900, 4000]),
            index_interval_bytes=self.random.choice([0, 150, 4096]),
            cleanup_policy=self.random.choice(["compact", "compact,delete"]),
            delete_retention_ms=RETENTION_MS,
            file_delete_delay_ms=0,
        )
        self.engine = self.random.choice([ENGINE, ReferenceEngine()])
        self.options = CleanerOptions(map_bytes=64 * 1024, io_buffer_bytes=1024)
        self.batches: list[Appended] = []
        self.records: dict[int, Record] = {}
        """Data records that are left, by offset; those of aborted transactions too, until a round removes them."""
        self.cleaned_below = 0
        self.judged_below = 0
        """The high watermark at the last round: markers below it have decided what was removed."""
        self.is_unclean = False
        """Whether a truncation has removed such a marker, as only an unclean election does."""
        self.epoch = 0
        self.log: UnifiedLog = self.open(clean=False, recovery_point=0, start=0)
        self.manager = self.new_manager()

    def open(self, *, clean: bool, recovery_point: int, start: int) -> UnifiedLog:
        path = os.path.join(self.root, PARTITION.directory_name)
        self.disk.make_directory(path)
        log = load_log(
            LoadRequest(
                PARTITION, path, self.config, self.environment, DirectoryState(self.root), log_start_offset=start,
                recovery_point=recovery_point, clean=clean,
            )
        )  # fmt: skip
        log.update_high_watermark(log.log_end_offset)
        return log

    def new_manager(self) -> LogCleanerManager:
        return LogCleanerManager(lambda: [self.log], self.disk, self.time)

    # ---- model

    @property
    def aborted(self) -> set[int]:
        """Offsets of records in aborted transactions."""
        return {offset for first, last in self.ended_or_open()[0] for offset in range(first, last + 1)}

    def ended_or_open(self) -> tuple[list[tuple[int, int]], dict[int, int]]:
        """Return the batches of aborted transactions, and the first offset of each open one by producer id."""
        parts: dict[int, list[Appended]] = {}
        aborted: list[tuple[int, int]] = []
        for batch in self.batches:
            if batch.is_abort is not None:
                ended = parts.pop(batch.producer_id, [])
                aborted += [(one.first, one.last) for one in ended] if batch.is_abort else []
            elif batch.producer_id in TRANSACTIONAL:
                parts.setdefault(batch.producer_id, []).append(batch)
        return aborted, {producer_id: batches[0].first for producer_id, batches in parts.items()}

    def drop_from(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.last < offset]
        self.records = {number: record for number, record in self.records.items() if number < offset}

    # ---- operations

    def new_records(self, count: int) -> list[Record]:
        stamp = self.time.milliseconds() + self.random.randrange(-50, 50)
        value = b"v%d" % self.random.randrange(10**6) * self.random.randrange(1, 4)
        values, keys = self.random.choices([value, value, None], k=count), self.random.choices(KEYS, k=count)
        return [Record(i, stamp + self.random.randrange(5), keys[i], values[i]) for i in range(count)]

    def note(self, first: int, records: list[Record], producer_id: int = -1, sequence: int = -1) -> None:
        last = first + len(records) - 1
        self.batches.append(Appended(first, last, producer_id, sequence + len(records) - 1 if sequence >= 0 else -1))
        for record in records:
            self.records[first + record.offset] = record._replace(offset=first + record.offset)

    def append(self, producer_id: int = -1) -> None:
        records = self.new_records(self.random.randrange(1, 4))
        entry = self.log.producer_state.producers.get(producer_id)
        sequence = -1 if producer_id < 0 else 0 if entry is None else entry.last_sequence + 1
        batch = build_batch(records, BatchOptions(
            compression=self.random.choice([0, 0, 1, 2, 3, 4]), producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0, base_sequence=sequence,
            is_transactional=producer_id in TRANSACTIONAL,
        ))  # fmt: skip
        first = self.write(batch)
        self.note(first, records, producer_id, sequence)

    def write(self, batch: bytearray, origin: AppendOrigin = AppendOrigin.CLIENT) -> int:
        first = self.log.append_as_leader(memoryview(batch), leader_epoch=self.epoch, origin=origin).first_offset
        self.log.update_high_watermark(self.log.log_end_offset)
        return first

    def transact(self) -> None:
        self.append(self.random.choice(TRANSACTIONAL))

    def produce(self) -> None:
        self.append(IDEMPOTENT)

    def end_transaction(self) -> None:
        _, opened = self.ended_or_open()
        if not opened:
            return
        producer_id, commit = self.random.choice(list(opened)), self.random.random() < 0.5
        content = EndTransactionMarker(commit, 0)
        marker = end_transaction_marker(
            content, timestamp=self.time.milliseconds(), producer_id=producer_id, producer_epoch=0
        )
        first = self.write(marker, AppendOrigin.COORDINATOR)
        self.batches.append(Appended(first, first, producer_id, is_abort=not commit))

    def follow(self) -> None:
        """Append batches of a leader, with gaps that its cleaner has left."""
        fetched, first = bytearray(), self.log.log_end_offset
        self.epoch += self.random.randrange(2)
        for _ in range(self.random.randrange(1, 4)):
            first += self.random.choice([0, 0, 0, 3])
            records = self.new_records(self.random.randrange(1, 3))
            batch = build_batch(records)
            struct.pack_into(">q", batch, 0, first)
            struct.pack_into(">i", batch, 12, self.epoch)
            fetched += batch
            self.note(first, records)
            first += len(records)
        assert append_as_follower(self.log, memoryview(fetched), self.epoch) is not None
        self.log.update_high_watermark(self.log.log_end_offset)

    def roll(self) -> None:
        self.log.roll()

    def flush(self) -> None:
        self.log.flush()

    def truncate(self) -> None:
        log = self.log
        lowest = self.random.choice([log.log_start_offset, max(log.log_start_offset, log.log_end_offset - 6)])
        offset = self.random.randrange(lowest, log.log_end_offset + 1)
        with lowered_recovery_point(log, offset, lambda: None):
            log.truncate_to(offset)
            sync_cut(log)
        self.manager.checkpoint.lower(log)
        self.drop_from(log.log_end_offset)
        self.is_unclean |= log.log_end_offset < self.judged_below
        self.judged_below = min(self.judged_below, log.log_end_offset)
        self.cleaned_below = min(self.cleaned_below, log.log_end_offset)

    def start_at(self) -> None:
        offset = self.random.randrange(self.log.log_end_offset + 5)
        with lowered_recovery_point(self.log, -1, lambda: None):
            self.log.truncate_fully_and_start_at(offset)
            sync_cut(self.log)
        self.manager.checkpoint.lower(self.log)
        self.batches, self.records, self.cleaned_below, self.judged_below = [], {}, 0, 0
        self.is_unclean = False

    def delete_records(self) -> None:
        low, high = self.log.log_start_offset, self.log.last_stable_offset
        self.log.maybe_increment_log_start_offset(self.random.randrange(low, high + 1))
        if self.random.random() < 0.5:
            self.log.delete_old_segments(self.time.milliseconds())
            self.environment.deletions.run()

    def clean(self) -> None:
        found = self.manager.grab(self.log)
        assert found is not None
        hooks = RoundHooks(progress=lambda offset: self.manager.checkpoint.save(self.log, offset))
        Cleaner(self.engine, self.options).clean(found, self.time.milliseconds(), hooks)
        self.manager.checkpoint.save(self.log, found.first_uncleanable_offset)
        self.manager.record_stop(PARTITION)
        end, aborted = found.first_uncleanable_offset, self.aborted
        committed = {offset for offset in self.records if offset < end and offset not in aborted}
        latest = {self.records[offset].key: offset for offset in sorted(committed)}
        self.records = {
            offset: record
            for offset, record in self.records.items()
            if offset >= end or (latest.get(record.key) == offset and offset in committed)
        }
        self.cleaned_below, self.judged_below = max(self.cleaned_below, end), self.log.high_watermark

    def wait(self) -> None:
        self.time.advance(self.random.choice([1, RETENTION_MS // 2, 2 * RETENTION_MS]))

    def reopen(self) -> None:
        end, start = self.log.log_end_offset, self.log.log_start_offset
        self.log.flush()
        self.log.close()
        self.environment.deletions.run(everything=True)
        assert check_directory(OsFileSystem(), self.log.directory) == []
        self.log = self.open(clean=True, recovery_point=end, start=start)
        self.manager = self.new_manager()

    def kill(self) -> None:
        point, start, end = self.log.recovery_point, self.log.log_start_offset, self.log.log_end_offset
        self.disk.kill()
        self.log = self.open(clean=False, recovery_point=point, start=start)
        self.manager = self.new_manager()
        assert self.log.log_end_offset == end

    def lose_power(self) -> None:
        point, start = self.log.recovery_point, self.log.log_start_offset
        self.disk.crash(torn=self.random.random() < 0.5, keep_names=True)
        self.log = self.open(clean=False, recovery_point=point, start=start)
        self.manager = self.new_manager()
        assert self.log.log_end_offset >= point
        present = {header.base_offset for segment in self.log.segments for header in segment.headers()}
        lost = [batch for batch in self.batches if batch.first >= point and batch.first not in present]
        self.batches = [batch for batch in self.batches if batch not in lost]
        for batch in lost:
            for offset in range(batch.first, batch.last + 1):
                self.records.pop(offset, None)

    # ---- checks

    def check(self) -> None:
        self.check_all_records()
        self.check_committed_records()
        self.check_offsets()
        self.check_times()
        self.check_sequences()

    def expected(self) -> dict[int, Record]:
        return {offset: record for offset, record in self.records.items() if offset >= self.log.log_start_offset}

    def check_all_records(self) -> None:
        found = dict(read(self.log, FetchIsolation.LOG_END, self.log.log_start_offset))
        expected = self.expected()
        missing = expected.keys() - found.keys()
        assert all(expected[offset].value is None and offset < self.cleaned_below for offset in missing), missing
        for offset in missing:  # an old tombstone, which may go
            del self.records[offset]
        assert {offset: record._replace(offset=offset) for offset, record in found.items()} == {
            offset: record for offset, record in expected.items() if offset not in missing
        }

    def check_committed_records(self) -> None:
        found = dict(read(self.log, FetchIsolation.TXN_COMMITTED, self.log.log_start_offset))
        aborted = self.aborted
        assert found.keys() == {
            offset for offset in self.expected() if offset < self.log.last_stable_offset and offset not in aborted
        }

    def check_offsets(self) -> None:
        log = self.log
        firsts = [first for first in self.ended_or_open()[1].values() if first >= log.log_start_offset]
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark == log.log_end_offset
        if len(firsts) == len(self.ended_or_open()[1]):
            lowest = min([*firsts, log.log_end_offset])
            assert log.last_stable_offset >= lowest if self.is_unclean else log.last_stable_offset == lowest

    def check_times(self) -> None:
        wanted = self.time.milliseconds() + self.random.randrange(-60, 60)
        found = self.log.fetch_offset_by_timestamp(wanted)
        later = [offset for offset, record in self.expected().items() if record.timestamp >= wanted]
        if found is None:
            assert not later
        else:
            assert found.timestamp >= wanted
            assert not [offset for offset in later if offset < found.offset]

    def check_sequences(self) -> None:
        last = {batch.producer_id: batch for batch in self.batches if batch.last_sequence >= 0}
        for producer_id, batch in last.items():
            if batch.first >= max(self.log.log_start_offset, self.cleaned_below):
                assert self.log.producer_state.producers[producer_id].last_sequence == batch.last_sequence


def read(log: UnifiedLog, isolation: FetchIsolation, offset: int) -> Iterator[tuple[int, Record]]:
    """Yield the data records that a consumer gets from ``offset`` on, with their offsets."""
    while True:
        info = log.read(offset, 1 << 20, isolation=isolation, min_one_message=True)
        if not isinstance(info.records, bytes):
            info.records.release()
        data = read_bytes(log, offset, isolation=isolation)
        if not data:
            return
        waiting = sorted(info.aborted_transactions or [], key=lambda one: one.first_offset)
        skipped: set[int] = set()
        for batch in iter_batches(data):
            while waiting and waiting[0].first_offset <= batch.last_offset:
                skipped.add(waiting.pop(0).producer_id)
            records = list(batch.records())
            if batch.is_control:
                marker = parse_end_transaction_marker(records[0]) if records else None
                if marker is not None and not marker.commit:
                    skipped.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in skipped):
                yield from (
                    (r.offset, Record(r.offset, r.timestamp, r.key, r.value)) for r in records if r.offset >= offset
                )
            last = batch.last_offset
        offset = last + 1


WEIGHTS = {
    Life.append: 12, Life.transact: 8, Life.produce: 6, Life.end_transaction: 7, Life.follow: 4, Life.roll: 6,
    Life.flush: 3, Life.truncate: 3, Life.start_at: 1, Life.delete_records: 2, Life.clean: 7, Life.wait: 2,
    Life.reopen: 2, Life.kill: 3, Life.lose_power: 2,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(SEEDS))
def test_lives_of_a_compacted_log_agree_with_the_model(tmp_path: Path, seed: int) -> None:
    life = Life(str(tmp_path), seed)
    done = []
    for _ in range(STEPS):
        operation = life.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        done.append(operation.__name__)
        try:
            operation(life)
            life.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, after {' '.join(done)}")
            raise
