"""A log that ends before its log start offset: synced records are missing, or there were none."""

from __future__ import annotations

import os
import struct
from collections import Counter
from pathlib import Path

import pytest

from tests.support.faulty_file_system import FaultyFileSystem
from tests.support.logs import NOW_MS, LogBench, append, batch, producer_batch, values
from tidelog.log.config import LogConfig
from tidelog.log.files.checkpoints import LEADER_EPOCH_FILE
from tidelog.log.index.transaction_index import AbortedTxn
from tidelog.log.recovery.segment_recovery import LogLoadError
from tidelog.log.unified_log import UnifiedLog

END, START = 5, 8


@pytest.fixture
def bench(tmp_path: Path) -> LogBench:
    """A log that ends at END; its checkpoint says that it begins at START."""
    bench = LogBench(str(tmp_path))
    log = bench.open()
    append(log, batch(END))
    log.flush()
    log.close()
    return bench


def open_at_start(bench: LogBench, *, recovery_point: int, clean: bool = False) -> UnifiedLog:
    return bench.open(clean=clean, recovery_point=recovery_point, log_start_offset=START)


@pytest.mark.parametrize("recovery_point", [0, END - 1, END, END + 1, START])
def test_a_log_without_synced_records_above_its_start_begins_there_again(bench: LogBench, recovery_point: int) -> None:
    log = open_at_start(bench, recovery_point=recovery_point)
    assert (log.log_start_offset, log.log_end_offset) == (START, START)
    assert [segment.base_offset for segment in log.segments] == [START]
    assert log.recovery_point <= START
    assert append(log, batch()).first_offset == START
    log.close()
    again = bench.open(recovery_point=recovery_point, log_start_offset=START)
    assert list(values(again, START)) == [START]


@pytest.mark.parametrize("recovery_point", [START + 1, START + 100])
def test_a_log_whose_synced_records_are_missing_is_refused(bench: LogBench, recovery_point: int) -> None:
    before = sorted(path.name for path in Path(bench.directory).iterdir())
    with pytest.raises(LogLoadError, match=f"ends at {END}, before its log start offset {START}"):
        open_at_start(bench, recovery_point=recovery_point)
    assert {*before} <= {path.name for path in Path(bench.directory).iterdir()}, "nothing of it is removed"


@pytest.mark.parametrize("recovery_point", [0, END, START, START + 1])
def test_a_log_that_ends_before_its_start_is_refused_after_a_clean_stop(bench: LogBench, recovery_point: int) -> None:
    """Everything is synced after a clean stop, whatever the recovery point is."""
    with pytest.raises(LogLoadError, match=f"ends at {END}, before its log start offset {START}"):
        open_at_start(bench, recovery_point=recovery_point, clean=True)


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
def test_a_log_that_ends_at_its_start_is_whole(bench: LogBench, clean: bool) -> None:
    log = bench.open(clean=clean, recovery_point=END, log_start_offset=END)
    assert (log.log_start_offset, log.log_end_offset) == (END, END)
    assert [segment.base_offset for segment in log.segments] == [0], "its records go when retention says so"


@pytest.mark.parametrize("missing_from", [0, END])
def test_a_gap_of_synced_records_above_the_start_is_refused(tmp_path: Path, missing_from: int) -> None:
    """The segment from ``missing_from`` on is missing; synced records follow it."""
    bench = LogBench(str(tmp_path))
    log = bench.open()
    for _ in range(3):
        append(log, batch(END))
        log.roll()
    log.flush()
    log.close()
    for path in Path(bench.directory).glob(f"{missing_from:020d}.log"):
        path.unlink()
    if missing_from == 0:
        assert bench.open(clean=True, recovery_point=3 * END).log_start_offset == END, "it begins later"
    else:
        with pytest.raises(LogLoadError, match="missing"):
            bench.open(clean=True, recovery_point=3 * END)
        with pytest.raises(LogLoadError, match="missing"):
            bench.open(recovery_point=3 * END)


INTERVAL = 300


