"""Damage, foreign files, full and failing disks, clocks, and fetches during swaps, for the log (faults F5 to F11 and
F22 of docs/internals/faults.md)."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.faulty_file_system import FaultyFileSystem
from tests.support.logs import NOW_MS, LogBench, append, batch, read_bytes, values
from tidelog.log.check import check_directory
from tidelog.log.config import LogConfig
from tidelog.log.fetch import FetchIsolation
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.recovery.segment_recovery import LogLoadError
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.retention_clock import BELIEVED_AFTER_MS
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaError, KafkaStorageError, OffsetOutOfRangeError
from tidelog.protocol.record.record_batch import RecordBatch

SMALL: dict[str, Any] = {"segment_bytes": 2000, "index_interval_bytes": 200, "file_delete_delay_ms": 0}


def value_of(offset: int) -> bytes:
    return b"value %d" % offset


def filled(directory: Path, count: int = 60, **config: Any) -> tuple[LogBench, UnifiedLog]:
    bench = LogBench(str(directory), **(SMALL | config))
    log = bench.open()
    for number in range(count):
        append(log, batch(1, value=value_of(log.log_end_offset), timestamp=NOW_MS + number))
    return bench, log


def flip(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x40]))


# ---- F5: bit flips


@pytest.mark.parametrize("at", [8, 16, 22, 40, 65])
def test_flip_in_a_synced_segment_costs_only_that_batch(tmp_path: Path, at: int) -> None:
    """Below the recovery point nothing is cut: all other offsets stay readable, the bad batch fails its CRC."""
    bench, log = filled(tmp_path)
    log.flush()
    end, victim = log.log_end_offset, log.segments[1]
    headers = list(victim.headers())
    damaged = headers[len(headers) // 2]
    log.close()
    flip(victim.records.path, damaged.position + at)
    for clean in (True, False):
        reopened = bench.open(clean=clean, recovery_point=end)
        assert reopened.log_end_offset == end
        assert os.path.getsize(victim.records.path) == victim.size, "no silent truncation of a closed segment"
        good = 0
        for offset in range(end):
            try:
                found = RecordBatch(read_bytes(reopened, offset, 1))
                good += found.is_valid() and found.base_offset == offset
            except KafkaError:
                continue
        assert good >= end - len(headers)
        assert good >= end - 1 or at in (8, 16), "a broken length or magic hides its neighbours"
        reopened.close()
    damage = bench.environment.damage
    assert damage.reads > 0 or at != 16, "a header that cannot be is counted when a reader meets it"
    assert any(f.path == victim.records.path for f in check_directory(OsFileSystem(), bench.directory))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, 5, -1], ids=["first", "middle", "last"])
def test_flip_in_a_synced_header_frees_no_offset(tmp_path: Path, number: int, clean: bool) -> None:
    """Neither is anything cut, nor does a new record get the offset of an old one: else the log is refused. No checksum
    covers the base offset, in bytes 0 to 7."""
    _, log = filled(tmp_path / "sound")
    log.flush()
    end, path, size = log.log_end_offset, log.segments.active.records.path, log.segments.active.size
    victim = list(log.segments.active.headers())[number]
    log.close()
    for at in (0, 1, 3, 4, 5, 6, 7, 8, 10, 11, 16, 23, 26):
        copied = tmp_path / str(at)
        shutil.copytree(tmp_path / "sound", copied)
        damaged = str(copied / Path(path).relative_to(tmp_path / "sound"))
        flip(damaged, victim.position + at)
        try:
            reopened = LogBench(str(copied), **SMALL).open(clean=clean, recovery_point=end)
        except LogLoadError:
            continue
        assert os.path.getsize(damaged) == size
        assert append(reopened, batch(1)).first_offset >= end
        reopened.close()


def test_damaged_ends_of_closed_segments_hide_no_other_records(tmp_path: Path) -> None:
    bench, log = filled(tmp_path)
    log.flush()
    end, segments = log.log_end_offset, list(log.segments)[:-1]
    for segment in segments:
        flip(segment.records.path, list(segment.headers())[-1].position + 16)
    log.close()
    for clean in (True, False):
        reopened = bench.open(clean=clean, recovery_point=end)
        assert reopened.log_end_offset == end
        start = reopened.segments.active.base_offset
        assert values(reopened, start) == {offset: value_of(offset) for offset in range(start, end)}
        assert bench.environment.damage.batches >= len(segments)
        reopened.close()


def test_damaged_length_of_a_synced_batch_hides_no_later_ones_from_a_recovery(tmp_path: Path) -> None:
    """The length claims more bytes than the file has."""
    bench, log = filled(tmp_path)
    log.flush()
    end, path = log.log_end_offset, log.segments.active.records.path
    flip(path, list(log.segments.active.headers())[1].position + 8)
    recovered = bench.open(recovery_point=end)
    assert recovered.log_end_offset == end
    assert bench.environment.damage.batches == 1


def test_a_failed_append_that_stayed_in_the_file_is_cut_at_a_clean_stop(tmp_path: Path) -> None:
    disk = FaultyFileSystem(str(tmp_path))
    bench = LogBench(str(tmp_path), disk)
    log = bench.open()
    append(log, batch(1, value=b"first"))
    disk.fail_at = {len(disk.calls): errno.ENOSPC, len(disk.calls) + 1: errno.ENOSPC}  # the write, and its cut back
    with pytest.raises(KafkaStorageError):
        append(log, batch(1, value=b"refused"))
    with open(log.segments.active.records.path, "ab") as file:
        file.write(bytes(batch(1, value=b"refused"))[:-3])
    log.close()
    reopened = bench.open(clean=True, recovery_point=1)
    assert append(reopened, batch(1, value=b"second")).first_offset == 1
    assert values(reopened) == {0: b"first", 1: b"second"}


def test_the_log_is_truncated_at_a_flipped_bit_in_the_unsynced_tail(tmp_path: Path) -> None:
    bench, log = filled(tmp_path, 60)
    damaged = list(log.segments.active.headers())[1]
    path = log.segments.active.records.path
    flip(path, damaged.position + 70)
    recovered = bench.open(recovery_point=log.segments.active.base_offset)
    assert recovered.log_end_offset == damaged.base_offset
    assert values(recovered) == {n: value_of(n) for n in range(damaged.base_offset)}
    assert bench.environment.damage.cut_bytes > 0


def test_damage_below_the_recovery_point_of_an_unsynced_segment_is_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench, log = filled(tmp_path, 60)
    log.flush()
    end = log.log_end_offset
    damaged = list(log.segments.active.headers())[1]
    for _ in range(3):
        append(log, batch(1, value=value_of(log.log_end_offset)))
    flip(log.segments.active.records.path, damaged.position + 70)
    recovered = bench.open(recovery_point=end)
    assert recovered.log_end_offset == end + 3, "nothing behind the damage is lost"
    assert bench.environment.damage.batches == 1
    assert any("damaged batch is kept" in record.getMessage() for record in caplog.records)


def test_synced_damage_at_the_end_is_refused_not_cut(tmp_path: Path) -> None:
    """Cutting it would give its offsets to new records (I2)."""
    bench, log = filled(tmp_path)
    log.flush()
    end = log.log_end_offset
    path, last = log.segments.active.records.path, list(log.segments.active.headers())[-1]
    log.close()
    with open(path, "r+b") as file:
        file.truncate(last.position + 5)
    with pytest.raises(LogLoadError, match="no valid batch"):
        bench.open(recovery_point=end)


# ---- F6: index files


def zero(path: str) -> None:
    with open(path, "r+b") as file:
        file.write(bytes(os.path.getsize(path)))


def cut(path: str) -> None:
    os.truncate(path, os.path.getsize(path) - 5)


def halve(path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2 // 24 * 24)


def lengthen(path: str) -> None:
    with open(path, "ab") as file:
        file.write(b"\x7f" * 24)


def empty(path: str) -> None:
    os.truncate(path, 0)


DAMAGES: list[Callable[[str], None]] = [zero, cut, halve, lengthen, empty, os.unlink]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_damaged_index_is_rebuilt_as_from_clean(
    tmp_path: Path, damage: Callable[[str], None], which: int, clean: bool
) -> None:
    bench, log = filled(tmp_path, 80, segment_bytes=4000)
    segment = log.segments[0]
    log.flush()
    end = log.log_end_offset
    log.close()
    path = segment.paths[which]
    with open(path, "rb") as file:
        expected = file.read()
    assert len(expected) > 60
    damage(path)
    reopened = bench.open(clean=clean, recovery_point=end)
    assert values(reopened) == {n: value_of(n) for n in range(end)}
    for number in range(0, end, 7):
        found = reopened.fetch_offset_by_timestamp(NOW_MS + number)
        assert found is not None
        assert found.offset == number
    reopened.close()
    with open(path, "rb") as file:
        rebuilt = file.read()
    # A time index with entries missing at its end only makes look-ups longer and looks like one of a log whose
    # timestamps stood still; all other damage is seen, also without reading every entry.
    if not (which == 2 and damage is halve):
        assert rebuilt == expected
    assert check_directory(OsFileSystem(), bench.directory) == []


def test_stale_index_of_another_log_is_rebuilt(tmp_path: Path) -> None:
    other, other_log = filled(tmp_path / "other", 40)
    stale = other_log.segments[0].offset_index.path
    other_log.close()
    os.makedirs(tmp_path / "log", exist_ok=True)
    bench = LogBench(str(tmp_path / "log"), **SMALL)
    log = bench.open()
    for _ in range(40):
        append(log, batch(1, value=value_of(log.log_end_offset), key=b"longer key"))
    end, target = log.log_end_offset, log.segments[0].offset_index.path
    log.flush()
    log.close()
    assert other.directory != bench.directory
    shutil.copy(stale, target)
    reopened = bench.open(recovery_point=end)
    assert values(reopened) == {n: value_of(n) for n in range(end)}
    reopened.close()
    assert check_directory(OsFileSystem(), bench.directory) == []


# ---- F7: what is not a log


def missing_middle(directory: str, names: list[str]) -> None:
    os.unlink(os.path.join(directory, names[1]))


def missing_middle_with_all_traces(directory: str, names: list[str]) -> None:
    for name in os.listdir(directory):
        if name.startswith(names[1][:20]):
            os.unlink(os.path.join(directory, name))


def emptied_middle(directory: str, names: list[str]) -> None:
    os.truncate(os.path.join(directory, names[1]), 0)


def wrong_base_offset(directory: str, names: list[str]) -> None:
    stem = os.path.join(directory, names[1][:20])
    for suffix in (".log", ".index", ".timeindex"):
        os.rename(stem + suffix, os.path.join(directory, f"{int(names[1][:20]) + 3:020d}{suffix}"))


def short_name(directory: str, names: list[str]) -> None:
    shutil.copy(os.path.join(directory, names[0]), os.path.join(directory, "7.log"))


def link(directory: str, names: list[str]) -> None:
    path = os.path.join(directory, names[1])
    os.rename(path, path + ".elsewhere")
    os.symlink(path + ".elsewhere", path)


def directory_as_segment(directory: str, names: list[str]) -> None:
    os.unlink(os.path.join(directory, names[1]))
    os.mkdir(os.path.join(directory, names[1]))


BREAKS = [missing_middle, missing_middle_with_all_traces, emptied_middle, wrong_base_offset, short_name, link,
          directory_as_segment]  # fmt: skip


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("break_it", BREAKS, ids=lambda f: f.__name__)
def test_a_directory_that_is_no_log_is_refused_and_other_logs_are_served(
    tmp_path: Path, break_it: Callable[[str, list[str]], None], clean: bool
) -> None:
    config = LogConfig({"segment.bytes": 2000, "index.interval.bytes": 200})
    time = ManualTime(NOW_MS)
    manager = LogManager([str(tmp_path)], OsFileSystem(), time, config)
    manager.startup()
    good, bad = TopicPartition("good", 0), TopicPartition("bad", 0)
    for partition in (good, bad):
        log = manager.get_or_create_log(partition, bytes(15) + b"1", config)
        for _ in range(60):
            append(log, batch(1, value=value_of(log.log_end_offset)))
        log.flush()
    directory = str(tmp_path / "bad-0")
    manager.shutdown()
    if not clean:
        os.unlink(tmp_path / ".kafka_cleanshutdown")
    break_it(directory, sorted(name for name in os.listdir(directory) if name.endswith(".log")))
    restarted = LogManager([str(tmp_path)], OsFileSystem(), time, config)
    restarted.startup()
    with pytest.raises(KafkaStorageError, match="bad-0"):
        restarted.get_log(bad)
    served = restarted.get_log(good)
    assert served is not None
    assert values(served) == {n: value_of(n) for n in range(60)}
    assert list(restarted.refused) == [bad]
    restarted.shutdown()
    assert not os.path.exists(tmp_path / ".kafka_cleanshutdown"), "a refused log must be looked at again"


def test_stray_files_are_ignored(tmp_path: Path) -> None:
    bench, log = filled(tmp_path)
    log.close()
    for name in (".DS_Store", "notes.txt", "lost+found", "00000000000000000099.index.tmp"):
        Path(bench.directory, name).write_bytes(b"x")
    assert values(bench.open(clean=True)) == {n: value_of(n) for n in range(60)}


# ---- F8, F9, F10: the disk says no


def test_full_disk_at_every_write_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    """F8: the producer gets an error, the partial batch is truncated, reads continue, writes resume."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = FaultyFileSystem(str(root), seed=3)
    bench = LogBench(str(root), disk, **SMALL)
    log = bench.open()
    failures = attempts = 0
    while log.log_end_offset < 60:
        offset, attempts = log.log_end_offset, attempts + 1
        disk.fail_at = {len(disk.calls) + attempts % 23: errno.ENOSPC}
        try:
            append(log, batch(1, value=value_of(offset)))
        except KafkaStorageError:
            failures += 1
            assert log.log_end_offset == offset
        assert bench.state.failure is None
        if offset % 11 == 0:
            assert list(values(log)) == list(range(log.log_end_offset))
    assert failures >= 5
    disk.fail_at.clear()
    log.close()
    assert values(bench.open(clean=True)) == {n: value_of(n) for n in range(60)}
    assert check_directory(OsFileSystem(), bench.directory) == []


