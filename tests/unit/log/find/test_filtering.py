"""Records that a reader of a virtual topic gets: only matching ones, with their offsets, and a position that moves over
gaps."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.finding import QUERIES, catch_up, fill, indexed_bench, indexer_of
from tests.support.logs import NOW_MS, append, marker, producer_batch
from tests.support.slices import content_of
from tidelog.log.find import filtering
from tidelog.log.find.filtering import SLICE_BYTES, MatchReader, Reading
from tidelog.log.find.indexer import LogIndexer
from tidelog.log.find.key_index import KeyIndex
from tidelog.log.find.lookup import Query
from tidelog.log.find.tag_index import TagIndex
from tidelog.log.follower.append import append_as_follower
from tidelog.log.unified_log import UnifiedLog
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import BatchOptions, Record, RecordBatch, build_batch
from tidelog.protocol.transferable import TransferableRecords


def read_all(
    log: UnifiedLog, query: Query, indexer: LogIndexer | None, *, start: int = 0, committed: bool = False,
    max_bytes: int = 700,
) -> list[Record]:  # fmt: skip
    """Read like a new consumer."""
    return read_on(MatchReader(log, query), log, indexer, start, committed=committed, max_bytes=max_bytes)


def read_on(
    reader: MatchReader, log: UnifiedLog, indexer: LogIndexer | None, start: int, *, committed: bool = False,
    max_bytes: int = 700,
) -> list[Record]:  # fmt: skip
    """Read like a consumer: from the last offset of the last batch on."""
    upper = log.last_stable_offset if committed else log.high_watermark
    found: list[Record] = []
    position = start
    while position < upper:
        matching = reader.read(Reading(position, upper, max_bytes, committed), indexer)
        last = position
        for batch in iter_batches(content_of(matching.records)):
            batch.ensure_valid()
            found += [record for record in batch.records() if record.offset >= position]
            last = batch.last_offset + 1
        assert last == matching.next_offset > position, "the consumer's position must follow"
        position = last
    return found


@pytest.mark.parametrize("query", QUERIES, ids=str)
@pytest.mark.parametrize("has_index", [True, False])
def test_only_matching_records_are_read_from_any_offset_on(tmp_path: Path, query: Query, has_index: bool) -> None:
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(6), 120)
    indexer = indexer_of(log) if has_index else None
    fill_more = fill(log, random.Random(7), 10)  # not indexed yet
    for start in (0, 1, records[40].offset, records[-1].offset, log.high_watermark - 1):
        found = read_all(log, query, indexer, start=start)
        wanted = [r for r in records + fill_more if query.matches(r) and r.offset >= start]
        assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in found] == [
            (r.offset, r.timestamp, r.key, r.value, r.headers) for r in wanted
        ]


def test_a_run_of_whole_batches_is_a_slice_of_the_file(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path), **{"segment.bytes": 1 << 20}).open()
    for _ in range(10):
        batch = build_batch([Record(i, NOW_MS, b"k", bytes(1000)) for i in range(10)])
        log.append_as_leader(memoryview(batch), leader_epoch=0)
    log.update_high_watermark(log.log_end_offset)
    reader = MatchReader(log, Query(key=b"k"))
    matching = reader.read(Reading(0, log.high_watermark, 1 << 20, False), None)
    assert isinstance(matching.records, TransferableRecords)
    assert matching.records.size >= SLICE_BYTES
    assert list(iter_batches(content_of(matching.records)))[-1].last_offset + 1 == matching.next_offset


def test_a_rebuilt_batch_keeps_its_producer_and_its_bounds(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path)).open()
    log.append_as_leader(memoryview(producer_batch(0, 3)), leader_epoch=4)
    log.update_high_watermark(log.log_end_offset)
    matching = MatchReader(log, Query(begin=NOW_MS + 1, end=NOW_MS + 1)).read(Reading(0, 3, 1000, False), None)
    assert isinstance(matching.records, bytes)
    batch = RecordBatch(matching.records)
    assert (batch.base_offset, batch.last_offset, batch.record_count) == (0, 2, 1)
    assert (batch.producer_id, batch.base_sequence, batch.partition_leader_epoch) == (7, 0, 4)
    assert batch.max_timestamp == NOW_MS + 1


def test_read_committed_leaves_out_aborted_records(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path)).open()
    for number, commit in enumerate((False, True, False)):
        batch = producer_batch(number, 1, transactional=True)
        log.append_as_leader(memoryview(batch), leader_epoch=0)
        log.append_as_leader(memoryview(marker(7, commit=commit)), leader_epoch=0, origin=AppendOrigin.COORDINATOR)
        log.update_high_watermark(log.log_end_offset)
    indexer = indexer_of(log)
    assert [r.value for r in read_all(log, Query(key=b"k"), indexer)] == [b"v0", b"v1", b"v2"]
    assert [r.value for r in read_all(log, Query(key=b"k"), indexer, committed=True)] == [b"v1"]


def test_nothing_that_matches_is_one_empty_batch(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path)).open()
    fill(log, random.Random(6), 50)
    upper = log.high_watermark
    matching = MatchReader(log, Query(key=b"missing")).read(Reading(3, upper, 1000, False), indexer_of(log))
    assert matching.is_gap
    assert isinstance(matching.records, bytes)
    batch = RecordBatch(matching.records)
    assert (batch.base_offset, batch.last_offset, batch.record_count) == (3, upper - 1, 0)


def test_a_key_with_too_many_records_is_read_without_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not more than ``MAX_KEY_CANDIDATES`` offsets are in memory, also while the index is walked."""
    log = indexed_bench(str(tmp_path)).open()
    for _ in range(10):
        batch = build_batch([Record(i, NOW_MS, b"k", b"v") for i in range(10)])
        log.append_as_leader(memoryview(batch), leader_epoch=0)
    log.update_high_watermark(log.log_end_offset)
    indexer = indexer_of(log)
    for most, held in ((100, 800), (99, 0)):
        monkeypatch.setattr(filtering, "MAX_KEY_CANDIDATES", most)
        reader = MatchReader(log, Query(key=b"k"))
        matching = reader.read(Reading(0, log.high_watermark, 1 << 20, False), indexer)
        assert (matching.next_offset, reader.held_bytes) == (100, held)


