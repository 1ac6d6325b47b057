"""The indexer and look-ups in its files: results equal those of a full scan, after any change to the log."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.support.cleaning import whole
from tests.support.finding import CONFIG, catch_up, check_answers, fill, indexed_bench, indexer_of, use_reference
from tests.support.logs import NOW_MS, append, marker, producer_batch
from tidelog.cleaner.engine.engine import ReferenceEngine
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions
from tidelog.log.config import LogConfig
from tidelog.log.find.consume_queue import ConsumeQueueFile
from tidelog.log.find.hashing import key_hash, key_seed
from tidelog.log.find.index_checkpoint import remove_checkpoints_beyond
from tidelog.log.find.index_file import IndexFile
from tidelog.log.find.indexer import LogIndexer
from tidelog.log.find.lookup import NotIndexedError, Query, find_newest
from tidelog.log.find.rows import Rows
from tidelog.log.unified_log import UnifiedLog
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.record.record_batch import Record, build_batch


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_of_a_full_scan(tmp_path: Path, seed: int) -> None:
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(seed), 200)
    indexer = indexer_of(log)
    assert indexer.keys is not None
    assert len(indexer.keys.files) > 2
    check_answers(log, indexer, records)


def test_answers_without_compiled_routines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_reference(monkeypatch)
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(9), 200)
    check_answers(log, indexer_of(log), records)


def test_keys_that_all_collide_are_found_apart(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path), **{"index.keys.slots": 1}).open()
    keys = [b"".join(parts) for parts in product((b"Aa", b"BB"), repeat=4)]
    for round_ in range(5):
        batch = build_batch([Record(i, NOW_MS + i, key, b"%d" % round_) for i, key in enumerate(keys)])
        log.append_as_leader(memoryview(batch), leader_epoch=0)
    log.update_high_watermark(log.log_end_offset)
    indexer = indexer_of(log)
    for index, key in enumerate(keys):
        found = [record.offset for record in find_newest(log, indexer, Query(key=key))]
        assert found == [round_ * len(keys) + index for round_ in reversed(range(5))]


def test_retained_away_records_are_not_found(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(1), 200)
    indexer = indexer_of(log)
    assert indexer.keys is not None
    assert indexer.tags is not None
    files = len(indexer.keys.files), len(indexer.tags.files)
    log.maybe_increment_log_start_offset(records[len(records) // 2].offset)
    log.delete_old_segments(NOW_MS)
    remaining = [record for record in records if record.offset >= log.log_start_offset]
    check_answers(log, indexer, remaining)
    indexer.trim()
    assert len(indexer.keys.files) < files[0]
    assert len(indexer.tags.files) < files[1]
    check_answers(log, indexer, remaining)


def test_records_after_the_index_was_made_are_found_once_it_follows(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path)).open()
    generator = random.Random(2)
    records = fill(log, generator, 50)
    indexer = indexer_of(log)
    records += fill(log, generator, 50)
    assert indexer.lag == log.high_watermark - indexer.next_offset > 0
    catch_up(indexer)
    assert indexer.lag == 0
    check_answers(log, indexer, records)


def test_an_index_switched_on_later_begins_at_the_log_start(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path), **{"index.tag.header": ""}).open()
    records = fill(log, random.Random(3), 60)
    indexer = indexer_of(log)
    with pytest.raises(NotIndexedError):
        next(find_newest(log, indexer, Query(tag=b"paid", tag_header="kind")))
    indexer.configure(LogConfig(CONFIG))
    assert indexer.next_offset == 0
    catch_up(indexer)
    check_answers(log, indexer, records)


def test_another_header_rebuilds_the_tag_index(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(3), 60)
    indexer_of(log).checkpoint()
    indexer = LogIndexer(log)
    indexer.configure(LogConfig({**CONFIG, "index.tag.header": "other"}))
    catch_up(indexer)
    expected = [r.offset for r in reversed(records) if dict(r.headers).get("other") == b"x"]
    assert [r.offset for r in find_newest(log, indexer, Query(tag=b"x", tag_header="other"))] == expected


def cut(log: UnifiedLog, records: list[Record], generator: random.Random) -> list[Record]:
    """Truncate the log in its middle, append others, and return the records that it has then."""
    log.truncate_to(records[len(records) // 2].offset)
    kept = [record for record in records if record.offset < log.log_end_offset]
    return kept + fill(log, generator, 60)


def test_records_that_follow_a_truncation_are_found(tmp_path: Path) -> None:
    """Only an unclean election takes records below the high watermark."""
    log = indexed_bench(str(tmp_path)).open()
    generator = random.Random(8)
    records = fill(log, generator, 60)
    indexer = indexer_of(log)
    middle = records[len(records) // 2].offset
    records = cut(log, records, generator)
    assert indexer.next_offset <= middle, "a search that waits for the index waits for the rebuild"
    catch_up(indexer)
    check_answers(log, indexer, records)
    assert indexer.rebuilds == 2, "keys and tags"
    records += fill(log, generator, 10)
    catch_up(indexer)
    check_answers(log, indexer, records)
    assert indexer.rebuilds == 2


def test_records_that_follow_a_truncation_during_a_step_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = indexed_bench(str(tmp_path)).open()
    generator = random.Random(9)
    before = fill(log, generator, 60)
    after: list[Record] = []
    index = LogIndexer._index

    def index_late(indexer: LogIndexer, chunk: memoryview, position: int) -> None:
        if not after:
            after.extend(cut(log, before, generator))
        index(indexer, chunk, position)

    monkeypatch.setattr(LogIndexer, "_index", index_late)
    indexer = indexer_of(log)
    assert after
    check_answers(log, indexer, after)


def test_an_index_whose_log_was_truncated_before_a_kill_is_rebuilt(tmp_path: Path) -> None:
    """The indexer had no time for a step, and the log has grown beyond the index again."""
    bench = indexed_bench(str(tmp_path))
    log = bench.open()
    generator = random.Random(10)
    records = fill(log, generator, 60)
    indexer_of(log).checkpoint()
    log.truncate_to(records[len(records) // 2].offset)
    remove_checkpoints_beyond(log.environment.file_system, log.directory, log.log_end_offset)
    records = [record for record in records if record.offset < log.log_end_offset] + fill(log, generator, 60)
    log.close()
    log = bench.open()
    check_answers(log, indexer_of(log), records)


@pytest.mark.parametrize("save", [LogIndexer.checkpoint, LogIndexer.trim])
def test_a_checkpoint_after_a_truncation_does_not_outlive_it(
    tmp_path: Path, save: Callable[[LogIndexer], object]
) -> None:
    """A kill may come before the next step, when the log has grown beyond what the index has."""
    bench = indexed_bench(str(tmp_path))
    log = bench.open()
    generator = random.Random(10)
    records = fill(log, generator, 80)
    indexer = indexer_of(log)
    log.maybe_increment_log_start_offset(records[len(records) // 3].offset)
    records = cut(log, records, generator)
    save(indexer)
    log.close()
    log = bench.open(log_start_offset=log.log_start_offset)
    log.update_high_watermark(log.log_end_offset)
    check_answers(log, indexer_of(log), [record for record in records if record.offset >= log.log_start_offset])


def damage(log: UnifiedLog, offset: int, at: int, content: bytes) -> None:
    """Overwrite bytes in the header of the batch that holds ``offset``."""
    segment = log.segments.floor(offset)
    assert segment is not None
    found = segment.translate_offset(offset)
    assert found is not None
    with open(segment.records.path, "r+b") as file:
        file.seek(found.position + at)
        file.write(content)


@pytest.mark.parametrize("plain", [False, True], ids=["as built", "plain"])
def test_a_batch_whose_header_claims_a_billion_records_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    if plain:
        use_reference(monkeypatch)
    log = indexed_bench(str(tmp_path)).open()
    for number in range(3):
        append(log, build_batch([Record(i, NOW_MS, b"k%d" % number, b"") for i in range(4)]))
    damage(log, 5, 57, bytes((0x3F, 0xFF, 0xFF, 0xFF)))
    rows = Rows()
    indexer = LogIndexer(log, rows)
    indexer.configure()
    catch_up(indexer)
    assert indexer.skipped_batches == 1
    assert rows.capacity == Rows().capacity, "there is no memory for so many rows"
    assert [r.offset for r in find_newest(log, indexer, Query(key=b"k2"))] == [11, 10, 9, 8]


@pytest.mark.parametrize(
    ("at", "content"),
    [
        (8, b"\0\0\0\5"), (8, b"\x7f\0\0\0"), (8, b"\0\0\4\0"), (16, b"\7"), (16, b"\0"), (16, b"\1"), (0, b"\x80"),
        (0, b"\x7f"), (5, b"\7"), (6, b"\2"), (25, b"\2"), (23, b"\xff"), (23, b"\x7f"), (64, b"\x7e"), (64, b"\x7d"),
    ],
    ids=[
        "too short", "too long", "over the next batches", "magic", "magic 0", "magic 1", "negative", "too late", "late",
        "late within the log", "ends late within the log", "ends before", "ends late", "late record", "early record",
    ],
)  # fmt: skip
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("plain", [False, True], ids=["as built", "plain"])
def test_an_index_goes_on_after_an_impossible_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, content: bytes, share: float, plain: bool
) -> None:
    if plain:
        use_reference(monkeypatch)
    log = indexed_bench(str(tmp_path), **{"index.interval.bytes": 500, "index.tag.header": ""}).open()
    for _ in range(300):
        append(log, build_batch([Record(i, NOW_MS, b"k", bytes(50)) for i in range(3)]))
    bad = int(share * log.log_end_offset)
    damage(log, bad, at, content)
    indexer = LogIndexer(log)
    indexer.configure()
    assert 0 in (indexer.step(3_000) for _ in range(200)), "it ends"
    assert indexer.next_offset == log.high_watermark
    assert indexer.keys is not None
    found = set(indexer.keys.select(key_hash(key_seed("topic"), b"k"), 0, NOW_MS))
    lost = set(range(log.log_end_offset)) - found
    assert bad in lost
    assert len(lost) < 150, "up to the next entry of the offset index, or the next segment"
    append(log, build_batch([Record(0, NOW_MS, b"new", b"")]))
    catch_up(indexer)
    assert indexer.next_offset == log.high_watermark


def test_records_without_a_time_are_found_from_a_negative_time_on(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path)).open()
    append(log, build_batch([Record(0, -1, b"k", b""), Record(1, NOW_MS, b"k", b"")]))
    indexer = indexer_of(log)
    for query in (Query(begin=-5), Query(begin=-5, key=b"k")):
        assert [record.offset for record in find_newest(log, indexer, query)] == [1, 0]
    assert [record.offset for record in find_newest(log, indexer, Query(begin=0))] == [1]


def test_a_checkpoint_syncs_every_file_that_was_put_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = indexed_bench(str(tmp_path)).open()
    generator = random.Random(4)
    fill(log, generator, 200)
    indexer = indexer_of(log)
    assert indexer.keys is not None
    assert indexer.tags is not None
    synced: list[str] = []
    monkeypatch.setattr(IndexFile, "sync", lambda file: synced.append(file.path))
    monkeypatch.setattr(ConsumeQueueFile, "sync", lambda file: synced.append(file.path))
    indexer.checkpoint()
    assert min(len(indexer.keys.files), len(indexer.tags.files)) > 2
    paths = [file.path for file in indexer.keys.files]
    assert synced == paths + [file.path for file in indexer.tags.files]
    while len(indexer.keys.files) == len(paths):
        fill(log, generator, 10)
        catch_up(indexer)
    synced.clear()
    indexer.checkpoint()
    put_into = [file.path for file in indexer.keys.files[len(paths) - 1 :]]
    assert [path for path in synced if path.endswith(".keys")] == put_into


def test_switching_off_removes_the_files(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path)).open()
    fill(log, random.Random(3), 20)
    indexer = indexer_of(log)
    indexer.configure(LogConfig())
    assert not (Path(log.directory) / "keys").exists()
    assert not (Path(log.directory) / "tags").exists()
    assert indexer.step() == 0


def test_a_clean_restart_continues_where_the_checkpoint_says(tmp_path: Path) -> None:
    bench = indexed_bench(str(tmp_path))
    log = bench.open()
    generator = random.Random(4)
    records = fill(log, generator, 80)
    indexer_of(log).checkpoint()
    log.close()
    log = bench.open(clean=True)
    log.update_high_watermark(log.log_end_offset)
    indexer = LogIndexer(log)
    indexer.configure()
    assert indexer.next_offset == log.log_end_offset
    check_answers(log, indexer, records)
    records += fill(log, generator, 80)
    catch_up(indexer)
    check_answers(log, indexer, records)


def test_time_bounds_are_included(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path)).open()
    times = [NOW_MS, NOW_MS - 5_000, NOW_MS + 1, NOW_MS + 999, NOW_MS + 1000]  # the second is late: before the first
    log.append_as_leader(
        memoryview(build_batch([Record(i, t, b"k", b"") for i, t in enumerate(times)])), leader_epoch=0
    )
    log.update_high_watermark(log.log_end_offset)
    indexer = indexer_of(log)
    for begin in times:
        for end in times:
            found = {r.timestamp for r in find_newest(log, indexer, Query(key=b"k", begin=begin, end=end))}
            assert found == {t for t in times if begin <= t <= end}


def test_paging_below_an_offset_gives_each_record_once(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(5), 100)
    indexer = indexer_of(log)
    for query in (Query(key=b"Aa"), Query(tag=b"paid", tag_header="kind"), Query()):
        found: list[int] = []
        while True:
            page = find_newest(log, indexer, query, found[-1] if found else None)
            part = [record.offset for record, _ in zip(page, range(7), strict=False)]
            if not part:
                break
            found += part
        assert found == [r.offset for r in reversed(records) if query.matches(r)]


@pytest.mark.parametrize("query", [Query(key=b"k"), Query(), Query(begin=NOW_MS)], ids=str)
def test_read_committed_finds_no_records_of_aborted_and_open_transactions(tmp_path: Path, query: Query) -> None:
    log = indexed_bench(str(tmp_path), **{"index.tag.header": ""}).open()
    for number, commit in enumerate((False, True, False, True)):
        append(log, producer_batch(number, 1, transactional=True))
        append(log, producer_batch(0, 1, producer_id=100 + number))  # of no transaction, between
        append(log, marker(7, commit=commit), AppendOrigin.COORDINATOR)
    append(log, producer_batch(4, 1, transactional=True))  # open
    append(log, producer_batch(0, 1, producer_id=200))  # behind the last stable offset
    indexer = indexer_of(log)
    everything = [0, 1, 3, 4, 6, 7, 9, 10, 12, 13]
    assert [r.offset for r in find_newest(log, indexer, query)] == everything[::-1]
    aborted = (0, 6, 12, 13)
    committed = [offset for offset in reversed(everything) if offset not in aborted]
    assert [r.offset for r in find_newest(log, indexer, query, committed=True)] == committed
    assert [r.offset for r in find_newest(log, indexer, query, 4, committed=True)] == [3, 1]


def test_records_cleaned_away_are_not_found(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path), **{"cleanup.policy": "compact", "index.tag.header": ""}).open()
    for number in range(30):
        keys = (b"Aa", b"BB", b"k%d" % (number % 4))
        batch = build_batch([Record(i, NOW_MS, key, b"%d" % number) for i, key in enumerate(keys)])
        log.append_as_leader(memoryview(batch), leader_epoch=0)
        if number % 10 == 9:
            log.roll()
    log.update_high_watermark(log.log_end_offset)
    indexer = indexer_of(log)
    assert len(list(find_newest(log, indexer, Query(key=b"Aa")))) == 30
    options = CleanerOptions(map_bytes=64 * 1024, io_buffer_bytes=1024)
    Cleaner(ReferenceEngine(), options).clean(whole(log), NOW_MS)
    assert [r.value for r in find_newest(log, indexer, Query(key=b"Aa"))] == [b"29"]
    assert [r.value for r in find_newest(log, indexer, Query(key=b"k1"))] == [b"29"]
    later = indexer_of(log)  # from its checkpoint or from the start: the same
    later.rebuild()
    catch_up(later)
    assert [r.offset for r in find_newest(log, later, Query(key=b"BB"))] == [log.log_end_offset - 2]
