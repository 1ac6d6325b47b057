"""Recovery by compiled code and by plain Python: equal files, state and errors, on valid, torn and damaged segments."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.extensions import uncompiled
from tests.support.logs import NOW_MS, PARTITION, LogBench, append, batch, marker, producer_batch
from tidelog.log.config import LogConfig
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.recovery import scan, segment_recovery, walk
from tidelog.log.recovery.progress import RecoveryProgress
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import Record

SCANS = {"as built": scan.SegmentScan, "uncompiled": uncompiled(scan).SegmentScan}


@pytest.fixture(params=SCANS)
def scan_type(request: pytest.FixtureRequest) -> type[scan.SegmentScan]:
    """The scan as built, and in plain Python."""
    return SCANS[request.param]  # type: ignore[no-any-return]


CONFIG: dict[str, Any] = {
    "segment_bytes": 6000,
    "index_interval_bytes": 300,
    "message_timestamp_after_max_ms": 2**63 - 1,
}


class Writer:
    """A writer that appends as producers, transactions and leaders may, in a random order."""

    def __init__(self, log: UnifiedLog, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = log
        self.sequences: dict[tuple[int, int], int] = {}
        self.epochs = dict.fromkeys(range(4), 0)
        self.leader_epoch = 0

    def step(self) -> None:
        choice = self.random.random()
        producer = self.random.randrange(4)
        if choice < 0.3:
            timestamp = self.random.choice([0, NOW_MS + self.random.randrange(10_000), 2**60])
            append(self.log, batch(self.random.randrange(1, 9), timestamp=timestamp), epoch=self.leader_epoch)
        elif choice < 0.85:
            self.produce(producer)
        elif choice < 0.93:
            commit = self.random.random() < 0.5
            control = marker(producer, self.epochs[producer], commit=commit)
            append(self.log, control, AppendOrigin.COORDINATOR, self.leader_epoch)
        elif choice < 0.97:
            self.leader_epoch += 1
        else:
            self.epochs[producer] += 1

    def produce(self, producer: int) -> None:
        epoch, count = self.epochs[producer], self.random.randrange(1, 4)
        sequence = self.sequences.get((producer, epoch), 0)
        self.sequences[producer, epoch] = sequence + count
        records = producer_batch(
            sequence, count, producer_id=producer, epoch=epoch, transactional=producer % 2 == 0,
            timestamp=NOW_MS + self.random.randrange(10_000),
        )  # fmt: skip
        append(self.log, records, epoch=self.leader_epoch)


@dataclass
class Outcome:
    """Log, files and state after a recovery."""

    files: dict[str, bytes]
    state: object


def written(directory: Path, seed: int, steps: int) -> LogBench:
    bench = LogBench(str(directory), **CONFIG)
    log = bench.open()
    writer = Writer(log, seed)
    for _ in range(steps):
        writer.step()
    log.close()
    return bench


def recover(
    source: LogBench,
    target: Path,
    scan_type: type[scan.SegmentScan] | None,
    recovery_point: int = 0,
    **config: object,
) -> Outcome:
    """Recover a copy with a scan, or with plain Python alone."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source.root, target)
    bench = LogBench(str(target), **{**CONFIG, **config})
    for name in os.listdir(bench.directory):
        if not name.endswith(".log") and not (recovery_point and name.endswith(("index", "snapshot"))):
            os.unlink(os.path.join(bench.directory, name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_recovery, "IS_COMPILED", scan_type is not None)
        patch.setattr(walk, "SegmentScan", scan_type)
        try:
            log = bench.open(recovery_point=recovery_point)
        except KafkaError as error:
            return Outcome({}, (type(error), str(error).replace(str(target), "")))
    producers = [
        (entry.producer_id, entry.producer_epoch, entry.coordinator_epoch, entry.last_timestamp,
         entry.current_txn_first_offset, list(entry.batches))
        for entry in log.producer_state.producers.values()
    ]  # fmt: skip
    state = (log.log_end_offset, log.last_stable_offset, log.leader_epochs.entries, producers)
    log.close()
    files = {name: Path(bench.directory, name).read_bytes() for name in sorted(os.listdir(bench.directory))}
    return Outcome(files, state)


@pytest.mark.parametrize("seed", range(12))
def test_both_walks_leave_equal_files_and_state(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, scan_type: type[scan.SegmentScan]
) -> None:
    monkeypatch.setattr("tidelog.log.recovery.walk.CHUNK_BYTES", random.Random(seed).choice([100, 700, 5000, 1 << 20]))
    bench = written(tmp_path / "source", seed, 250)
    plain = recover(bench, tmp_path / "plain", None)
    assert recover(bench, tmp_path / "scan", scan_type) == plain
    assert len(plain.files) > 8


@pytest.mark.parametrize(
    "lowered", [{"segment_index_bytes": 40}, {"segment_index_bytes": 60}, {"index_interval_bytes": 0}], ids=str
)
@pytest.mark.parametrize("seed", range(3))
def test_both_walks_leave_out_entries_that_full_indices_cannot_take(
    tmp_path: Path, seed: int, lowered: dict[str, int], scan_type: type[scan.SegmentScan]
) -> None:
    """A configuration was lowered after the appends. Full indices only make look-ups longer."""
    bench = written(tmp_path / "source", seed, 150)
    config = {"segment_index_bytes": 200, **lowered}
    plain = recover(bench, tmp_path / "plain", None, **config)
    assert recover(bench, tmp_path / "scan", scan_type, **config) == plain
    whole = recover(bench, tmp_path / "whole", scan_type)
    assert plain.state == whole.state
    assert max(len(content) for name, content in plain.files.items() if name.endswith(".index")) == (
        config["segment_index_bytes"] // 8 * 8
    )


@pytest.mark.parametrize("seed", range(40))
def test_both_walks_agree_on_damage(tmp_path: Path, seed: int, scan_type: type[scan.SegmentScan]) -> None:
    """Flipped, torn and zeroed bytes anywhere, before and after the recovery point."""
    chance = random.Random(seed)
    bench = written(tmp_path / "source", seed % 3, 120)
    names = sorted(name for name in os.listdir(bench.directory) if name.endswith(".log"))
    path = os.path.join(bench.directory, chance.choice(names))
    data = bytearray(Path(path).read_bytes())
    at = chance.randrange(len(data))
    kind = seed % 4
    if kind == 0:
        data[at] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at : at + 100] = bytes(len(data[at : at + 100]))
    else:
        data += data[: chance.randrange(len(data))]
    Path(path).write_bytes(data)
    point = chance.choice([0, int(names[-1][:20]), int(names[1][:20]) + 1])
    plain = recover(bench, tmp_path / "plain", None, point)
    assert recover(bench, tmp_path / "scan", scan_type, point) == plain