def restarted(tmp_path: Path) -> tuple[LogBench, str]:
    """Return a stopped log whose offset index is as Apache Kafka leaves it after a restart in between, and its path.

    Kafka counts the bytes to the next entry from a restart on: of two parts without an entry each, both together are
    longer than ``index.interval.bytes``.
    """
    bench = LogBench(str(tmp_path), index_interval_bytes=str(INTERVAL))
    log = bench.open()
    append(log, batch(value=b"v" * INTERVAL))
    log.flush()
    log.close()
    bench.config = LogConfig({"index.interval.bytes": "100000"})
    log = bench.open(clean=True, recovery_point=1)
    for _ in range(3):
        append(log, batch(value=b"v" * (INTERVAL // 2)))
    log.flush()
    path = log.segments[0].offset_index.path
    log.close()
    bench.config = LogConfig({"index.interval.bytes": str(INTERVAL)})
    return bench, path


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
def test_entries_that_a_restart_of_kafka_leaves_out_are_no_damage(
    tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench, path = restarted(tmp_path)
    before = Path(path).read_bytes()
    log = bench.open(clean=clean, recovery_point=4)
    assert caplog.messages == []
    assert bench.environment.damage.indices == 0
    assert list(values(log)) == [0, 1, 2, 3]
    log.close()
    assert len(Path(path).read_bytes()) > len(before), "the entries are there now"


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
def test_an_index_too_full_for_lowered_limits_is_rebuilt_up_to_them(tmp_path: Path, clean: bool) -> None:
    bench = LogBench(str(tmp_path), index_interval_bytes=100)
    log = bench.open()
    for _ in range(30):
        append(log, batch(value=b"v" * 200))
    indices = log.segments[0].offset_index.path, log.segments[0].time_index.path
    log.close()
    bench.config = LogConfig({"index.interval.bytes": 100, "segment.index.bytes": 80})
    for path in indices:
        os.unlink(path)
    for _ in range(2):
        log = bench.open(clean=clean, recovery_point=0)
        assert len(values(log)) == log.log_end_offset >= 30
        append(log, batch())
        assert len(log.segments) == 2, "a full index ends the segment"
        assert log.segments[0].offset_index.entries == 10
        log.close()


@pytest.mark.parametrize("index_bytes", [20, 60, 80, 81, 96, 240])
@pytest.mark.parametrize("step", [0, 1], ids=["equal times", "rising times"])
def test_an_index_that_is_full_after_a_rebuild_is_not_rebuilt_at_each_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index_bytes: int, step: int
) -> None:
    """With rising times the time index is full first, before the offset index."""
    bench = LogBench(str(tmp_path), index_interval_bytes=100)
    log = bench.open()
    for number in range(60):
        append(log, batch(value=b"v" * 200, timestamp=NOW_MS + number * step))
    log.roll()
    paths = log.segments[0].offset_index.path, log.segments[0].time_index.path
    log.close()
    bench.config = LogConfig({"index.interval.bytes": 100, "segment.index.bytes": index_bytes})
    for path in paths:
        os.unlink(path)
    bench.open(clean=True).close()
    rebuilt = [Path(path).read_bytes() for path in paths]
    monkeypatch.setattr("tidelog.log.recovery.loader.rebuild_indices", None)
    bench.open(clean=True).close()
    assert [Path(path).read_bytes() for path in paths] == rebuilt


def test_entries_that_contradict_the_records_are_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench, path = restarted(tmp_path)
    Path(path).write_bytes(bytes([0, 0, 0, 2, 0, 0, 0, 7]))
    log = bench.open(clean=True, recovery_point=4)
    assert "rebuilding indices of segment 0" in caplog.text
    assert bench.environment.damage.indices == 1
    assert list(values(log)) == [0, 1, 2, 3]


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
@pytest.mark.parametrize(("last", "first", "is_sound"), [(2, 1, True), (3, 1, True), (3, 3, True), (1, 2, False)])
def test_an_entry_of_an_append_of_several_batches_is_no_damage(
    tmp_path: Path, clean: bool, last: int, first: int, is_sound: bool
) -> None:
    """A follower of Apache Kafka appends the batches of a fetch at once: last offset of all, position of the first."""
    bench = LogBench(str(tmp_path), index_interval_bytes=100000)
    log = bench.open()
    for _ in range(4):
        append(log, batch())
    log.roll()
    log.flush()
    positions = [header.position for header in log.segments[0].headers()]
    path = log.segments[0].offset_index.path
    log.close()
    Path(path).write_bytes(struct.pack(">ii", last, positions[first]))
    log = bench.open(clean=clean, recovery_point=4)
    assert bench.environment.damage.indices == (0 if is_sound else 1)
    assert log.segments[0].offset_index.entries == (1 if is_sound else 0)
    assert list(values(log)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("at", "content"), [(16, b"\7"), (8, b"\0\0\0\5"), (57, b"\x7f")], ids=["magic", "size", "count"]
)
@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
def test_a_swap_of_a_segment_with_a_damaged_batch_is_finished(
    tmp_path: Path, at: int, content: bytes, clean: bool
) -> None:
    """The cleaner keeps a batch that it cannot read, and so may a new segment have one when the broker is killed."""
    bench = LogBench(str(tmp_path))
    log = bench.open()
    for _ in range(3):
        for _ in range(3):
            append(log, batch(value=b"v" * 100))
        log.roll()
    log.close()
    old = [Path(segment.records.path) for segment in log.segments][:2]
    swapped = bytearray(old[0].read_bytes() + old[1].read_bytes())
    size = len(swapped) // 6
    swapped[size + at : size + at + len(content)] = content
    for suffix in (".log", ".index", ".timeindex"):
        old[0].with_suffix(f"{suffix}.swap").write_bytes(bytes(swapped) if suffix == ".log" else b"")
    log = bench.open(clean=clean, recovery_point=9)
    assert [segment.base_offset for segment in log.segments] == [0, 6, 9]
    assert log.log_end_offset == 9
    assert Path(log.segments[0].records.path).read_bytes() == swapped
    assert list(values(log, 6)) == [6, 7, 8]


@pytest.mark.parametrize("at", [0, 1], ids=["first batch", "second batch"])
@pytest.mark.parametrize("content", [None, b""], ids=["no epochs", "empty epochs"])
def test_epochs_are_read_from_the_records_beside_a_damaged_batch(
    tmp_path: Path, at: int, content: bytes | None
) -> None:
    bench = LogBench(str(tmp_path))
    log = bench.open()
    for epoch in (3, 3, 5, 7):
        log.append_as_leader(memoryview(batch()), leader_epoch=epoch)
    log.roll()
    log.flush()
    log.close()
    path = Path(log.segments[0].records.path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 4 * at + 16] = 7
    path.write_bytes(damaged)
    epochs = Path(log.directory) / LEADER_EPOCH_FILE
    if content is None:
        epochs.unlink()
    else:
        epochs.write_bytes(content)
    log = bench.open(clean=True, recovery_point=4)
    assert [(entry.epoch, entry.start_offset) for entry in log.leader_epochs.entries] == [(3, 1 - at), (5, 2), (7, 3)]


def test_a_damaged_batch_shows_no_compaction_but_hides_none_after_it(tmp_path: Path) -> None:
    """A gap between segments is refused unless something shows that the cleaner made it."""
    bench = LogBench(str(tmp_path))
    log = bench.open()
    for _ in range(4):
        for _ in range(3):
            append(log, batch())
        log.roll()
    log.flush()
    log.close()
    paths = [Path(segment.records.path) for segment in log.segments]
    whole = paths[0].read_bytes()
    size = len(whole) // 3
    for suffix in (".log", ".index", ".timeindex"):
        paths[2].with_suffix(suffix).unlink()
    paths[0].write_bytes(whole[: size + 16] + b"\7" + whole[size + 17 :])
    with pytest.raises(LogLoadError, match="nothing shows that the log was ever compacted"):
        bench.open(clean=True, recovery_point=12)
    second = paths[1].read_bytes()
    paths[1].write_bytes(second[:size] + second[2 * size :])
    assert bench.open(clean=True, recovery_point=12).log_end_offset == 12


def test_a_log_that_was_closed_well_is_opened_by_few_calls(tmp_path: Path) -> None:
    """A member opens all of its logs at a start. The listing shows that the offset index of a short log is empty."""
    disk = FaultyFileSystem(str(tmp_path))
    bench = LogBench(str(tmp_path), disk)
    log = bench.open()
    append(log, batch(3))
    log.flush()
    log.close()
    disk.calls.clear()
    disk.counts_reads = True
    log = bench.open(clean=True, recovery_point=3)
    assert Counter(operation for operation, _ in disk.calls) == {"list": 1, "open": 2, "read": 7}
    assert log.segments.active.offset_index.path not in {os.path.join(log.directory, name) for _, name in disk.calls}
    assert list(values(log)) == [0, 1, 2]


def test_a_snapshot_of_producers_from_within_a_segment_is_removed_at_an_opening(tmp_path: Path) -> None:
    bench = LogBench(str(tmp_path))
    log = bench.open()
    append(log, producer_batch(0))
    append(log, producer_batch(1))
    log.flush()
    log.close()
    whole, left = (Path(bench.directory) / f"{offset:020d}.snapshot" for offset in (2, 1))
    left.write_bytes(whole.read_bytes())
    log = bench.open(clean=True, recovery_point=2)
    assert [whole.exists(), left.exists()] == [True, False]
    assert log.producer_state.producers[7].last_sequence == 1


def test_a_snapshot_that_a_rebuilt_transaction_index_found_torn_is_not_looked_for_again(tmp_path: Path) -> None:
    """The loader lists the directory once, and must not read files of that list which it has removed itself."""
    bench = LogBench(str(tmp_path))
    log = bench.open()
    append(log, producer_batch(0))
    log.roll()
    append(log, producer_batch(1))
    log.flush()
    log.close()
    first, last = (Path(bench.directory) / f"{offset:020d}.snapshot" for offset in (1, 2))
    last.unlink()
    first.write_bytes(first.read_bytes()[:-1])
    (Path(bench.directory) / f"{1:020d}.txnindex").write_bytes(bytes([0, 9]) + bytes(32))
    log = bench.open(clean=True, recovery_point=2)
    assert not first.exists()
    assert log.producer_state.producers[7].last_sequence == 1
    assert list(values(log)) == [0, 1]


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_an_index_that_the_listing_lacks_is_made_again_after_a_clean_stop(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = LogBench(str(tmp_path), index_interval_bytes="10")
    log = bench.open()
    for _ in range(5):
        append(log, batch())
    log.flush()
    log.close()
    path = Path(bench.directory) / f"{0:020d}.{suffix}"
    before = path.read_bytes()
    path.unlink()
    bench.open(clean=True, recovery_point=5).close()
    assert before
    assert path.read_bytes() == before
    assert "missing index" in caplog.text


def test_records_that_follow_a_torn_end_are_not_counted(tmp_path: Path) -> None:
    """The log ends with its last whole batch, whether indices have entries for it or not."""
    for interval in ("10", "4096"):
        bench = LogBench(str(tmp_path / interval), index_interval_bytes=interval)
        log = bench.open()
        for _ in range(3):
            append(log, batch())
        log.flush()
        log.close()
        path = Path(bench.directory) / f"{0:020d}.log"
        path.write_bytes(path.read_bytes()[:-1])
        assert bench.open(recovery_point=2).log_end_offset == 2


def test_an_aborted_transaction_after_an_opening_makes_the_index_that_was_not_there(tmp_path: Path) -> None:
    bench = LogBench(str(tmp_path))
    bench.open().close()
    log = bench.open(clean=True)
    index = log.segments.active.transaction_index
    assert not Path(index.path).exists()
    index.append(AbortedTxn(7, 0, 1, 2))
    log.close()
    again = bench.open(clean=True)
    assert list(again.segments.active.transaction_index) == [AbortedTxn(7, 0, 1, 2)]


@pytest.mark.parametrize("number", [1, 5, -2])
def test_a_wrong_delta_hides_no_later_batches_at_a_clean_start(tmp_path: Path, number: int) -> None:
    """The batch's last offset is too high, as its checksum shows: those after it do not go back."""
    bench = LogBench(str(tmp_path), index_interval_bytes=200)
    log = bench.open()
    for _ in range(10):
        append(log, batch(1))
    path, damaged = log.segments.active.records.path, list(log.segments.active.headers())[number]
    log.close()
    for name in Path(path).parent.glob("*index"):
        name.unlink()
    with open(path, "r+b") as file:
        file.seek(damaged.position + 24)
        file.write(b"\x01")
    log = bench.open(clean=True, recovery_point=10)
    assert log.log_end_offset == 10
    index = log.segments.active.offset_index
    offsets = [index.entry(slot).offset for slot in range(index.entries)]
    assert offsets == sorted(set(offsets) - {damaged.last_offset})
    assert len(offsets) >= 2
    assert offsets[-1] < 10


def test_a_second_power_loss_does_not_bring_back_what_a_recovery_cut(tmp_path: Path) -> None:
    """All records that are left were synced before, so no later flush concerns their file."""
    disk = FaultyFileSystem(str(tmp_path))
    bench = LogBench(str(tmp_path), disk)
    log = bench.open()
    append(log, batch(2))
    log.flush()
    path, size = log.segments.active.records.path, log.segments.active.size
    disk.kill()
    with open(path, "ab") as file:
        file.write(bytes(70))
    disk.adopt()
    log = bench.open(recovery_point=2)
    log.roll()
    append(log, batch(1))
    log.flush()
    disk.crash(keep_names=True)
    assert os.path.getsize(path) == size
    assert list(values(bench.open(recovery_point=3))) == [0, 1, 2]
