"""UnifiedLog: append, read by isolation, producers, transactions, roll, truncate, retention, swap."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from tests.support.logs import (
    NOW_MS,
    LogBench,
    append,
    batch,
    marker,
    producer_batch,
    read_bytes,
    read_records,
    values,
)
from tidelog.log.check import check_directory
from tidelog.log.fetch import FetchIsolation
from tidelog.log.producer.state import DEFAULT_PRODUCER_ID_EXPIRATION_MS, PRODUCERS_UNDER_LOCK, ProducerBatch
from tidelog.log.segment.segment import CLEANED_SUFFIX, LogSegment
from tidelog.log.system.time import ManualTime
from tidelog.log.timestamps import EARLIEST_TIMESTAMP, LATEST_TIERED_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP
from tidelog.log.unified_log import UnifiedLog
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceNumberError,
    RecordListTooLargeError,
    TransactionCoordinatorFencedError,
)

COMMITTED = FetchIsolation.TXN_COMMITTED
COORDINATOR = AppendOrigin.COORDINATOR


@pytest.fixture
def bench(tmp_path: Path) -> LogBench:
    return LogBench(str(tmp_path), segment_bytes=1000, index_interval_bytes=100, file_delete_delay_ms=0)


def fill(log: UnifiedLog, count: int) -> None:
    for number in range(count):
        append(log, batch(1, value=b"v%d" % (log.log_end_offset), timestamp=NOW_MS + number))


class TestAppendAndRead:
    def test_offsets_are_consecutive(self, bench: LogBench) -> None:
        log = bench.open()
        first, second = append(log, batch(3)), append(log, batch(2))
        assert (first.first_offset, first.last_offset, second.first_offset, second.last_offset) == (0, 2, 3, 4)
        assert log.log_end_offset == 5

    def test_bytes_read_are_those_appended_but_for_offset_and_epoch(self, bench: LogBench) -> None:
        log = bench.open()
        sent = batch(2)
        append(log, bytearray(batch(1)))
        append(log, sent, epoch=5)
        data = read_bytes(log, 1)
        assert data == bytes(sent), "assigned in place"
        assert data[:8] == (1).to_bytes(8, "big")
        assert data[12:16] == (5).to_bytes(4, "big")

    def test_every_offset_can_be_read_over_many_segments(self, bench: LogBench) -> None:
        log = bench.open()
        fill(log, 100)
        assert len(log.segments) > 5
        for offset in range(100):
            assert read_records(log, offset)[0].offset == offset
        assert values(log) == {n: b"v%d" % n for n in range(100)}

    def test_whole_batches_are_returned(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, batch(5))
        assert read_bytes(log, 3) == read_bytes(log, 0)

    @pytest.mark.parametrize("offset", [-1, 6])
    def test_outside_of_the_log_is_out_of_range(self, bench: LogBench, offset: int) -> None:
        log = bench.open()
        append(log, batch(5))
        with pytest.raises(OffsetOutOfRangeError):
            log.read(offset, 100, isolation=FetchIsolation.LOG_END, min_one_message=True)

    def test_the_end_reads_nothing(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, batch(5))
        assert log.read(5, 100, isolation=FetchIsolation.LOG_END, min_one_message=True).records == b""

    def test_consumers_stop_at_the_high_watermark(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, batch(2))
        log.append_as_leader(memoryview(batch(2)), leader_epoch=0)
        assert [r.offset for r in read_records(log, 0, FetchIsolation.HIGH_WATERMARK)] == [0, 1]
        assert [r.offset for r in read_records(log, 0, FetchIsolation.LOG_END)] == [0, 1, 2, 3]

    def test_a_limit_below_the_first_batch_cuts_it_unless_one_message_is_wanted(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, batch(5))
        whole = read_bytes(log, 0)
        cut = log.read(0, 10, isolation=FetchIsolation.LOG_END, min_one_message=False)
        assert (len(cut.records), cut.first_entry_incomplete) == (10, True)
        full = log.read(0, 10, isolation=FetchIsolation.LOG_END, min_one_message=True)
        assert (len(full.records), full.first_entry_incomplete) == (len(whole), False)
        for info in (cut, full):
            assert not isinstance(info.records, bytes)
            info.records.release()

    def test_tail_reads_see_the_new_batch_only(self, bench: LogBench) -> None:
        log = bench.open()
        for number in range(40):
            assert log.read(number, 1000, isolation=FetchIsolation.HIGH_WATERMARK, min_one_message=True).records == b""
            append(log, batch(1, value=b"%d" % number))
            assert [r.offset for r in read_records(log, number)] == [number]

    def test_oversized_batch_is_refused_and_changes_nothing(self, bench: LogBench) -> None:
        log = bench.open()
        with pytest.raises(RecordListTooLargeError):
            append(log, batch(1, value=bytes(2000)))
        assert log.log_end_offset == 0
        assert log.size_bytes == 0

    def test_closed_log_refuses(self, bench: LogBench) -> None:
        log = bench.open()
        log.close()
        with pytest.raises(KafkaStorageError):
            append(log, batch(1))


class TestRoll:
    def test_the_age_of_records_rolls_the_segment(self, tmp_path: Path) -> None:
        log = LogBench(str(tmp_path), segment_ms=1000, message_timestamp_after_max_ms=10**9).open()
        append(log, batch(1, timestamp=NOW_MS))
        append(log, batch(1, timestamp=NOW_MS + 1000))
        assert len(log.segments) == 1
        append(log, batch(1, timestamp=NOW_MS + 1001))
        assert [s.base_offset for s in log.segments] == [0, 2]

    def test_a_full_index_rolls_the_segment(self, tmp_path: Path) -> None:
        log = LogBench(str(tmp_path), segment_index_bytes=24, index_interval_bytes=0).open()
        fill(log, 10)
        assert len(log.segments) > 2
        assert check_directory(log.environment.file_system, log.directory) == []

    def test_empty_active_segment_stays(self, bench: LogBench) -> None:
        log = bench.open()
        assert log.roll() is log.segments.active
        assert len(log.segments) == 1

    def test_snapshot_and_trimmed_indices(self, bench: LogBench) -> None:
        log = bench.open()
        fill(log, 5)
        first = log.segments.active
        log.roll()
        assert os.path.exists(log.producer_state.snapshot_path(5))
        assert os.path.getsize(first.offset_index.path) == first.offset_index.entries * 8


class TestProducers:
    def test_duplicate_answers_the_first_offset(self, bench: LogBench) -> None:
        log = bench.open()
        first = append(log, producer_batch(0, 3))
        for sequence in range(3, 7):
            append(log, producer_batch(sequence))
        again = append(log, producer_batch(0, 3))
        assert (again.first_offset, again.last_offset, again.duplicate) == (first.first_offset, first.last_offset, True)
        assert log.log_end_offset == 7

    def test_an_append_tells_the_high_watermark_after_it(self, bench: LogBench) -> None:
        log = bench.open()
        records = [memoryview(bytearray(producer_batch(sequence))) for sequence in (0, 1, 1)]
        waiting = log.append_as_leader(records[0], 0)
        committed = log.append_as_leader(records[1], 0, is_committed=True)
        assert (waiting.high_watermark, committed.high_watermark) == (0, 2)
        assert log.append_as_leader(records[2], 0).high_watermark == 2

    def test_sixth_batch_back_is_out_of_order(self, bench: LogBench) -> None:
        log = bench.open()
        for sequence in range(6):
            append(log, producer_batch(sequence))
        with pytest.raises(OutOfOrderSequenceNumberError):
            append(log, producer_batch(0))

    def test_gap_is_refused(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, producer_batch(0))
        with pytest.raises(OutOfOrderSequenceNumberError):
            append(log, producer_batch(2))
        assert log.log_end_offset == 1

    def test_old_epoch_is_fenced_and_new_epoch_begins_at_zero(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, producer_batch(0, epoch=1))
        with pytest.raises(InvalidProducerEpochError):
            append(log, producer_batch(1, epoch=0))
        with pytest.raises(OutOfOrderSequenceNumberError):
            append(log, producer_batch(1, epoch=2))
        assert append(log, producer_batch(0, epoch=2)).first_offset == 1

    def test_sequence_wraps_around(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, producer_batch(2**31 - 2, 2))
        assert append(log, producer_batch(0)).first_offset == 2

    @pytest.mark.parametrize("clean", [True, False])
    def test_state_survives_a_restart(self, bench: LogBench, clean: bool) -> None:
        log = bench.open()
        for sequence in range(30):
            append(log, producer_batch(sequence))
        if clean:
            log.close()
        reopened = bench.open(clean=clean)
        assert append(reopened, producer_batch(29)).duplicate
        assert append(reopened, producer_batch(30)).first_offset == 30
        with pytest.raises(OutOfOrderSequenceNumberError):
            append(reopened, producer_batch(40))

    def test_idle_producer_expires_by_both_clocks(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, producer_batch(0))
        assert isinstance(bench.time, ManualTime)
        bench.time.jump_wall(2 * 86_400_000)
        assert log.producer_state.remove_expired(log.lock) == 0
        bench.time.advance(86_400_001)
        assert log.producer_state.remove_expired(log.lock) == 1

    def test_a_restart_forgets_no_producer_for_its_old_timestamps(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, producer_batch(0))
        log.close()
        assert isinstance(bench.time, ManualTime)
        bench.time.jump_wall(1000 * 86_400_000)
        reopened = bench.open(clean=True)
        assert append(reopened, producer_batch(0)).duplicate
        assert reopened.producer_state.remove_expired(reopened.lock) == 0

    def test_a_loaded_producer_that_looks_expired_goes_after_a_grace(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, producer_batch(0))
        log.close()
        assert isinstance(bench.time, ManualTime)
        bench.time.jump_wall(1000 * 86_400_000)
        reopened = bench.open(clean=True)
        assert reopened.producer_state.remove_expired(reopened.lock) == 0
        bench.time.advance(3_600_001)
        assert reopened.producer_state.remove_expired(reopened.lock) == 1


class TestTransactions:
    def test_open_transaction_holds_the_last_stable_offset(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, batch(2))
        append(log, producer_batch(0, transactional=True))
        append(log, batch(2))
        assert (log.last_stable_offset, log.high_watermark) == (2, 5)
        assert [r.offset for r in read_records(log, 0, COMMITTED)] == [0, 1]
        append(log, marker(7, commit=True), COORDINATOR)
        assert log.last_stable_offset == 6

    def test_aborted_transaction_is_indexed(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, producer_batch(0, transactional=True))
        append(log, producer_batch(0, transactional=True, producer_id=8))
        append(log, marker(7, commit=False), COORDINATOR)
        assert log.last_stable_offset == 1
        append(log, marker(8, commit=True), COORDINATOR)
        info = log.read(0, 10_000, isolation=COMMITTED, min_one_message=True)
        assert info.aborted_transactions is not None
        assert [(t.producer_id, t.first_offset, t.last_offset) for t in info.aborted_transactions] == [(7, 0, 2)]
        assert info.aborted_transactions[0].last_stable_offset == 1
        assert not isinstance(info.records, bytes)
        info.records.release()

    @pytest.mark.parametrize("clean", [True, False])
    def test_abort_survives_a_restart(self, bench: LogBench, clean: bool) -> None:
        log = bench.open()
        for number in range(20):
            append(log, producer_batch(number * 10, 10, transactional=True))
            append(log, marker(7, commit=number % 2 == 0), COORDINATOR)
        expected = log.collect_aborted_transactions(0, log.log_end_offset)
        assert len(expected) == 10
        if clean:
            log.close()
        reopened = bench.open(clean=clean)
        assert reopened.collect_aborted_transactions(0, reopened.log_end_offset) == expected
        assert reopened.last_stable_offset == reopened.log_end_offset

    def test_open_transaction_survives_a_restart(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, batch(1))
        append(log, producer_batch(0, transactional=True))
        log.close()
        reopened = bench.open(clean=True)
        assert reopened.last_stable_offset == 1
        append(reopened, marker(7, commit=True), COORDINATOR)
        assert reopened.last_stable_offset == 3

    def test_old_coordinator_is_fenced(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, producer_batch(0, transactional=True))
        append(log, marker(7, commit=True, coordinator_epoch=5), COORDINATOR)
        with pytest.raises(TransactionCoordinatorFencedError):
            append(log, marker(7, commit=False, coordinator_epoch=4), COORDINATOR)

    def test_a_late_marker_of_version_2_is_refused(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, producer_batch(0, transactional=True))
        late = marker(7, commit=True)
        with pytest.raises(InvalidProducerEpochError):
            log.append_as_leader(memoryview(late), leader_epoch=0, origin=COORDINATOR, transaction_version=2)
        assert (log.log_end_offset, log.last_stable_offset) == (1, 0)

    def test_plain_batch_inside_a_transaction_is_refused(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, producer_batch(0, transactional=True))
        with pytest.raises(InvalidTxnStateError):
            append(log, producer_batch(1))

    def test_high_watermark_below_the_marker_keeps_the_offset_unstable(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, producer_batch(0, transactional=True))
        log.append_as_leader(memoryview(marker(7, commit=True)), leader_epoch=0, origin=COORDINATOR)
        assert log.last_stable_offset == 0
        log.update_high_watermark(2)
        assert log.last_stable_offset == 2


class TestTimestamps:
    def test_the_first_record_at_or_after_a_time_is_found(self, bench: LogBench) -> None:
        log = bench.open()
        fill(log, 60)
        for number in (0, 1, 31, 59):
            found = log.fetch_offset_by_timestamp(NOW_MS + number)
            assert found is not None
            assert (found.offset, found.timestamp) == (number, NOW_MS + number)
        assert log.fetch_offset_by_timestamp(NOW_MS + 60) is None

    def test_the_first_record_is_found_among_timestamps_out_of_order(self, bench: LogBench) -> None:
        log = bench.open()
        for offset in (5, 1, 9, 9, 2):
            append(log, batch(1, timestamp=NOW_MS + offset))
        answers = [log.fetch_offset_by_timestamp(NOW_MS + t) for t in (0, 5, 6, 9)]
        assert [a.offset for a in answers if a is not None] == [0, 0, 2, 2]

    def test_special_timestamps_are_answered(self, bench: LogBench) -> None:
        log = bench.open()
        for number in (1, 7, 3):
            append(log, batch(1, timestamp=NOW_MS + number), epoch=4)
        log.maybe_increment_log_start_offset(1)
        assert log.fetch_offset_by_timestamp(EARLIEST_TIMESTAMP) == (-1, 1, 4)
        assert log.fetch_offset_by_timestamp(LATEST_TIMESTAMP) == (-1, 3, 4)
        assert log.fetch_offset_by_timestamp(MAX_TIMESTAMP) == (NOW_MS + 7, 1, 4)
        assert log.fetch_offset_by_timestamp(LATEST_TIERED_TIMESTAMP) == (-1, -1, -1)


class TestTruncate:
    @pytest.mark.parametrize("offset", [0, 1, 17, 40, 99])
    def test_offsets_from_the_given_one_on_are_removed(self, bench: LogBench, offset: int) -> None:
        log = bench.open()
        fill(log, 100)
        assert log.truncate_to(offset)
        assert log.log_end_offset == offset
        assert values(log, log.log_start_offset) == {n: b"v%d" % n for n in range(log.log_start_offset, offset)}
        append(log, batch(1, value=b"new"))
        assert values(log, offset)[offset] == b"new"
        log.close()
        assert check_directory(bench.file_system, bench.directory) == []

    def test_beyond_the_end_does_nothing(self, bench: LogBench) -> None:
        log = bench.open()
        fill(log, 5)
        assert not log.truncate_to(5)

    def test_producer_state_goes_back(self, bench: LogBench) -> None:
        log = bench.open()
        for sequence in range(20):
            append(log, producer_batch(sequence))
        log.truncate_to(10)
        assert append(log, producer_batch(10)).first_offset == 10

    def test_a_log_is_truncated_fully_and_starts_elsewhere(self, bench: LogBench) -> None:
        log = bench.open()
        fill(log, 30)
        log.truncate_fully_and_start_at(500)
        assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (500, 500, 1)
        append(log, batch(1))
        log.close()
        assert bench.open(clean=True, log_start_offset=500).log_end_offset == 501

    def test_leader_epochs_after_the_offset_are_removed(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, batch(5), epoch=1)
        append(log, batch(5), epoch=2)
        log.truncate_to(5)
        assert log.leader_epochs.latest_epoch == 1


class TestRetention:
    def test_segments_older_than_retention_ms_are_deleted(self, tmp_path: Path) -> None:
        bench = LogBench(str(tmp_path), segment_bytes=1000, retention_ms=1000, file_delete_delay_ms=0)
        log = bench.open()
        fill(log, 50)
        kept = len(log.segments)
        assert log.delete_old_segments(NOW_MS + 1000) == 0
        assert log.delete_old_segments(NOW_MS + 1030) > 0
        assert 0 < log.log_start_offset < 50
        assert len(log.segments) < kept
        assert log.delete_old_segments(NOW_MS + 10_000) > 0
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (50, 50, 0)

    def test_without_retention_ms_nothing_is_deleted(self, tmp_path: Path) -> None:
        log = LogBench(str(tmp_path), segment_bytes=1000, retention_ms=-1).open()
        fill(log, 50)
        assert log.delete_old_segments(2**62) == 0

    def test_record_from_the_future_keeps_its_segment(self, tmp_path: Path) -> None:
        bench = LogBench(str(tmp_path), retention_ms=1000, message_timestamp_after_max_ms=2**63 - 1)
        log = bench.open()
        append(log, batch(1, timestamp=2**63 - 2))
        assert log.delete_old_segments(NOW_MS + 10**10) == 0

    def test_by_size_keeps_at_least_the_limit(self, tmp_path: Path) -> None:
        log = LogBench(str(tmp_path), segment_bytes=1000, retention_bytes=3000).open()
        fill(log, 100)
        assert log.delete_old_segments(NOW_MS) > 0
        assert 3000 <= log.size_bytes < 4000

    def test_no_segment_above_the_high_watermark_is_deleted(self, bench: LogBench) -> None:
        log = bench.open()
        fill(log, 50)
        log.update_high_watermark(0)
        assert log.delete_old_segments(NOW_MS * 2) == 0

    def test_deleted_records_take_their_segments(self, bench: LogBench) -> None:
        log = bench.open()
        fill(log, 50)
        log.maybe_increment_log_start_offset(30)
        assert log.delete_old_segments(NOW_MS) > 0
        assert log.segments.first.base_offset <= 30
        with pytest.raises(OffsetOutOfRangeError):
            read_bytes(log, 29)
        assert values(log, 30) == {n: b"v%d" % n for n in range(30, 50)}

    def test_start_cannot_pass_the_high_watermark(self, bench: LogBench) -> None:
        log = bench.open()
        fill(log, 5)
        with pytest.raises(OffsetOutOfRangeError):
            log.maybe_increment_log_start_offset(6)
        assert not log.maybe_increment_log_start_offset(0)

    def test_files_go_after_the_delay(self, tmp_path: Path) -> None:
        bench = LogBench(str(tmp_path), segment_bytes=1000, file_delete_delay_ms=60_000)
        log = bench.open()
        fill(log, 50)
        held = log.read(0, 300, isolation=FetchIsolation.LOG_END, min_one_message=True).records
        assert not isinstance(held, bytes)
        before = os.pread(held.file.fileno(), held.size, held.position)
        log.maybe_increment_log_start_offset(50)
        log.delete_old_segments(NOW_MS)
        assert any(name.endswith(".deleted") for name in os.listdir(bench.directory))
        assert isinstance(bench.time, ManualTime)
        bench.time.advance(60_001)
        assert bench.environment.deletions.run() > 0
        assert not any(name.endswith(".deleted") for name in os.listdir(bench.directory))
        assert os.pread(held.file.fileno(), held.size, held.position) == before, "a promised slice outlives the file"
        held.release()


def cleaned_copy(log: UnifiedLog, sources: list[LogSegment]) -> LogSegment:
    """Write all batches of ``sources`` into one ``.cleaned`` segment, as a cleaner would."""
    environment = log.environment
    copy = LogSegment.create(
        log.directory, sources[0].base_offset, log.config, environment.file_system, environment.time, CLEANED_SUFFIX
    )
    for source in sources:
        for header, data in source.batches():
            copy.append(bytes(data), header.last_offset, header.max_timestamp, header.last_offset)
    copy.on_become_inactive()
    copy.flush()
    return copy


class TestReplaceSegments:
    def test_swapped_segments_serve_the_same_records(self, bench: LogBench) -> None:
        log = bench.open()
        fill(log, 60)
        expected = values(log)
        old = list(log.segments)[:3]
        held = log.read(0, 200, isolation=FetchIsolation.LOG_END, min_one_message=True).records
        assert not isinstance(held, bytes)
        before = os.pread(held.file.fileno(), held.size, held.position)
        log.replace_segments([cleaned_copy(log, old)], old)
        assert values(log) == expected
        bench.environment.deletions.run(everything=True)
        assert os.pread(held.file.fileno(), held.size, held.position) == before
        held.release()
        log.close()
        assert check_directory(bench.file_system, bench.directory) == []
        assert values(bench.open(clean=True)) == expected


class TestFlush:
    def test_moves_the_recovery_point(self, bench: LogBench) -> None:
        log = bench.open()
        fill(log, 20)
        assert log.recovery_point == 0
        log.flush(10)
        assert log.recovery_point == 10
        log.flush()
        assert log.recovery_point == 20


class TestLeaderEpochs:
    def test_epoch_of_an_append_is_noted(self, bench: LogBench) -> None:
        log = bench.open()
        append(log, batch(5), epoch=0)
        append(log, batch(5), epoch=3)
        assert log.leader_epochs.end_offset_for(0, log.log_end_offset) == (0, 5)
        assert log.leader_epochs.end_offset_for(1, log.log_end_offset) == (0, 5)
        assert log.leader_epochs.end_offset_for(3, log.log_end_offset) == (3, 10)
        assert log.leader_epochs.end_offset_for(4, log.log_end_offset) == (-1, -1)
        log.close()
        assert bench.open(clean=True).leader_epochs.entries == log.leader_epochs.entries


class NotingLock:
    """A lock that records how many producers were removed each time it was held, and lets one be used in between."""

    def __init__(self, log: UnifiedLog) -> None:
        self._log = log
        self.went: list[int] = []

    def __enter__(self) -> None:
        self._before = len(self._log.producer_state.producers)

    def __exit__(self, *_: object) -> None:
        producers = self._log.producer_state.producers
        self.went.append(self._before - len(producers))
        if producers:
            last = next(reversed(producers.values()))
            last.touched_ms = math.inf  # it appends just now


def test_many_producers_expire_while_appends_continue(bench: LogBench) -> None:
    log = bench.open()
    for producer_id in range(3 * PRODUCERS_UNDER_LOCK):
        log.producer_state.update(ProducerBatch(producer_id, 0, 0, 0, 0, 0, NOW_MS, False))
    assert isinstance(bench.time, ManualTime)
    bench.time.advance(2 * DEFAULT_PRODUCER_ID_EXPIRATION_MS)
    lock = NotingLock(log)
    assert log.producer_state.remove_expired(lock) == 3 * PRODUCERS_UNDER_LOCK - 1
    assert max(lock.went) <= PRODUCERS_UNDER_LOCK
    assert list(log.producer_state.producers) == [2 * PRODUCERS_UNDER_LOCK - 1], "the last that came go first"
