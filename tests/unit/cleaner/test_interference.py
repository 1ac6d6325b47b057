"""Retention, truncation, deletion and changed settings in the middle of a round, at every point where the round checks
for them.

Whatever comes when: the round ends well or is aborted, what was removed stays removed, and each latest record of what
is left is there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cleaning import NOW_MS, LogWriter, compacted, file_names, open_log, records_of, whole
from tidelog.cleaner.engine.engine import ReferenceEngine
from tidelog.cleaner.errors import CleaningAbortedError
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions, RoundHooks
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError

CONFIG = {"segment_bytes": 500}
CLEANER = Cleaner(ReferenceEngine(), CleanerOptions(map_bytes=64 * 1024, io_buffer_bytes=1024))
BATCHES = 20
"""They fill five segments. Rounds and what each costs grow with them."""
CUT = 21


def fill(directory: Path) -> UnifiedLog:
    directory.mkdir()
    log = open_log(directory, compacted(**CONFIG))
    writer = LogWriter(log)
    for number in range(BATCHES):
        writer.append([(b"k%d" % (number % 5), b"value %d" % number), (b"only %d" % number, b"v" * 20)])
    writer.roll()
    return log


def retain(log: UnifiedLog) -> None:
    """Delete everything below ``CUT``, as DeleteRecords and retention do."""
    log.maybe_increment_log_start_offset(CUT)
    log.delete_old_segments(NOW_MS)


def retain_and_unlink(log: UnifiedLog) -> None:
    """Delete the same without ``file.delete.delay.ms``: the files are closed under the round."""
    retain(log)
    log.environment.deletions.run(everything=True)


def truncate(log: UnifiedLog) -> None:
    log.truncate_to(CUT)


def truncate_and_unlink(log: UnifiedLog) -> None:
    truncate(log)
    log.environment.deletions.run(everything=True)


def delete(log: UnifiedLog) -> None:
    """Delete in a thread of its own: while the round works on the files, the deletion waits."""
    deletion = threading.Thread(target=log.abandon, daemon=True)
    deletion.start()
    deletion.join(0.01)


def configure(log: UnifiedLog) -> None:
    log.update_config(compacted(segment_bytes=5000, delete_retention_ms=0, cleanup_policy="compact,delete"))


def run_with_interference(
    directory: Path, number: int, action: Callable[[UnifiedLog], None]
) -> tuple[UnifiedLog, bool, bool]:
    """Run a round with ``action`` at its ``number``-th check. Returns the log, whether there were so many checks, and
    whether the round was aborted."""
    log = fill(directory)
    looks = 0

    def check(_: int) -> None:
        nonlocal looks
        looks += 1
        if looks == number:
            action(log)

    aborted = False
    try:
        CLEANER.clean(whole(log), NOW_MS, RoundHooks(check=check))
    except CleaningAbortedError:  # any other error would put the partition into quarantine
        aborted = True
    return log, looks >= number, aborted


def compare(
    log: UnifiedLog, action: Callable[[UnifiedLog], None], number: int, latest: dict[bytes | None, int]
) -> None:
    """Check that removed records stay removed and that each latest record of the rest is there."""
    offsets = {record.offset for record in records_of(log)}
    low, high = log.log_start_offset, log.log_end_offset
    assert all(offset < high for offset in offsets), number
    if action in (truncate, truncate_and_unlink):
        assert high <= CUT
        assert not log.environment.damage.batches
    else:
        assert {offset for offset in latest.values() if offset >= low} <= offsets, number
    if action is configure:
        assert offsets == set(latest.values())
    assert not [name for name in file_names(log) if name.endswith((".cleaned", ".swap"))], number


@pytest.mark.parametrize("action", [retain, retain_and_unlink, truncate, truncate_and_unlink, delete, configure])
def test_round_survives_whatever_comes_between(tmp_path: Path, action: Callable[[UnifiedLog], None]) -> None:
    quiet, _, _ = run_with_interference(tmp_path / "quiet", 10**9, action)
    latest = {record.key: record.offset for record in records_of(quiet)}
    number, aborted_rounds = 1, 0
    while True:
        log, came, aborted = run_with_interference(tmp_path / str(number), number, action)
        if not came:
            break
        if action is not delete:  # of that nothing is read any more, and its files go with the directory
            compare(log, action, number, latest)
        if action is configure:
            assert not aborted
        aborted_rounds += aborted
        with contextlib.suppress(KafkaStorageError):
            log.close()
        number += 1
    assert number > 10
    assert bool(aborted_rounds) == (action is not configure)