@pytest.mark.parametrize("has_index", [True, False])
def test_a_read_ends_within_offsets_that_compaction_has_removed(tmp_path: Path, has_index: bool) -> None:
    """The high watermark of the moment lay there when the read was asked for."""
    log = indexed_bench(str(tmp_path)).open()
    for first in (0, 15):
        batch = build_batch([Record(first + i, NOW_MS, b"k", b"") for i in range(5)])
        append_as_follower(log, memoryview(batch), 0)
    log.update_high_watermark(log.log_end_offset)
    reader = MatchReader(log, Query(key=b"k"))
    matching = reader.read(Reading(5, 10, 1000, False), indexer_of(log) if has_index else None)
    assert (matching.next_offset, matching.is_gap) == (10, True)
    assert [r.offset for r in read_all(log, Query(key=b"k"), None)] == [*range(5), *range(15, 20)]


def test_records_without_a_time_are_read_from_a_negative_time_on(tmp_path: Path) -> None:
    log = indexed_bench(str(tmp_path)).open()
    append(log, build_batch([Record(0, -1, b"k", b""), Record(1, NOW_MS, b"k", b"")]))
    assert [record.offset for record in read_all(log, Query(begin=-5), None)] == [0, 1]


def test_a_reader_forgets_what_it_found_in_an_index_that_was_rebuilt(tmp_path: Path) -> None:
    """A truncation took records, and the index of those in their place is complete before the next read."""
    log = indexed_bench(str(tmp_path)).open()
    for key in (b"k", b"k", b"other"):
        append(log, build_batch([Record(0, NOW_MS, key, b"")]))
    indexer = indexer_of(log)
    reader = MatchReader(log, Query(key=b"other"))
    assert reader.read(Reading(0, 3, 1000, False), indexer).next_offset == 3
    log.truncate_to(1)
    for key in (b"other", b"k", b"k"):
        append(log, build_batch([Record(0, NOW_MS, key, b"")]))
    catch_up(indexer)
    matching = reader.read(Reading(0, 4, 1000, False), indexer)
    assert isinstance(matching.records, bytes)
    assert [record.offset for batch in iter_batches(matching.records) for record in batch.records()] == [1]