def test_old_formats_are_left_to_the_plain_walk(tmp_path: Path, scan_type: type[scan.SegmentScan]) -> None:
    bench = LogBench(str(tmp_path / "source"), **CONFIG, message_format_version="0.10.0")
    log = bench.open()
    for number in range(100):
        old = build_message_set([Record(0, NOW_MS + number, b"k", b"v" * 50)], MessageSetOptions(1))
        append(log, bytearray(old))
    log.update_config(LogConfig({name.replace("_", "."): value for name, value in CONFIG.items()}))
    for _ in range(50):
        append(log, batch(2))
    log.close()
    plain = recover(bench, tmp_path / "plain", None)
    assert recover(bench, tmp_path / "scan", scan_type) == plain
    assert isinstance(plain.state, tuple)
    assert plain.state[0] == 200


def test_a_batch_larger_than_the_buffer_is_recovered_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scan_type: type[scan.SegmentScan]
) -> None:
    monkeypatch.setattr("tidelog.log.recovery.walk.CHUNK_BYTES", 100)
    bench = LogBench(str(tmp_path / "source"), segment_bytes=1 << 20)
    log = bench.open()
    for size in (10, 3000, 10, 70_000, 10):
        append(log, batch(1, value=b"x" * size))
    log.close()
    plain = recover(bench, tmp_path / "plain", None)
    assert recover(bench, tmp_path / "scan", scan_type) == plain
    monkeypatch.setattr("tidelog.log.recovery.walk.MAX_CHUNK_BYTES", 1000)
    assert recover(bench, tmp_path / "scan", scan_type) == plain


def test_tables_that_are_full_are_emptied_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_scan = uncompiled(scan)
    monkeypatch.setattr(plain_scan, "_ROWS", 3)
    monkeypatch.setattr(plain_scan, "_ENTRIES", 2)
    bench = written(tmp_path / "source", 5, 120)
    plain = recover(bench, tmp_path / "plain", None)
    assert recover(bench, tmp_path / "scan", plain_scan.SegmentScan) == plain


def test_more_rows_than_a_table_holds_are_recovered_alike(tmp_path: Path) -> None:
    """One call of the compiled scan leaves 8,192 rows at most."""
    bench = LogBench(str(tmp_path / "source"), segment_bytes=1 << 24, index_interval_bytes=100)
    log = bench.open()
    for number in range(9000):
        append(log, producer_batch(number // 30, 1, producer_id=number % 30))
    log.close()
    plain = recover(bench, tmp_path / "plain", None)
    assert recover(bench, tmp_path / "scan", scan.SegmentScan) == plain
    assert isinstance(plain.state, tuple)
    assert plain.state[0] == 9000


def test_progress_says_how_far_it_is() -> None:
    progress = RecoveryProgress(2_000_000_000, 3)
    progress.add(500_000_000)
    progress.log_done()
    assert progress.line(0.5) == "recovered 25 % in 0.5 s: 500 of 2,000 MB (1,000 MB/s), 1 of 3 logs"
    assert RecoveryProgress(0, 4).line(0) == "recovered 0 % in 0.0 s: 0 of 0 MB (0 MB/s), 0 of 4 logs"
    assert progress.bytes_done == 500_000_000


def test_the_log_line_counts_every_byte_over_directories_and_threads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = LogConfig({"segment.bytes": 3000})
    directories = [str(tmp_path / "a"), str(tmp_path / "b")]
    manager = LogManager(directories, OsFileSystem(), ManualTime(NOW_MS), config)
    manager.startup()
    size = 0
    for number in range(6):
        log = manager.get_or_create_log(TopicPartition("t", number), None, config)
        for _ in range(50):
            append(log, batch(1))
        size += log.size_bytes
    caplog.set_level("INFO", logger="tidelog.log.directories.startup")
    again = LogManager(directories, OsFileSystem(), ManualTime(NOW_MS), config, recovery_threads=lambda: 2)
    again.startup()
    done = [record.getMessage() for record in caplog.records if "recovered 100 %" in record.getMessage()]
    assert any(message.endswith("6 of 6 logs") for message in done)
    assert f"{size / 1e6:,.0f} MB" in done[-1]
    assert all(again.get_log(TopicPartition("t", n)).log_end_offset == 50 for n in range(6))  # type: ignore[union-attr]
    assert PARTITION.partition == 0
