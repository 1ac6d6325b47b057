"""A topic that was compacted once and has ``cleanup.policy=delete`` now: logs with gaps of the cleaner are served, a
log with a removed segment is still refused (fault F7 of docs/internals/faults.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cleaning import NOW_MS, PARTITION, LogWriter, compacted, open_log, records_of, whole
from tidelog.cleaner.engine.engine import ReferenceEngine
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions
from tidelog.log.config import LogConfig
from tidelog.log.files.checkpoints import CLEANER_OFFSET_FILE, write_offset_checkpoint
from tidelog.log.recovery.segment_recovery import LogLoadError
from tidelog.log.system.file_system import OsFileSystem

DELETE = LogConfig({"message.timestamp.type": "CreateTime", "cleanup.policy": "delete", "segment.bytes": "2000"})
GAP_ENDS_AT = 12


def compact_once(directory: Path, *, first_keys: tuple[bytes, ...]) -> dict[int, bytes | None]:
    """Write two closed segments with offsets 10 and 11 missing between them; returns what is left by offset.

    The batches before the gap hold ``first_keys``, one each; a key that comes twice leaves a hole among them.
    """
    log = open_log(directory, compacted(segment_bytes=2000, file_delete_delay_ms=0))
    writer = LogWriter(log)
    for key in first_keys:
        writer.append([(key, b"-" * 60)])
    for _ in range(2):
        writer.append([(b"again", b"-" * 60)])
    writer.roll()
    assert log.log_end_offset == GAP_ENDS_AT
    writer.append([(b"again", b"-" * 1500)])
    writer.roll()
    writer.append([(b"tail", b"")])
    Cleaner(ReferenceEngine(), CleanerOptions(map_bytes=64 * 1024, io_buffer_bytes=1024)).clean(whole(log), NOW_MS)
    log.environment.deletions.run(everything=True)
    bases = [segment.base_offset for segment in log.segments]
    assert bases[:2] == [0, GAP_ENDS_AT]
    assert log.segments.first.read_next_offset() == GAP_ENDS_AT - 2
    kept = {record.offset: record.key for record in records_of(log)}
    log.flush()
    log.close()
    return kept


UNIQUE = tuple(b"key %d" % number for number in range(10))
REPEATED = (*UNIQUE[:9], UNIQUE[0])


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
def test_gaps_below_the_cleaners_checkpoint_are_served(tmp_path: Path, clean: bool) -> None:
    kept = compact_once(tmp_path, first_keys=UNIQUE)
    write_offset_checkpoint(OsFileSystem(), str(tmp_path / CLEANER_OFFSET_FILE), {PARTITION: GAP_ENDS_AT + 1})
    log = open_log(tmp_path, DELETE, clean=clean)
    assert {record.offset: record.key for record in records_of(log)} == kept


def test_gaps_are_served_where_the_batches_before_them_show_that_a_cleaner_was_there(tmp_path: Path) -> None:
    kept = compact_once(tmp_path, first_keys=REPEATED)
    log = open_log(tmp_path, DELETE, clean=True)
    assert {record.offset: record.key for record in records_of(log)} == kept


@pytest.mark.parametrize("cleaned_below", [None, GAP_ENDS_AT - 1])
def test_a_gap_that_nothing_explains_is_refused(tmp_path: Path, cleaned_below: int | None) -> None:
    compact_once(tmp_path, first_keys=UNIQUE)
    if cleaned_below is not None:
        write_offset_checkpoint(OsFileSystem(), str(tmp_path / CLEANER_OFFSET_FILE), {PARTITION: cleaned_below})
    with pytest.raises(LogLoadError, match="offsets 10 to 11 are missing before"):
        open_log(tmp_path, DELETE, clean=True)


def test_a_damaged_checkpoint_explains_nothing(tmp_path: Path) -> None:
    compact_once(tmp_path, first_keys=UNIQUE)
    (tmp_path / CLEANER_OFFSET_FILE).write_text("0\nmany\n")
    with pytest.raises(LogLoadError, match="offsets 10 to 11 are missing before"):
        open_log(tmp_path, DELETE, clean=True)


def segments_lost_below(directory: Path, end: int, kept: int) -> None:
    """Remove the segments below an offset but for one; an index stays of each."""
    for path in (directory / PARTITION.directory_name).iterdir():
        base = int(path.name[:20]) if path.name[:20].isdigit() else end
        if base < end and base != kept and path.suffix != ".timeindex":
            path.unlink()


def five_segments(directory: Path) -> list[int]:
    """Write five closed segments and an empty one, and remove the first and the third. Returns their base offsets."""
    log = open_log(directory, DELETE)
    writer = LogWriter(log)
    for _ in range(5):
        writer.append([(b"key", b"-" * 60)] * 3)
        writer.roll()
    log.flush()
    bases = [segment.base_offset for segment in log.segments]
    log.close()
    segments_lost_below(directory, bases[3], kept=bases[1])
    return bases


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
def test_segments_missing_below_the_log_start_offset_are_no_gap(tmp_path: Path, clean: bool) -> None:
    """A power loss kept some renames of retention and lost others."""
    bases = five_segments(tmp_path)
    log = open_log(tmp_path, DELETE, clean=clean, log_start_offset=bases[3])
    assert [record.offset for record in records_of(log) if record.offset >= bases[3]] == list(range(bases[3], bases[5]))
    assert (log.log_start_offset, log.log_end_offset) == (bases[3], bases[5])


def test_a_segment_missing_at_the_log_start_offset_is_a_gap(tmp_path: Path) -> None:
    bases = five_segments(tmp_path)
    with pytest.raises(LogLoadError):
        open_log(tmp_path, DELETE, clean=True, log_start_offset=bases[3] - 1)
