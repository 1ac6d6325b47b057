"""A cleaner's round is killed, loses power or gets an error at every write, rename, sync and unlink; then the log is
opened (faults F2, F8 and F9 of docs/internals/faults.md).

What must hold: each group of segments is wholly old or wholly new. So every latest record of a key is there at its
offset with its bytes and nothing is twice; the directory passes the check; no `.cleaned` or `.swap` file stays.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from tests.support.cleaning import NOW_MS, LogWriter, compacted, file_names, open_log, records_of, whole
from tests.support.faulty_file_system import DiskImage, FaultyFileSystem, Killed
from tidelog.cleaner.engine.engine import ReferenceEngine
from tidelog.cleaner.log_to_clean import LogToClean
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions, RoundHooks
from tidelog.log.check import check_directory
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.record.record_batch import Record

CONFIG = compacted(segment_bytes=400, index_interval_bytes=50)
CLEANER = Cleaner(ReferenceEngine(), CleanerOptions(map_bytes=4096, io_buffer_bytes=1024))
GROUPS = 3


def fill(directory: Path) -> UnifiedLog:
    """Write three groups of dirty segments with aborted transactions, tombstones and codecs."""
    log = open_log(directory, CONFIG)
    writer = LogWriter(log)
    for number in range(8):
        writer.append(
            [(b"k%d" % (number % 4), b"value %d" % number), (b"only %d" % number, b"v")], compression=number % 2
        )
        writer.transactional(number, [(b"k1", b"aborted")])
        writer.end(number, commit=number % 2 == 0)
    writer.append([(b"k2", None)])
    writer.roll()
    log.flush()
    log.close()
    return log


def cleanable(log: UnifiedLog) -> LogToClean:
    log.update_high_watermark(log.log_end_offset)
    return whole(log)


def latest(records: list[Record]) -> dict[bytes | None, Record]:
    return {record.key: record for record in records}


class Expected:
    """Records before and after an undisturbed round, by key, and the records of each disk that passed the check."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.with_name("filled")
        self.directory.mkdir()
        fill(self.directory)
        self.filled = FaultyFileSystem(str(self.directory)).page_cache()
        shutil.copytree(self.directory, directory)
        log = open_log(directory, CONFIG)
        aborted = [(txn.first_offset, txn.last_offset, txn.producer_id) for txn in
                   log.collect_aborted_transactions(0, log.log_end_offset)]  # fmt: skip
        self.before = records_of(log)
        CLEANER.clean(cleanable(log), NOW_MS)
        self.after = records_of(log)
        self.aborted_offsets = {offset for first, last, _ in aborted for offset in range(first, last)}
        log.close()
        self.checked: dict[DiskImage, list[Record]] = {}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """The records before and after one round without faults."""
    return Expected(tmp_path_factory.mktemp("faults") / "expected")


def check_left(image: DiskImage, directory: Path, expected: Expected) -> list[Record]:
    """Check what a fault left in ``directory``, once for each image, as many faults leave the same. Returns the
    records."""
    if image not in expected.checked:
        expected.checked[image] = check_reopened(directory, expected)
    return expected.checked[image]


def check_reopened(directory: Path, expected: Expected) -> list[Record]:
    """Open the log as after a crash, with every check of the module's docstring. Returns the records."""
    log = open_log(directory, CONFIG)
    records = records_of(log)
    offsets = [record.offset for record in records]
    before = {record.offset: record for record in expected.before}
    assert offsets == sorted(set(offsets))
    assert all(record == before[record.offset] for record in records)
    assert {record.offset for record in expected.after} <= set(offsets)
    assert not [name for name in file_names(log) if name.endswith((".cleaned", ".swap"))]
    log.close()
    assert check_directory(OsFileSystem(), log.directory) == []
    return records


def count_calls(directory: Path, expected: Expected) -> int:
    """Count the mutating calls of an undisturbed round."""
    shutil.copytree(expected.directory, directory)
    faulty = FaultyFileSystem(str(directory))
    log = open_log(directory, CONFIG, faulty)
    begun = len(faulty.calls)
    CLEANER.clean(cleanable(log), NOW_MS)
    return len(faulty.calls) - begun


@pytest.mark.parametrize(("torn", "keep_names"), [(False, True), (True, True), (False, False)])
def test_kill_at_every_call_leaves_old_or_new_segments(
    tmp_path: Path, expected: Expected, torn: bool, keep_names: bool
) -> None:
    shutil.copytree(expected.directory, tmp_path / "killed")
    faulty = FaultyFileSystem(str(tmp_path / "killed"))
    log = open_log(tmp_path / "killed", CONFIG, faulty)
    images = faulty.at_each_call(
        lambda: CLEANER.clean(cleanable(log), NOW_MS), lambda: faulty.image(torn=torn, keep_names=keep_names)
    )
    assert len(images) > 10 * GROUPS
    seen = set()
    for number, image in enumerate(dict.fromkeys(images)):  # many kills leave the same
        image.write(tmp_path / str(number))
        seen.add(len(check_left(image, tmp_path / str(number), expected)))

    assert min(seen) <= len(expected.after) + 2 < len(expected.before) == max(seen)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_failure_at_every_call_leaves_a_log_that_opens(tmp_path: Path, expected: Expected, code: int) -> None:
    probe = tmp_path / "probe"
    for number in range(count_calls(probe, expected)):
        directory = tmp_path / str(number)
        expected.filled.write(directory)
        faulty = FaultyFileSystem(str(directory), seed=number)
        log = open_log(directory, CONFIG, faulty)
        faulty.fail_at = {len(faulty.calls) + number: code}
        failed = False
        try:
            CLEANER.clean(cleanable(log), NOW_MS)
        except KafkaStorageError:
            failed = True
        assert failed or number  # the first call is never one that may fail unnoticed
        log.abandon()
        log.release_files()
        log.environment.deletions.run(everything=True)
        check_left(faulty.page_cache(), directory, expected)


def test_full_disk_leaves_the_log_serving_and_the_next_round_cleans(tmp_path: Path, expected: Expected) -> None:
    fill(tmp_path)
    faulty = FaultyFileSystem(str(tmp_path))
    log = open_log(tmp_path, CONFIG, faulty)
    names = file_names(log)
    faulty.fail_operation = {"write": errno.ENOSPC}

    with pytest.raises(KafkaStorageError, match="No space left"):
        CLEANER.clean(cleanable(log), NOW_MS)

    assert file_names(log) == names
    assert records_of(log) == expected.before
    faulty.fail_operation = {}
    CLEANER.clean(cleanable(log), NOW_MS)
    assert records_of(log) == expected.after


def test_round_after_a_kill_finishes_the_work(tmp_path: Path, expected: Expected) -> None:
    fill(tmp_path)
    faulty = FaultyFileSystem(str(tmp_path))
    log = open_log(tmp_path, CONFIG, faulty)
    progress: list[int] = []

    def stop_after_first_group(offset: int) -> None:
        progress.append(offset)
        raise Killed

    with pytest.raises(Killed):
        CLEANER.clean(cleanable(log), NOW_MS, RoundHooks(progress=stop_after_first_group))
    faulty.crash(keep_names=True)
    log = open_log(tmp_path, CONFIG)
    log.update_high_watermark(log.log_end_offset)
    read = CLEANER.clean(whole(log, progress[0]), NOW_MS).bytes_indexed

    assert records_of(log) == expected.after
    assert 0 < read < sum(segment.size for segment in log.segments) * 3