def test_flush_on_a_full_disk_fails_and_the_next_one_does_it(tmp_path: Path) -> None:
    """F8: there is no space for the checkpoint of leader epochs; the sync counts, so reads continue."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = FaultyFileSystem(str(root))
    bench = LogBench(str(root), disk, **SMALL)
    log = bench.open()
    append(log, batch(1, value=value_of(0)))
    disk.fail_operation["write"] = errno.ENOSPC
    with pytest.raises(KafkaStorageError):
        log.flush()
    assert (bench.state.failure, log.recovery_point) == (None, 0)
    assert values(log) == {0: value_of(0)}
    disk.fail_operation.clear()
    log.flush()
    assert log.recovery_point == 1


def test_read_only_directory_behaves_as_a_full_one(tmp_path: Path) -> None:
    """F10."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = FaultyFileSystem(str(root))
    bench = LogBench(str(root), disk, **SMALL)
    log = bench.open()
    append(log, batch(1, value=value_of(0)))
    for operation in ("write", "create", "rename", "truncate"):
        disk.fail_operation[operation] = errno.EROFS
    with pytest.raises(KafkaStorageError):
        append(log, batch(1))
    assert values(log) == {0: value_of(0)}
    for _ in range(2):
        assert "Read-only file system" in str(bench.state.shortage), "what /readyz and the metrics tell"
        bench.state.check_room(disk)
    disk.fail_operation.clear()
    bench.state.check_room(disk)
    assert (bench.state.shortage, bench.state.failure) == (None, None)
    append(log, batch(1, value=value_of(1)))
    assert values(log) == {0: value_of(0), 1: value_of(1)}


