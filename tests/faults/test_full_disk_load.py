"""A log is loaded and read on a full disk, whatever its recovery has to write (fault F8 of docs/internals/faults.md).

The disk here refuses writes, so no right to mount one is needed; ``test_full_disk.py`` fills a real one.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.faulty_file_system import FaultyFileSystem
from tests.support.logs import LogBench, append, batch, marker, producer_batch, values
from tidelog.log.check import check_directory
from tidelog.log.files.checkpoints import EpochEntry
from tidelog.log.index.transaction_index import AbortedTxn
from tidelog.log.system.file_system import LogStorageError, OsFileSystem
from tidelog.log.unified_log import UnifiedLog
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.errors import KafkaStorageError

SMALL: dict[str, Any] = {"segment_bytes": 900, "index_interval_bytes": 150}
SEEDS = range(40)


class Picture(NamedTuple):
    """The contents of a log as a reader sees them."""

    values: dict[int, bytes | None]
    aborted: list[AbortedTxn]
    epochs: tuple[EpochEntry, ...]
    sequences: dict[int, int]


def picture_of(log: UnifiedLog) -> Picture:
    aborted = [entry for segment in log.segments for entry in segment.transaction_index]
    sequences = {number: entry.last_sequence for number, entry in log.producer_state.producers.items()}
    return Picture(values(log), aborted, log.leader_epochs.entries, sequences)


def fill(log: UnifiedLog, chance: random.Random) -> None:
    """Append plain records, idempotent ones, and transactions that commit and abort, in several leader epochs."""
    epoch, sequences = 0, {7: 0, 8: 0}
    for _ in range(chance.randrange(20, 60)):
        epoch += chance.random() < 0.1
        producer_id = chance.choice((7, 8))
        if chance.random() < 0.5:
            append(log, batch(chance.randrange(1, 4), value=os.urandom(20)), epoch=epoch)
            continue
        for _ in range(chance.randrange(1, 3)):
            records = producer_batch(sequences[producer_id], producer_id=producer_id, transactional=True)
            append(log, records, epoch=epoch)
            sequences[producer_id] += 1
        append(log, marker(producer_id, commit=chance.random() < 0.5), AppendOrigin.COORDINATOR, epoch)


def damage(directory: Path, chance: random.Random) -> None:
    """Remove files that recovery rebuilds."""
    for path in sorted(directory.iterdir()):
        if path.suffix in (".index", ".timeindex", ".snapshot") and chance.random() < 0.3:
            if chance.random() < 0.5:
                path.unlink()
            else:
                os.truncate(path, chance.randrange(path.stat().st_size + 1))


def crashed_log(root: Path, chance: random.Random) -> tuple[Path, int]:
    """Make a directory as a kill leaves it, damaged. Returns it, and the recovery point it is to be loaded with."""
    origin = root / "origin"
    origin.mkdir()
    bench = LogBench(str(origin), **SMALL)
    log = bench.open()
    fill(log, chance)
    log.leader_epochs.flush()
    recovery_point = chance.choice((0, chance.randrange(log.log_end_offset + 1)))
    damage(Path(bench.directory), chance)
    return origin, recovery_point


def expected_of(origin: Path, root: Path, recovery_point: int) -> Picture:
    """Return the contents after a load on a disk with free space."""
    shutil.copytree(origin, root / "healthy")
    return picture_of(LogBench(str(root / "healthy"), **SMALL).open(recovery_point=recovery_point))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crashed_log_is_read_on_a_full_disk_and_completed_once_there_is_free_space(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    origin, recovery_point = crashed_log(tmp_path, chance)
    expected = expected_of(origin, tmp_path, recovery_point)
    disk = FaultyFileSystem(str(origin), seed)
    bench = LogBench(str(origin), disk, **SMALL)
    disk.fail_operation = {"write": errno.ENOSPC, "create": errno.ENOSPC}

    log = bench.open(recovery_point=recovery_point)

    assert picture_of(log) == expected
    with pytest.raises(KafkaStorageError):
        append(log, batch(1))
    assert bench.state.failure is None
    disk.fail_operation.clear()
    log.save_indices()
    append(log, batch(1, value=b"after"))
    log.flush()
    log.close()
    assert check_directory(OsFileSystem(), bench.directory) == []
    again = picture_of(bench.open(clean=True))
    assert again.values == {**expected.values, log.log_end_offset - 1: b"after"}
    assert again.aborted == expected.aborted


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kill_on_the_full_disk_costs_nothing(tmp_path: Path, seed: int) -> None:
    """State that was only in memory is rebuilt by the next start."""
    chance = random.Random(seed)
    origin, recovery_point = crashed_log(tmp_path, chance)
    expected = expected_of(origin, tmp_path, recovery_point)
    disk = FaultyFileSystem(str(origin), seed)
    bench = LogBench(str(origin), disk, **SMALL)
    disk.fail_operation = {"write": errno.ENOSPC, "create": errno.ENOSPC}
    bench.open(recovery_point=recovery_point)
    if chance.random() < 0.5:
        disk.fail_operation.clear()  # else the next start finds the disk full as well

    assert picture_of(bench.open(recovery_point=recovery_point)) == expected


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
@pytest.mark.parametrize("seed", SEEDS[:10])
def test_calls_that_fail_at_random_refuse_the_log_for_now_at_most(tmp_path: Path, seed: int, code: int) -> None:
    chance = random.Random(seed)
    origin, recovery_point = crashed_log(tmp_path, chance)
    expected = expected_of(origin, tmp_path, recovery_point)
    disk = FaultyFileSystem(str(origin), seed)
    bench = LogBench(str(origin), disk, **SMALL)
    disk.fail_at = {number: code for number in range(200) if chance.random() < 0.2}
    try:
        assert picture_of(bench.open(recovery_point=recovery_point)) == expected
    except LogStorageError as error:
        assert error.is_recoverable or error.operation == "sync"  # noqa: PT017 - either way is right
    disk.fail_at.clear()

    assert picture_of(bench.open(recovery_point=recovery_point)) == expected


def test_an_aborted_transaction_is_known_although_its_index_entry_cannot_be_written(tmp_path: Path) -> None:
    """Its marker is in the log and cannot be taken back: the entry waits in memory, the directory stays online."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = FaultyFileSystem(str(root))
    bench = LogBench(str(root), disk)
    log = bench.open()
    append(log, producer_batch(0, transactional=True))
    disk.fail_operation["create"] = errno.ENOSPC  # the record file has room, a new file has not
    append(log, marker(7, commit=False), AppendOrigin.COORDINATOR)

    assert bench.state.failure is None
    assert len(log.collect_aborted_transactions(0, 2)) == 1
    with pytest.raises(KafkaStorageError):
        log.close()
    disk.fail_operation.clear()
    assert len(bench.open().collect_aborted_transactions(0, 2)) == 1
