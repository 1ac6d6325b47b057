"""Transaction indices that lose or change entries after a clean stop: no aborted record is fetched, or kept by the
cleaner."""

from __future__ import annotations

import os
import random
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.cleaning import whole
from tests.support.pipelines import NOW_MS, TOPIC_ID
from tests.support.slices import content_of
from tests.support.transactions import DAMAGES, Damage, committed_by_markers, indices, write_transactions
from tidelog.cleaner.engine.engine import ReferenceEngine
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions
from tidelog.log.config import LogConfig
from tidelog.log.fetch import FetchIsolation
from tidelog.log.files.index_digests import INDEX_DIGESTS_FILE, digest_of
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.index.transaction_index import ENTRY
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.record.batches import iter_batches

PARTITION = TopicPartition("t", 0)
CONFIG = LogConfig({"segment.bytes": 4096, "index.interval.bytes": 200, "cleanup.policy": "compact"})
SEEDS = range(4)
Rows = list[tuple[int, bytes | None]]


def start(path: Path) -> LogManager:
    manager = LogManager([str(path)], OsFileSystem(), ManualTime(NOW_MS + 86_400_000), CONFIG)
    manager.startup()
    return manager


def open_log(manager: LogManager) -> UnifiedLog:
    log = manager.get_or_create_log(PARTITION, TOPIC_ID, CONFIG)
    log.update_high_watermark(log.log_end_offset)
    return log


def stopped_log(path: Path, chance: random.Random) -> Path:
    """Write a data directory and stop cleanly; returns the directory of its partition."""
    manager = start(path)
    write_transactions(open_log(manager), chance)
    manager.shutdown()
    return path / PARTITION.directory_name


def clean(log: UnifiedLog) -> Rows:
    """Run a cleaner's round over everything below the active segment; return the committed records after it."""
    options = CleanerOptions(map_bytes=64 * 1024, io_buffer_bytes=1024)
    Cleaner(ReferenceEngine(), options).clean(whole(log), NOW_MS)
    return committed_by_fetch(log, 1 << 20)


def committed_by_fetch(log: UnifiedLog, max_bytes: int) -> Rows:
    """Return the records of a consumer with read_committed: it drops by the list of aborted transactions of each
    fetch."""
    rows: Rows = []
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        info = log.read(offset, max_bytes, isolation=FetchIsolation.TXN_COMMITTED, min_one_message=True)
        if isinstance(info.records, bytes):
            break
        waiting = defaultdict(list)
        for aborted in sorted(info.aborted_transactions or (), key=lambda one: one.first_offset):
            waiting[aborted.producer_id].append(aborted)
        for batch in iter_batches(content_of(info.records)):
            spans = waiting[batch.producer_id]
            is_aborted = any(one.first_offset <= batch.base_offset <= one.last_offset for one in spans)
            if not batch.is_control and not (batch.is_transactional and is_aborted):
                rows += [(record.offset, record.value) for record in batch.records() if record.offset >= offset]
            last = batch.last_offset
        offset = last + 1
    return rows


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_fetches_and_cleaning_go_by_the_markers(tmp_path: Path, damage: Damage) -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        directory = stopped_log(tmp_path / str(seed), chance)
        expected = committed_by_markers(directory)
        shutil.copytree(tmp_path / str(seed), tmp_path / f"{seed}-whole")
        undamaged = start(tmp_path / f"{seed}-whole")
        cleaned = clean(open_log(undamaged))
        undamaged.shutdown()
        assert len(cleaned) < len(expected)
        damage(directory, chance)
        manager = start(tmp_path / str(seed))
        log = open_log(manager)
        if seed % 2:  # the others are cleaned before anything is read
            assert committed_by_fetch(log, chance.choice([1, 500, 1 << 20])) == expected, seed
        assert clean(log) == cleaned, seed
        manager.shutdown()
        assert committed_by_markers(directory) == cleaned, seed


def unproven(log: UnifiedLog) -> set[str]:
    """Return the transaction indices that have to be compared with the markers before they are used."""
    paths = [segment.transaction_index for segment in log.segments]
    return {os.path.basename(index.path) for index in paths if not index.is_proven}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_only_indices_that_changed_are_compared(tmp_path: Path, damage: Damage) -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        directory = stopped_log(tmp_path / str(seed), chance)
        manager = start(tmp_path / str(seed))
        assert not unproven(open_log(manager))
        clean(open_log(manager))
        manager.shutdown()
        manager = start(tmp_path / str(seed))
        assert not unproven(open_log(manager))
        manager.shutdown()
        before = {path.name: path.read_bytes() for path in indices(directory)}
        if len(before) < 2:
            continue
        damage(directory, chance)
        changed = {name for name in before if not (directory / name).exists()}
        changed |= {path.name for path in indices(directory) if path.read_bytes() != before[path.name]}
        compared = unproven(open_log(start(tmp_path / str(seed))))
        assert compared <= changed
        for name in changed - compared:
            assert (directory / name).read_bytes() == before[name], "its damage was seen when it was opened"


