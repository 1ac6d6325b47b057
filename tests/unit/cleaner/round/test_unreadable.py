"""Rounds over batches that cannot be read: they stay, and so does everything by which readers judge their records.

A consumer may be able to read what the cleaner cannot (a batch over the decompression limit), or skip damage, so the
records count as served.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cleaning import NOW_MS, LogWriter, compacted, open_log, records_of, whole
from tidelog.cleaner.engine.engine import ENGINE, Engine, ReferenceEngine
from tidelog.cleaner.errors import CleaningAbortedError
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions, RoundHooks
from tidelog.log.index.transaction_index import AbortedTxn
from tidelog.log.segment.batch_scan import BatchHeader
from tidelog.log.segment.segment import LogSegment
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError
from tidelog.protocol.record.record_batch import RecordBatch

SMALL = CleanerOptions(map_bytes=64 * 1024, io_buffer_bytes=1024)
LIMITED = CleanerOptions(map_bytes=64 * 1024, io_buffer_bytes=1024, max_decompressed_bytes=40)
"""No batch that is compressed below can be read with this limit."""
RETENTION_MS = 1000


@pytest.fixture(params=[ReferenceEngine(), ENGINE], ids=["reference", "as built"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    return request.param  # type: ignore[no-any-return]


def overwrite(segment: LogSegment, position: int, data: bytes) -> None:
    with open(segment.records.path, "r+b") as file:
        file.seek(position)
        file.write(data)


def break_length(segment: LogSegment, header: BatchHeader) -> None:
    """Make the next batch impossible, so that the segment cannot be divided into batches."""
    overwrite(segment, header.position + header.size + 8, b"\0\0\0\1")


def break_checksum(segment: LogSegment, header: BatchHeader) -> None:
    overwrite(segment, header.position + header.size - 1, b"\xee")


def break_nothing(segment: LogSegment, header: BatchHeader) -> None:
    """Leave the batch to the limit of decompressed bytes."""


DAMAGES = [(break_length, SMALL), (break_checksum, SMALL), (break_nothing, LIMITED)]
Damage = Callable[[LogSegment, BatchHeader], None]


def write(log: UnifiedLog, *, transactional: bool) -> BatchHeader:
    """Write two closed segments: a batch that will be damaged in the first, and what concerns its records in the
    second. Return the batch's header."""
    writer = LogWriter(log)
    writer.append([(b"before", b"1")])
    pairs = [(b"deleted", b"v" * 100), (b"other", b"w")]
    if transactional:
        writer.transactional(5, pairs, compression=1)
    else:
        writer.append(pairs, compression=1)
    writer.append([(b"before", b"2")])
    writer.roll()
    if transactional:
        writer.end(5, commit=False)
    writer.append([(b"deleted", None)])
    writer.append([(b"before", b"3")])
    writer.roll()
    writer.append([(b"tail", b"")])
    return list(log.segments[0].headers())[1]


def clean_until_horizons_pass(log: UnifiedLog, engine: Engine, options: CleanerOptions) -> None:
    for number in range(4):
        Cleaner(engine, options).clean(whole(log), NOW_MS + number * 2 * RETENTION_MS)


def aborted_in(log: UnifiedLog) -> list[AbortedTxn]:
    return log.collect_aborted_transactions(0, log.log_end_offset)


@pytest.mark.parametrize(("damage", "options"), DAMAGES)
def test_an_aborted_transaction_with_unreadable_records_stays_aborted(
    tmp_path: Path, engine: Engine, damage: Damage, options: CleanerOptions
) -> None:
    log = open_log(tmp_path, compacted(delete_retention_ms=RETENTION_MS))
    header = write(log, transactional=True)
    damage(log.segments[0], header)
    before = aborted_in(log)
    assert before
    clean_until_horizons_pass(log, engine, options)
    assert aborted_in(log) == before
    assert sum(batch.is_control for batch in readable_batches(log, header)) == 1


@pytest.mark.parametrize(("damage", "options"), DAMAGES)
def test_a_tombstone_stays_as_long_as_an_older_value_may_be_unreadable(
    tmp_path: Path, engine: Engine, damage: Damage, options: CleanerOptions
) -> None:
    log = open_log(tmp_path, compacted(delete_retention_ms=RETENTION_MS))
    header = write(log, transactional=False)
    damage(log.segments[0], header)
    clean_until_horizons_pass(log, engine, options)
    records = [record for batch in readable_batches(log, header) for record in batch.records()]
    assert [record.key for record in records if record.value is None] == [b"deleted"]