BY_INDEX = (Query(key=b"Aa"), Query(tag=b"paid", tag_header="kind"))


@pytest.mark.parametrize("query", BY_INDEX, ids=str)
def test_a_reader_between_a_truncation_and_the_rebuild_of_the_index_misses_nothing(
    tmp_path: Path, query: Query
) -> None:
    """The indexer's thread may be busy with other logs, or rest after an error."""
    log = indexed_bench(str(tmp_path)).open()
    generator = random.Random(3)
    records = fill(log, generator, 60)
    indexer = indexer_of(log)
    readers = [MatchReader(log, query) for _ in range(2)]
    read_on(readers[0], log, indexer, 0)
    log.truncate_to(records[len(records) // 2].offset)
    records = [record for record in records if record.offset < log.log_end_offset] + fill(log, generator, 60)
    for reader in readers:
        found = read_on(reader, log, indexer, 0)
        assert [record.offset for record in found] == [record.offset for record in records if query.matches(record)]


@pytest.mark.parametrize("query", BY_INDEX, ids=str)
def test_a_reader_during_the_removal_of_an_index_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: Query
) -> None:
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(3), 60)
    indexer = indexer_of(log)
    kind = TagIndex if query.key is None else KeyIndex
    select = kind.select

    def select_late(*arguments: Any) -> object:
        monkeypatch.undo()
        indexer.rebuild()
        return select(*arguments)

    monkeypatch.setattr(kind, "select", select_late)
    found = read_all(log, query, indexer)
    assert [record.offset for record in found] == [record.offset for record in records if query.matches(record)]


@pytest.mark.parametrize("query", BY_INDEX, ids=str)
def test_a_reader_at_each_moment_of_the_removal_of_an_index_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: Query
) -> None:
    log = indexed_bench(str(tmp_path)).open()
    records = fill(log, random.Random(3), 60)
    indexer = indexer_of(log)
    found: list[tuple[str, list[int]]] = []

    def set_and_read(index: object, name: str, value: object) -> None:
        object.__setattr__(index, name, value)
        found.append((name, [record.offset for record in read_all(log, query, indexer)]))

    for kind in (KeyIndex, TagIndex):
        monkeypatch.setattr(kind, "__setattr__", set_and_read)
    indexer.rebuild()
    monkeypatch.undo()
    assert {"next_offset", "restarts", "files"} <= {name for name, _ in found}
    wanted = [record.offset for record in records if query.matches(record)]
    assert [name for name, offsets in found if offsets != wanted] == []


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("query", [Query(begin=0), Query(key=b"k1"), Query(key=b"missing")], ids=str)
def test_records_that_are_found_do_not_all_lie_before_the_offset(tmp_path: Path, query: Query, codec: int) -> None:
    """Clients of old formats get no batch without records, and would ask for the same offset without end. Offsets are
    tried after the last record that the cleaner left in a batch, too."""
    log = indexed_bench(str(tmp_path), **{"segment.bytes": 1 << 20}).open()
    dice = random.Random(8)
    for first in range(0, 200, 10):
        offsets = sorted(dice.sample(range(first, first + 10), dice.randrange(1, 10)))
        records = [Record(one, NOW_MS, b"k%d" % (one % 3), dice.randbytes(2000)) for one in offsets]
        options = BatchOptions(base_offset=first, last_offset_delta=9, compression=codec)
        append_as_follower(log, memoryview(build_batch(records, options)), 0)
    log.update_high_watermark(log.log_end_offset)
    reader, slices = MatchReader(log, query), 0
    for offset in range(log.log_end_offset):
        matching = reader.read(Reading(offset, log.high_watermark, 1 << 20, False), None)
        found = [record.offset for batch in iter_batches(content_of(matching.records)) for record in batch.records()]
        assert matching.is_gap == (not any(one >= offset for one in found)) == (not found)
        slices += isinstance(matching.records, TransferableRecords)
    assert bool(slices) == (query.begin == 0)