def test_segments_of_an_earlier_clean_stop_are_known_after_a_kill(tmp_path: Path) -> None:
    stopped_log(tmp_path, random.Random(1))
    manager = start(tmp_path)
    write_transactions(open_log(manager), random.Random(2), first_producer_id=10)
    again = open_log(start(tmp_path))
    assert not unproven(again)  # what came since is walked by the recovery
    assert committed_by_fetch(again, 500) == committed_by_markers(tmp_path / PARTITION.directory_name)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_after_a_checkpoint_and_a_kill_only_changed_indices_are_compared(tmp_path: Path, damage: Damage) -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        manager = start(tmp_path / str(seed))
        log = open_log(manager)
        write_transactions(log, chance)
        log.flush()
        manager.checkpoint_recovery_points()
        write_transactions(log, chance, first_producer_id=10)
        directory = tmp_path / str(seed) / PARTITION.directory_name
        before = {path.name: path.read_bytes() for path in indices(directory)}
        damage(directory, chance)
        changed = {name for name in before if not (directory / name).exists()}
        changed |= {path.name for path in indices(directory) if path.read_bytes() != before[path.name]}
        again = open_log(start(tmp_path / str(seed)))
        assert unproven(again) <= changed
        assert committed_by_fetch(again, 500) == committed_by_markers(directory), seed
        assert not unproven(again)


def test_a_checkpoint_without_changes_writes_nothing(tmp_path: Path) -> None:
    stopped_log(tmp_path, random.Random(5))
    manager = start(tmp_path)
    write_transactions(open_log(manager), random.Random(6), first_producer_id=10)
    open_log(manager).flush()
    manager.checkpoint_recovery_points()
    written = (tmp_path / INDEX_DIGESTS_FILE).stat()
    manager.checkpoint_recovery_points()
    assert (tmp_path / INDEX_DIGESTS_FILE).stat().st_ino == written.st_ino


@pytest.mark.parametrize("content", [None, b"", b"0\n1\n", b"\xff\xfe", b"0\n1\nt 0\n"], ids=repr)
def test_without_readable_digests_every_index_is_compared(tmp_path: Path, content: bytes | None) -> None:
    directory = stopped_log(tmp_path, random.Random(3))
    digests = tmp_path / INDEX_DIGESTS_FILE
    digests.unlink()
    if content is not None:
        digests.write_bytes(content)
    indices(directory)[0].unlink()
    log = open_log(start(tmp_path))
    assert len(unproven(log)) == len(log.segments)
    assert committed_by_fetch(log, 500) == committed_by_markers(directory)


def test_digests_differ_between_topics_of_the_same_name(tmp_path: Path) -> None:
    """Another topic of the same name, as long as the first, inherits nothing; a deleted one leaves no line."""
    digests = {digest_of(topic_id, 0, 100, b"") for topic_id in (None, TOPIC_ID, bytes(16))}
    assert len(digests) == 3
    stopped_log(tmp_path, random.Random(4))
    manager = start(tmp_path)
    open_log(manager)
    manager.delete_log(PARTITION)
    manager.shutdown()
    assert (tmp_path / INDEX_DIGESTS_FILE).read_bytes() == b"0\n0\n"


def test_entries_stay_where_damage_hides_their_marker(tmp_path: Path) -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        directory = stopped_log(tmp_path / str(seed), chance)
        before = {path.name: path.read_bytes() for path in indices(directory)}
        name = chance.choice(sorted(before)[:-1])
        marker_offset = ENTRY.unpack_from(before[name])[3]
        path = directory / name.replace(".txnindex", ".log")
        data = bytearray(path.read_bytes())
        marker = next(batch for batch in iter_batches(bytes(data)) if batch.base_offset == marker_offset)
        data[marker.position + marker.size_in_bytes - 1] ^= 0xFF
        path.write_bytes(data)
        (tmp_path / str(seed) / INDEX_DIGESTS_FILE).unlink()
        log = open_log(start(tmp_path / str(seed)))
        log.collect_aborted_transactions(0, log.log_end_offset)
        assert name not in unproven(log)
        assert (directory / name).read_bytes() == before[name], seed