def readable_batches(log: UnifiedLog, damaged: BatchHeader) -> list[RecordBatch]:
    """Read the batches up to an impossible header of each segment, without ``damaged``."""
    found = []
    for segment in log.segments:
        with contextlib.suppress(CorruptMessageError):
            for header, data in segment.batches():
                if header.base_offset != damaged.base_offset:
                    found.append(RecordBatch(bytes(data)))
    return found


def test_a_tombstone_without_damage_before_it_goes(tmp_path: Path, engine: Engine) -> None:
    log = open_log(tmp_path, compacted(delete_retention_ms=RETENTION_MS))
    write(log, transactional=False)
    clean_until_horizons_pass(log, engine, SMALL)
    assert b"deleted" not in {record.key for record in records_of(log)}


def test_tombstones_may_be_kept_for_ever(tmp_path: Path, engine: Engine) -> None:
    log = open_log(tmp_path, compacted(delete_retention_ms=2**63 - 1))
    write(log, transactional=False)
    timestamps = {record.offset: record.timestamp for record in records_of(log)}
    clean_until_horizons_pass(log, engine, SMALL)
    assert (b"deleted", None) in [(record.key, record.value) for record in records_of(log)]
    assert all(timestamps[record.offset] == record.timestamp for record in records_of(log))


@pytest.mark.parametrize("at", [0, 3, 7, 25])
def test_a_wrong_offset_of_an_unreadable_batch_is_in_no_index(tmp_path: Path, engine: Engine, at: int) -> None:
    """Neither a base offset (bytes 0 to 7) nor a delta: a look-up of later offsets would pass over records."""
    log = open_log(tmp_path, compacted(index_interval_bytes=0))
    writer = LogWriter(log)
    for number in range(8):
        writer.append([(b"k%d" % number, b"v")])
    writer.append([(b"k0", b"v")])
    writer.roll()
    segment = log.segments[0]
    damaged = list(segment.headers())[4]
    overwrite(segment, damaged.position + at, b"\x44")
    stats = Cleaner(engine, SMALL).clean(whole(log), NOW_MS)
    assert stats.unreadable_batches == 1
    assert stats.groups_rewritten == 1
    index = log.segments[0].offset_index
    entries = [index.entry(slot) for slot in range(index.entries)]
    assert [entry.offset for entry in entries] == [2, 3, 5, 6, 7, 8]
    positions = {header.position: header.last_offset for header in log.segments[0].headers() if header.last_offset < 9}
    assert all(positions[entry.position] == entry.offset for entry in entries)


def fill_unevenly(directory: Path) -> UnifiedLog:
    """Fill a log with batches of one and of two records, some of which are superseded."""
    directory.mkdir()
    log = open_log(directory, compacted(segment_bytes=600))
    writer = LogWriter(log)
    for count in range(20):
        superseded = [] if count % 5 == 1 else [(b"k", b"v%d" % count)]
        writer.append([*superseded, (b"only %d" % count, b"w" * 20)])
    writer.roll()
    return log


def clean_with_damage_at_check(log: UnifiedLog, number: int, engine: Engine) -> tuple[BatchHeader, bool, bool]:
    """Run a round in which a batch is damaged at the round's ``number``-th check.

    Returns the batch, whether there were so many checks, and whether the round ended early.
    """
    segment = log.segments[1]
    damaged = next(header for header in segment.headers() if header.record_count == 1)
    looks = 0

    def check(_: int) -> None:
        nonlocal looks
        looks += 1
        if looks == number:
            break_checksum(segment, damaged)

    try:
        Cleaner(engine, SMALL).clean(whole(log), NOW_MS, RoundHooks(check=check))
    except (KafkaStorageError, CleaningAbortedError):
        return damaged, looks >= number, True
    return damaged, looks >= number, False


def test_a_batch_that_reads_otherwise_the_second_time_costs_no_other_record(tmp_path: Path, engine: Engine) -> None:
    """A byte changes at any moment of the round: then the superseded bits may be those of other records."""
    number, early, came = 0, 0, True
    while came:
        number += 1
        log = fill_unevenly(tmp_path / str(number))
        latest = {record.key: record.offset for record in records_of(log)}
        damaged, came, ended_early = clean_with_damage_at_check(log, number, engine)
        early += ended_early
        kept = {record.offset for batch in readable_batches(log, damaged) for record in batch.records()}
        assert set(latest.values()) - kept <= {damaged.base_offset}, number
        log.close()
    assert number > 5
    assert early
