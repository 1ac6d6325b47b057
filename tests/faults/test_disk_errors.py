"""One call of the file system fails, each in turn: EIO or ENOSPC at each call of a job, also reads and listings (fault
F9 of docs/internals/faults.md).

A job ends, well or with a KafkaStorageError. The directory is offline after a failed sync, and else only where a probe
fails. What was acknowledged is read at its offset by who is still served, and after the next start; a start on a disk
that works again refuses no log. ``TIDELOG_ALL_DISK_ERRORS`` tries every call, not some.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from tests.faults.test_deletion_interleavings import (
    JOBS,
    OLD_ID,
    OLD_RECORDS,
    PARTITION,
    Bench,
    Job,
    cleaning,
    delete_records,
    deletions,
    leave_open,
    make_indices,
    reading,
    restart_and_open,
    retention,
    truncation,
)
from tests.support.faulty_file_system import FaultyFileSystem
from tests.support.logs import append, batch, values
from tidelog.cleaner.errors import CleaningAbortedError
from tidelog.log.check import check_directory
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError

FIRST, END = 5, OLD_RECORDS + 1
NEVER = 1 << 30
SAMPLE = 6
ALL = bool(os.environ.get("TIDELOG_ALL_DISK_ERRORS"))
SEED = os.environ.get("TIDELOG_DISK_SEED", "1")
CODES = [errno.EIO, errno.ENOSPC]


class Outcome(NamedTuple):
    """The failed call of a job, and whether the job reported the failure."""

    operation: str
    name: str
    failed: bool


def recovery(bench: Bench) -> None:
    """Start as after a kill."""
    bench.manager, bench._log = bench.new_manager(), None
    bench.manager.get_log(PARTITION)


def reading_from_the_start(bench: Bench) -> None:
    reading(bench)


ALL_JOBS: list[tuple[Callable[[Bench], object], Job]] = [
    *((prepare, job) for prepare, job in JOBS if prepare.__name__ != "leave_unmade"),
    (leave_open, recovery), (make_indices, recovery), (restart_and_open, reading_from_the_start),
]  # fmt: skip


def new_bench(directory: Path) -> tuple[Bench, FaultyFileSystem]:
    directory.mkdir()
    disk = FaultyFileSystem(str(directory))
    return Bench(directory, disk), disk


def run_with_failure(bench: Bench, disk: FaultyFileSystem, job: Job, at: int, code: int) -> Outcome | None:
    """Run the job with a failure at its call ``at``; return None if it makes fewer calls."""
    bench.hold()
    disk.counts_reads = True
    begin = len(disk.calls)
    disk.fail_at = {begin + at: code}
    failed = False
    try:
        job(bench)
    except (KafkaStorageError, CleaningAbortedError):
        failed = True
    finally:
        disk.counts_reads, disk.fail_at = False, {}
    return Outcome(*disk.calls[begin + at], failed) if len(disk.calls) > begin + at else None


def calls_of(directory: Path, prepare: Callable[[Bench], object], job: Job) -> int:
    """Count the calls of an undisturbed job."""
    bench, disk = new_bench(directory)
    prepare(bench)
    before = len(disk.calls)
    assert run_with_failure(bench, disk, job, NEVER, 0) is None
    return len(disk.calls) - before


def chosen(calls: range, seed: str) -> Sequence[int]:
    """Choose the calls that are made to fail: some of them, drawn by ``TIDELOG_DISK_SEED``, or all of them."""
    if ALL:
        return calls
    return sorted(random.Random(f"{SEED} {seed}").sample(calls, min(SAMPLE, len(calls))))


def may_be_missing(job: Job) -> set[int]:
    """Return the offsets that the job may take away, or not."""
    if job in (retention, deletions):
        return set(range(END))
    if job is truncation:
        return set(range(OLD_RECORDS // 2, END))
    if job is delete_records:
        return set(range(OLD_RECORDS // 2))
    if job is cleaning:
        return set(range(OLD_RECORDS - 1))  # one key, and the last record of another
    return set()


def check_records(log: UnifiedLog, job: Job, later: dict[int, bytes]) -> None:
    """Check that all records that were acknowledged and not taken away are there, each at its offset."""
    found = values(log, log.log_start_offset)
    original: dict[int, bytes | None] = {offset: b"v%d" % offset for offset in range(OLD_RECORDS)}
    original[OLD_RECORDS] = b"value"
    after = found.items() - original.items()
    assert dict(after).keys() <= later.keys() | may_be_missing(job), "no other record"
    missing = set(range(FIRST, END)) - found.keys()
    assert missing <= may_be_missing(job), f"lost: {sorted(missing)}"
    assert later.items() <= found.items(), found


def append_later(bench: Bench) -> dict[int, bytes]:
    """Append a record if the log is still served; it is acknowledged, or refused with one of Kafka's errors."""
    try:
        log = bench.manager.get_log(PARTITION)
        assert log is not None
        return {append(log, batch(1, value=b"later")).first_offset: b"later"}
    except KafkaStorageError:
        return {}


def check_served(bench: Bench, job: Job, outcome: Outcome) -> dict[int, bytes]:
    """Check the process after the error: offline only after a failed sync, otherwise it serves the acknowledged
    records."""
    failure = bench.manager.directories[0].state.failure
    assert (failure is None) or outcome.operation == "sync", failure
    later = append_later(bench)
    if failure is not None:
        assert later == {}
        return later
    try:
        log = bench.manager.get_log(PARTITION)
        assert log is not None
        check_records(log, job, later)
    except KafkaStorageError:
        assert later == {}, "this log alone is refused, or out of service"
    return later


def check_next_start(bench: Bench, job: Job, later: dict[int, bytes]) -> None:
    """Check the next process, on a disk that works."""
    again = bench.new_manager(OsFileSystem())
    assert not again.refused
    log = again.get_log(PARTITION)
    assert log is not None
    assert log.topic_id == OLD_ID
    check_records(log, job, later)
    end = log.log_end_offset
    assert append(log, batch(1, value=b"next")).first_offset == end
    again.shutdown()
    assert check_directory(OsFileSystem(), os.path.join(bench.directory, PARTITION.directory_name)) == []


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize(("prepare", "job"), ALL_JOBS, ids=lambda step: cast(Job, step).__name__)
def test_an_error_at_every_call_of_a_job(
    tmp_path: Path, prepare: Callable[[Bench], object], job: Job, code: int
) -> None:
    count = calls_of(tmp_path / "undisturbed", prepare, job)
    assert count > 0
    for at in chosen(range(count), f"{job.__name__} {code}"):
        bench, disk = new_bench(tmp_path / str(at))
        prepare(bench)
        outcome = run_with_failure(bench, disk, job, at, code)
        if outcome is None:
            continue  # a directory whose names have no order
        try:
            later = check_served(bench, job, outcome)
            check_next_start(bench, job, later)
        except AssertionError as error:
            raise AssertionError(f"call {at}: {outcome}") from error