def test_a_file_size_limit_is_reported_and_the_log_continues_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit on the size of the process's files (RLIMIT_FSIZE) is no failed disk, nor a full one."""
    disk = FaultyFileSystem(str(tmp_path))
    bench = LogBench(str(tmp_path), disk, **SMALL)
    log = bench.open()
    disk.fail_operation["write"] = errno.EFBIG
    for _ in range(3):
        with pytest.raises(KafkaStorageError, match="File too large"):
            append(log, batch(1))
    assert [line for line in caplog.messages if "File too large" in line] == caplog.messages[:1]
    disk.fail_operation.clear()
    append(log, batch(1, value=value_of(0)))
    assert values(log) == {0: value_of(0)}
    assert (bench.state.shortage, bench.state.failure) == (None, None)


def test_failed_sync_takes_the_directory_offline_without_a_second_try(tmp_path: Path) -> None:
    """F9: after a failed fdatasync the page cache may say anything."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = FaultyFileSystem(str(root))
    bench = LogBench(str(root), disk, **SMALL)
    log = bench.open()
    append(log, batch(1))
    disk.fail_operation["sync"] = errno.EIO
    with pytest.raises(KafkaStorageError):
        log.flush()
    assert log.recovery_point == 0
    syncs = sum(operation == "sync" for operation, _ in disk.calls)
    disk.fail_operation.clear()
    with pytest.raises(KafkaStorageError, match="offline"):
        log.flush()
    with pytest.raises(KafkaStorageError, match="offline"):
        append(log, batch(1))
    with pytest.raises(KafkaStorageError, match="offline"):
        log.read(0, 100, isolation=FetchIsolation.LOG_END, min_one_message=True)
    assert sum(operation == "sync" for operation, _ in disk.calls) == syncs


def test_one_directory_fails_the_other_serves(tmp_path: Path) -> None:
    disk = FaultyFileSystem(str(tmp_path))
    config = LogConfig()
    manager = LogManager([str(tmp_path / "a"), str(tmp_path / "b")], disk, ManualTime(NOW_MS), config)
    manager.startup()
    logs = [manager.get_or_create_log(TopicPartition("t", n), None, config) for n in range(2)]
    assert {os.path.dirname(log.directory) for log in logs} == {str(tmp_path / "a"), str(tmp_path / "b")}
    for log in logs:
        append(log, batch(1))
    disk.fail_operation["sync"] = errno.EIO
    with pytest.raises(KafkaStorageError):
        logs[0].flush()
    disk.fail_operation.clear()
    append(logs[1], batch(1))
    with pytest.raises(KafkaStorageError, match="offline"):
        manager.get_or_create_log(TopicPartition("t", 9), None, config)
    made = manager.get_or_create_log(TopicPartition("new", 0), None, config, is_new=True)
    assert os.path.dirname(made.directory) == os.path.dirname(logs[1].directory)
    assert [description.failure is None for description in manager.describe()] in ([False, True], [True, False])
    manager.shutdown()


# ---- F11: clocks


def test_retention_does_not_follow_a_jump_of_the_clock(tmp_path: Path) -> None:
    time = ManualTime(NOW_MS)
    config = LogConfig({"retention.ms": 3_600_000, "segment.bytes": 2000})
    manager = LogManager([str(tmp_path)], OsFileSystem(), time, config)
    manager.startup()
    log = manager.get_or_create_log(TopicPartition("t", 0), None, config)
    for _ in range(60):
        append(log, batch(1))
    assert manager.run_retention(time.milliseconds()) == 0
    time.jump_wall(86_400_000)
    assert manager.run_retention(time.milliseconds()) == 0
    time.advance(60_000)
    assert manager.run_retention(time.milliseconds()) == 0
    time.jump_wall(-86_400_000)
    assert manager.run_retention(time.milliseconds()) == 0
    time.jump_wall(86_400_000)
    assert manager.run_retention(time.milliseconds()) == 0
    time.advance(BELIEVED_AFTER_MS)
    assert manager.run_retention(time.milliseconds()) > 0, "a jump that stands is the right time"


def test_extreme_timestamps_keep_the_time_index_monotone(tmp_path: Path) -> None:
    bench = LogBench(str(tmp_path), **SMALL, message_timestamp_after_max_ms=2**63 - 1)
    log = bench.open()
    for number in range(60):
        timestamp = (NOW_MS, 2**63 - 1, 0, NOW_MS + number)[number % 4]
        append(log, batch(1, timestamp=timestamp))
    log.close()
    assert check_directory(OsFileSystem(), bench.directory) == []
    assert bench.open(clean=True).log_end_offset == 60


# ---- F22: reads beside changes


def test_reads_beside_appends_rolls_and_retention_are_whole(tmp_path: Path) -> None:
    """Readers in threads, no lock: every slice holds whole, valid batches of the offsets asked for."""
    bench, log = filled(tmp_path, 50)
    stop = threading.Event()
    problems: list[str] = []

    def read_through() -> None:
        offset = log.log_start_offset
        while offset < log.high_watermark and not stop.is_set():
            found = RecordBatch(read_bytes(log, offset, 700, FetchIsolation.HIGH_WATERMARK))
            if not found.is_valid() or not found.base_offset <= offset <= found.last_offset:
                problems.append(f"asked {offset}, got {found}")
            offset = found.last_offset + 1

    def read_on() -> None:
        while not stop.is_set():
            with contextlib.suppress(OffsetOutOfRangeError, KafkaStorageError):
                read_through()

    readers = [threading.Thread(target=read_on, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(800):
        append(log, batch(1, value=value_of(log.log_end_offset)))
        if number % 50 == 49:
            log.maybe_increment_log_start_offset(log.log_end_offset - 30)
            log.delete_old_segments(NOW_MS)
            bench.environment.deletions.run()
    stop.set()
    for reader in readers:
        reader.join()
    assert problems == []


def test_descriptor_is_not_reused_under_a_reader(tmp_path: Path) -> None:
    bench, log = filled(tmp_path)
    held = log.read(0, 100, isolation=FetchIsolation.LOG_END, min_one_message=True).records
    assert not isinstance(held, bytes)
    number = held.file.fileno()
    log.truncate_fully_and_start_at(0)
    bench.environment.deletions.run(everything=True)
    others = [os.open(bench.root, os.O_RDONLY) for _ in range(50)]
    assert number not in others
    held.release()
    again = os.open(bench.root, os.O_RDONLY)
    assert again == number, "the last release closed it"
    for descriptor in [*others, again]:
        os.close(descriptor)


def test_truncation_under_a_promised_slice_gives_fewer_bytes_never_others(tmp_path: Path) -> None:
    _, log = filled(tmp_path, 10)
    held = log.read(0, 10_000, isolation=FetchIsolation.LOG_END, min_one_message=True).records
    assert not isinstance(held, bytes)
    log.truncate_to(5)
    data = os.pread(held.file.fileno(), held.size, held.position)
    assert len(data) < held.size
    held.release()
