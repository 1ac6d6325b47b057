"""A power loss after a round: a record that superseded a synced one is on the disk, or else the synced one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cleaning import NOW_MS, LogWriter, compacted, open_log, records_of, whole
from tests.support.faulty_file_system import FaultyFileSystem, Killed
from tidelog.cleaner.engine.engine import ReferenceEngine
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions
from tidelog.log.unified_log import UnifiedLog

KEYS = [b"a", b"b", b"c"]
CLEANER = Cleaner(ReferenceEngine(), CleanerOptions(map_bytes=64 * 1024, io_buffer_bytes=1024))


def filled(directory: Path, disk: FaultyFileSystem, segment_bytes: int) -> UnifiedLog:
    """Make a log whose first values are synced; the values that supersede them are not."""
    log = open_log(directory, compacted(segment_bytes=segment_bytes), disk)
    writer = LogWriter(log)
    for key in KEYS:
        writer.append([(key, b"synced")])
    writer.roll()
    log.flush()
    for key in KEYS:
        writer.append([(key, b"later")])
    writer.roll()
    return log


@pytest.mark.parametrize("segment_bytes", [150, 300, 10_000])
def test_each_key_has_a_value_after_a_power_loss_at_any_moment_of_a_round(tmp_path: Path, segment_bytes: int) -> None:
    number, is_killed = 0, True
    while is_killed:
        directory = tmp_path / str(number)
        directory.mkdir()
        disk = FaultyFileSystem(str(directory), number)
        log = filled(directory, disk, segment_bytes)
        disk.kill_at = len(disk.calls) + number
        is_killed = False
        try:
            CLEANER.clean(whole(log), NOW_MS)
        except Killed:
            is_killed = True
        disk.crash(keep_names=True)
        recovered = open_log(directory, compacted(segment_bytes=segment_bytes), disk)
        assert {record.key for record in records_of(recovered)} == set(KEYS), number
        recovered.close()
        number += 1
    assert number > 10


@pytest.mark.parametrize("commit", [True, False])
def test_a_power_loss_takes_no_marker_because_of_which_records_were_removed(tmp_path: Path, commit: bool) -> None:
    """The marker lies in the active segment, which a round does not clean."""
    disk = FaultyFileSystem(str(tmp_path))
    log = open_log(tmp_path, compacted(), disk)
    writer = LogWriter(log)
    writer.append([(b"a", b"synced")])
    writer.transactional(5, [(b"a", b"later"), (b"b", b"later")])
    writer.append([(b"c", b"")])
    writer.roll()
    log.flush()
    writer.end(5, commit=commit)
    CLEANER.clean(whole(log), NOW_MS)
    disk.crash(keep_names=True)
    recovered = open_log(tmp_path, compacted(), disk)
    assert [record.value for record in records_of(recovered)] == ([b"later"] * 2 if commit else [b"synced"]) + [b""]
    assert len(records_of(recovered, control=True)) == 1
