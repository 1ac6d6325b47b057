"""Compiled routines against the reference: equal rows from the same bytes, equal index entries, equal matches."""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import random
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import DEPTH
from tests.support.extensions import uncompiled
from tests.support.finding import use_reference
from tidelog.log.find import filtering, index_file
from tidelog.log.find.consume_queue import ConsumeQueueFile
from tidelog.log.find.engine import engine, entries, reference, walk
from tidelog.log.find.engine.reference import (
    ChainQuery,
    Damage,
    FileLayout,
    MatchQuery,
    PutResult,
    RestoredSlots,
    RowSettings,
    WalkStop,
)
from tidelog.log.find.hashing import key_seed
from tidelog.log.find.index_file import IndexDamagedError, IndexFile
from tidelog.log.find.lookup import Query
from tidelog.log.find.rows import Rows
from tidelog.log.records import section_walk
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.errors import InvalidRecordError, KafkaStorageError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import (
    BatchOptions,
    EndTransactionMarker,
    Record,
    RecordBatch,
    build_batch,
    end_transaction_marker,
    set_crc,
)

WALKS = (walk, uncompiled(walk))
ENTRIES = (entries, uncompiled(entries))
WANTED = RowSettings(key_seed("topic"), b"kind")

HEADERS = st.lists(
    st.tuples(st.sampled_from(["kind", "other", "kin", "kind2"]), st.none() | st.binary(max_size=6)), max_size=3
)
RECORD = st.tuples(
    st.integers(-5, 2**40), st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=200), HEADERS
)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    out = bytearray()
    offset = draw(st.integers(0, 2**40))
    for kind in draw(st.lists(st.sampled_from(["plain", "append time", "control", "lz4"]), max_size=5)):
        records = draw(st.lists(RECORD, min_size=1, max_size=6))
        if kind == "control":
            marker = end_transaction_marker(EndTransactionMarker(True, 0), timestamp=5, producer_id=1, producer_epoch=0)
            marker[0:8] = offset.to_bytes(8, "big")
            out += marker
            offset += 1
            continue
        rows = [Record(offset + i, t, k, v, tuple(h)) for i, (t, k, v, h) in enumerate(records)]
        options = BatchOptions(
            compression=3 if kind == "lz4" else 0, log_append_time=77 if kind == "append time" else None
        )
        out += build_batch(rows, options)
        offset += len(rows)
    return bytes(out)


def columns(rows: Rows) -> list[list[int]]:
    all_columns = (rows.offsets, rows.timestamps, rows.key_hashes, rows.tag_hashes, rows.positions, rows.sizes)
    return [list(column[: rows.count]) for column in all_columns]


def walk_both(chunk: bytes, capacity: int = 100, wanted: RowSettings = WANTED) -> tuple[Rows, reference.WalkEnd]:
    plain = Rows(capacity)
    expected = reference.walk_chunk(plain, memoryview(chunk), wanted, 1000)
    for routines in WALKS:
        for form in (memoryview(chunk), memoryview(bytearray(chunk))):
            fast = Rows(capacity)
            assert routines.walk_chunk(fast, form, wanted, 1000) == expected
            assert columns(fast) == columns(plain)
    return plain, expected


@pytest.mark.parametrize("name", ["_read_long_varint", "_read_raw", "_zigzag", "_read_deltas"])
def test_readers_of_fields_are_those_of_the_check_of_sections(name: str) -> None:
    """They stand twice: called in another compiled module, through a pointer, the walk takes a quarter longer."""
    sources = [inspect.getsource(getattr(module, name)) for module in (WALKS[1], uncompiled(section_walk))]
    assert sources[0] == sources[1]


@pytest.mark.parametrize("part", range(2))
@given(chunk=batches(), cut=st.integers(0, 400))
@settings(max_examples=50 * DEPTH, deadline=None)
def test_chunks_are_walked_alike(chunk: bytes, cut: int, part: int) -> None:
    walk_both(chunk)
    walk_both(chunk[: max(0, len(chunk) - cut)])


@given(batches(), st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=3, max_size=3))
@settings(deadline=None)
def test_damaged_chunks_are_walked_alike(chunk: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(chunk)
    for place, value in changes:
        if damaged:
            damaged[place % len(damaged)] = value
    walk_both(bytes(damaged))


def test_a_batch_that_does_not_fit_stops_the_walk() -> None:
    chunk = bytes(build_batch([Record(i, 1, b"k", b"v") for i in range(5)]))
    rows, walk = walk_both(chunk, capacity=4)
    assert (walk.stop, walk.position, rows.count) == (WalkStop.FULL, 0, 0)


@pytest.mark.parametrize("timestamp", [2**63 - 1, -(2**63)])
def test_times_that_need_more_than_64_bits_wrap(timestamp: int) -> None:
    """A client may send any deltas. A row that does not fit its column would end the indexer's thread."""
    records = [Record(0, 10, b"k", b"v"), Record(1, 5, b"k", b"v"), Record(2, 15, b"k", b"v")]
    batch = bytearray(build_batch(records))
    batch[27:35] = timestamp.to_bytes(8, "big", signed=True)
    set_crc(batch, 0, len(batch))
    rows, found = walk_both(bytes(batch))
    assert (found.stop, rows.count) == (WalkStop.END, 3)


@pytest.mark.parametrize(("first", "last", "fits"), [(5, 8, True), (4, 8, False), (5, 9, False)])
def test_a_batch_beyond_the_possible_offsets_stops_the_walk(first: int, last: int, fits: bool) -> None:
    records = [Record(offset, 1, b"k", b"v") for offset in range(first, last + 1)]
    rows, found = walk_both(bytes(build_batch(records)), wanted=WANTED._replace(begin=5, end=9))
    assert (found.stop, rows.count) == ((WalkStop.END, 4) if fits else (WalkStop.ODD, 0))


@pytest.mark.parametrize("base_offset", [2**63 - 2, -1, -(2**63)])
def test_a_batch_whose_offsets_need_more_than_63_bits_stops_the_walk(base_offset: int) -> None:
    batch = build_batch([Record(i, 1, b"k", b"v") for i in range(3)])
    batch[0:8] = base_offset.to_bytes(8, "big", signed=True)
    rows, found = walk_both(bytes(batch))
    assert (found.stop, rows.count) == (WalkStop.ODD, 0)


@pytest.mark.parametrize(("second", "third"), [(12, 16), (13, 15), (20, 16)], ids=["first", "second", "second jumps"])
def test_a_batch_that_reaches_into_the_next_one_stops_the_walk(second: int, third: int) -> None:
    batches = [bytes(build_batch([Record(at + i, 1, b"k", b"v") for i in range(3)])) for at in (10, second, third)]
    rows, found = walk_both(b"".join(batches))
    whole = 0 if second == 12 else 1
    assert (found.stop, found.position, rows.count) == (WalkStop.ODD, whole * len(batches[0]), whole * 3)
    assert found.next_offset == (13 if whole else -1)


def test_the_damaged_one_of_two_batches_is_told_by_the_offset_that_is_due_and_its_checksum() -> None:
    batch, other = (build_batch([Record(at + i, 1, b"k", b"v") for i in range(3)]) for at in (10, 12))
    wanted = WANTED._replace(begin=5)
    for due, checksum, fits in ((10, 0, True), (11, 0, True), (9, 0, False), (10, 1, False)):
        damaged = bytearray(batch)
        damaged[17] ^= checksum
        chunk = memoryview(bytes(damaged + other))
        with contextlib.nullcontext() if fits else pytest.raises(InvalidRecordError, match="offsets 10 to 12"):
            reference.ensure_possible(chunk, RecordBatch(chunk), wanted._replace(due=due))


def test_a_topic_without_a_tag_header_has_no_tags() -> None:
    chunk = bytes(build_batch([Record(0, 1, b"k", b"v", (("", b"x"), ("kind", b"y")))]))
    for routines in (reference, *WALKS):
        rows = Rows(1)
        routines.walk_chunk(rows, memoryview(chunk), RowSettings(1, None), 0)
        assert (rows.count, rows.tag_hashes[0]) == (1, 0)


@given(batches(), st.integers(1, 20), st.integers(2, 30), st.integers(-(2**62), 2**62) | st.integers(0, 2**40))
@settings(deadline=None, max_examples=40 * DEPTH)
def test_files_are_filled_alike(chunk: bytes, slots: int, capacity: int, begin: int) -> None:
    rows = Rows(100)
    reference.walk_chunk(rows, memoryview(chunk), WANTED, 0)
    found = []
    for routines in (reference, *ENTRIES):
        front = bytearray(40 + 4 * slots)
        layout, row, puts, written = FileLayout(slots, capacity, 1, begin), 0, list[PutResult](), b""
        for end in (rows.count // 2, rows.count):
            rows.entries[:] = bytes(len(rows.entries))
            puts.append(routines.put_entries(front, rows, layout, row, end))
            written += bytes(rows.entries[: 20 * (puts[-1].next_entry - layout.next_entry)])
            layout, row = layout._replace(next_entry=puts[-1].next_entry), puts[-1].next_row
        rows.entries[:] = bytes(len(rows.entries))
        routines.put_tags(rows, 0, rows.count)
        found.append((puts, bytes(front), written, bytes(rows.entries)))
    assert found[0] == found[1] == found[2]
    check_restored(found[0][1], slots, found[0][2])


def check_restored(front: bytes, slots: int, written: bytes) -> None:
    """Check that slots are rebuilt from entries, in one piece and in two; and that any byte that matters is missed."""
    count = len(written) // 20
    offsets = [int.from_bytes(written[20 * n + 4 : 20 * n + 12], "big", signed=True) for n in range(count)]
    if offsets != sorted(set(offsets)) or min(offsets, default=0) < 0:
        return
    for routines in (reference, *ENTRIES):
        rebuilt = bytearray(len(front))
        restored = RestoredSlots(0, 1, -1)
        for piece in (written[: 20 * (count // 2)], written[20 * (count // 2) :]):
            restored = routines.restore_slots(rebuilt, slots, piece, restored)
        assert (bytes(rebuilt), restored) == (front, RestoredSlots(0, count + 1, offsets[-1] if offsets else -1))
        for number in range(count):
            broken = bytearray(written)
            broken[20 * number + 16] ^= 0x80
            answer = routines.restore_slots(bytearray(len(front)), slots, bytes(broken), RestoredSlots(0, 1, -1))
            assert answer.damaged_entry == number + 1


@given(st.binary(max_size=200), st.integers(1, 5))
@settings(max_examples=100 * DEPTH)
def test_slots_are_rebuilt_alike_from_any_entries(stored: bytes, slots: int) -> None:
    stored = stored[: len(stored) // 20 * 20]
    answers = []
    for routines in (reference, *ENTRIES):
        front = bytearray(40 + 4 * slots)
        answers.append((routines.restore_slots(front, slots, stored, RestoredSlots(0, 1, -1)), bytes(front)))
    assert answers[0] == answers[1] == answers[2]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 40), min_size=1, max_size=20), st.integers(1, 20))
def test_tags_of_unordered_offsets_are_not_written_outside_the_buffer(offsets: list[int], capacity: int) -> None:
    found = []
    for routines in (reference, *ENTRIES):
        rows = Rows(capacity)
        rows.make_room(len(offsets))
        rows.entries = bytearray(20 * capacity)
        for row, offset in enumerate(offsets):
            rows.offsets[row], rows.positions[row], rows.sizes[row], rows.tag_hashes[row] = offset, row, 9, -row
        routines.put_tags(rows, 0, len(offsets))
        found.append(bytes(rows.entries))
    assert found[0] == found[1] == found[2]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=40, unique=True), st.integers(1, 30))
@settings(deadline=None, max_examples=40 * DEPTH)
def test_tags_of_a_log_with_gaps_are_where_their_offsets_say(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int], capacity: int
) -> None:
    rows = Rows(capacity)
    rows.make_room(len(offsets))
    rows.count = len(offsets)
    rows.entries[:] = b"\xff" * len(rows.entries)  # of the rows before
    for row, offset in enumerate(sorted(offsets)):
        rows.offsets[row], rows.positions[row], rows.sizes[row], rows.tag_hashes[row] = 7 + offset, offset, 9, -offset
    path = str(tmp_path_factory.mktemp("tags") / "file.tags")
    file = ConsumeQueueFile.create(OsFileSystem(), path, 7, 50)
    row = 0
    while row < rows.count and rows.offsets[row] < file.end_offset:
        row = file.put_rows(rows, row)
    assert row == sum(offset < 50 for offset in offsets)
    for offset in range(50):
        expected = (offset, 9, -offset) if offset in offsets else (0, 0, 0)
        assert file.entry(7 + offset) == expected


def test_entries_that_cannot_be_written_are_in_no_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_reference(monkeypatch)  # writes through os.pwrite
    rows = Rows(100)
    for row in range(100):
        rows.offsets[row], rows.timestamps[row], rows.key_hashes[row] = row, 1000, row % 7
    file = IndexFile.create(OsFileSystem(), str(tmp_path / "file.keys"), 5, 200)
    rows.count = 50
    file.put_rows(rows, 0)
    before = bytes(file._front or b""), file.count, list(file.select(3, 0, 2000))
    rows.count = 100
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full_disk)
        with pytest.raises(KafkaStorageError):
            file.put_rows(rows, 50)
    assert (bytes(file._front or b""), file.count, list(file.select(3, 0, 2000))) == before
    assert file.put_rows(rows, 50) == 100
    assert list(file.select(3, 0, 2000)) == [row for row in reversed(range(100)) if row % 7 == 3]


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_entries_are_written_alike(tmp_path: Path, piece: int) -> None:
    content = random.Random(1).randbytes(100)
    for number, routines in enumerate((reference, *ENTRIES)):
        path = tmp_path / str(number)
        path.write_bytes(b"before")
        with path.open("r+b") as file:
            assert routines.write_pieces(file.fileno(), memoryview(bytearray(content)), 3, piece) == 100
        assert path.read_bytes() == b"bef" + content


@pytest.mark.parametrize("routines", [reference, *ENTRIES], ids=["reference", "as built", "uncompiled"])
def test_a_write_that_fails_says_why_whoever_writes(monkeypatch: pytest.MonkeyPatch, routines: ModuleType) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full: Linux has it")
    monkeypatch.setattr(engine, "write_pieces", routines.write_pieces)
    with full.open("r+b", buffering=0) as file, pytest.raises(KafkaStorageError, match="No space left"):
        index_file.write_entries(file.fileno(), str(full), memoryview(bytearray(20)), 0)


def full_disk(*_: object) -> int:
    raise OSError(errno.ENOSPC, "no space left")


LOOKED_FOR = st.builds(
    Query,
    key=st.none() | st.binary(max_size=3),
    tag=st.none() | st.binary(max_size=3),
    tag_header=st.none() | st.just("kind"),
    begin=st.integers(-10, 100),
    end=st.integers(0, 2**40) | st.just(2**63 - 1),
)
SMALL_RECORD = st.tuples(st.integers(-5, 200), st.none() | st.binary(max_size=2), st.binary(max_size=3), HEADERS)


@given(st.lists(SMALL_RECORD, min_size=1, max_size=8), LOOKED_FOR, st.none() | st.just(77), st.integers(0, 2**20))
@settings(deadline=None)
def test_the_same_records_of_a_batch_match(
    records: list[tuple[int, bytes | None, bytes, list[tuple[str, bytes | None]]]], query: Query,
    append_time: int | None, damage: int,
) -> None:  # fmt: skip
    rows = [Record(5 + i, t, k, v, tuple(h)) for i, (t, k, v, h) in enumerate(records)]
    stored = build_batch(rows, BatchOptions(log_append_time=append_time))
    (batch,) = iter_batches(bytes(stored))
    assert isinstance(batch, RecordBatch)
    section = bytearray(batch.uncompressed_section())
    if damage % 3 == 0:
        section[damage % len(section)] ^= 1 << damage % 8
    expected = matches_or_error(reference, batch, bytes(section), query)
    for routines in WALKS:
        assert matches_or_error(routines, batch, bytes(section), query) == expected


def matches_or_error(routines: ModuleType, batch: RecordBatch, section: bytes, query: Query) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_find_matches", routines.match_records)
        try:
            return filtering._find_matches(batch, section, query)
        except (InvalidRecordError, UnicodeDecodeError) as error:
            return type(error)


@given(st.binary(max_size=80), st.integers(-2, 12), st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=100 * DEPTH)
def test_matches_in_any_bytes_are_those_of_the_reference(section: bytes, count: int, base: int) -> None:
    query = MatchQuery(None, None, b"kind", base, None, -(2**63), 2**63 - 1)
    for routines in WALKS:
        places = routines.match_records(section, count, query)
        assert places is None or places == reference.match_records(section, count, query)


class PlainChain:
    """Oracle of ``Chain``: one entry after the other, out of the file's bytes."""

    def __init__(self, stored: bytes, query: ChainQuery, number: int, limit: int, last_offset: int) -> None:
        self.offsets: list[int] = []
        self.damage = 0
        first_entry = 40 + 4 * query.slots
        while number:
            entry = stored[first_entry + 20 * number :][:20] if 0 < number < limit else None
            if entry is None or len(entry) < 20:
                self.damage = Damage.OUT_OF_CHAIN if entry is None else Damage.UNREADABLE
                return
            hashed, offset, diff, previous = reference.INDEX_ENTRY.unpack(entry)
            is_of_slot = hashed >= 0 and hashed % query.slots == query.key_hash % query.slots
            if not is_of_slot or diff < 0 or not query.begin_offset + number - 1 <= offset < last_offset:
                self.damage = Damage.BAD_ENTRY
                return
            if offset < query.min_offset:
                return
            if hashed == query.key_hash and query.low <= diff <= query.high:
                self.offsets.append(offset)
            number, limit, last_offset = previous, number, offset


def follow(routines: ModuleType, descriptor: int, query: ChainQuery, place: tuple[int, int, int], count: int) -> object:
    chain = routines.Chain(descriptor, query, *place)
    found: list[int] = []
    while chain.number and not chain.damage:
        found += chain.next_offsets(count)
    return found, chain.damage


def chained_file(path: Path, rows: int) -> IndexFile:
    """Write a file in which two keys in three share a slot."""
    generator = random.Random(2)
    filled = Rows(rows)
    for row in range(rows):
        filled.offsets[row], filled.timestamps[row] = row, 1000 * row
        filled.key_hashes[row] = generator.choice((7, 7, 17, 3))
    filled.count = rows
    file = IndexFile.create(OsFileSystem(), str(path), 10, rows + 1)
    file.put_rows(filled, 0)
    file.flush()
    return file


@given(
    key=st.sampled_from((7, 17, 3, 4)),
    low=st.integers(0, 700),
    high=st.integers(0, 700),
    min_offset=st.integers(0, 500),
    count=st.sampled_from((1, 3, 1000)),
    damages=st.lists(st.tuples(st.integers(0, 12_000), st.integers(0, 255)), max_size=3),
    cut=st.none() | st.integers(0, 12_000),
)
@settings(deadline=None, max_examples=60 * DEPTH)
def test_chains_are_followed_alike_whole_damaged_and_cut(
    tmp_path_factory: pytest.TempPathFactory, key: int, low: int, high: int, min_offset: int, count: int,
    damages: list[tuple[int, int]], cut: int | None,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("chain") / "file.keys"
    file = chained_file(path, 500)
    number = file._slot(key)
    stored = bytearray(path.read_bytes())
    for at, byte in damages:
        stored[(80 + at) % len(stored)] = byte
    del stored[len(stored) if cut is None else cut :]
    path.write_bytes(stored)
    query = ChainQuery(10, key, low, high, min_offset, 0)
    plain = PlainChain(bytes(stored), query, number, 501, 500)
    for routines in ENTRIES:
        assert follow(routines, file._descriptor, query, (number, 501, 500), count) == (plain.offsets, plain.damage)


def test_a_damaged_chain_is_reported_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file.keys"
    file = chained_file(path, 3000)
    hashed = file.entry(2000).key_hash
    for broken, what in ((4, "outside of its chain"), (16, "follows entry")):
        at = file._position(2000) + broken
        before = os.pread(file._descriptor, 4, at)
        os.pwrite(file._descriptor, b"\x7f\xff\xff\xff", at)
        with pytest.raises(IndexDamagedError, match=what):
            list(file.select(hashed, 0, 2**62))
        os.pwrite(file._descriptor, before, at)
    os.pwrite(file._descriptor, bytes(20), file._position(2000))  # a page that was lost, not the end of the chain
    with pytest.raises(IndexDamagedError, match="outside of its chain"):
        list(file.select(hashed, 0, 2**62))
    os.truncate(path, file._position(2000))
    with pytest.raises(IndexDamagedError, match="ends before"):
        list(file.select(hashed, 0, 2**62))
    with pytest.raises(IndexDamagedError, match="made with"):
        file.put_rows(Rows(1), 0)


def test_slots_are_found_in_the_file_and_in_memory(tmp_path: Path) -> None:
    file = chained_file(tmp_path / "file.keys", 300)
    flushed = {key: list(file.select(key, 0, 2**40)) for key in (3, 7, 17)}
    assert sorted(offset for offsets in flushed.values() for offset in offsets) == list(range(300))
    reopened = IndexFile.open(OsFileSystem(), file.path, file._size)
    assert {key: list(reopened.select(key, 0, 2**40)) for key in (3, 7, 17)} == flushed
    reopened.restore(100, 0, 98_000)
    assert {key: list(reopened.select(key, 0, 2**40)) for key in (3, 7, 17)} == {
        key: [offset for offset in offsets if offset < 99] for key, offsets in flushed.items()
    }
    rows = Rows(4)
    rows.offsets[0], rows.timestamps[0], rows.key_hashes[0], rows.count = 400, 400_000, 7, 1
    reopened.put_rows(rows, 0)
    assert next(reopened.select(7, 0, 2**40)) == 400


@given(st.binary(max_size=60), st.integers(0, 8))
def test_the_nth_record_of_any_bytes_is_the_references_or_an_error(section: bytes, index: int) -> None:
    found = [place_or_none(routines, section, index) for routines in WALKS]
    expected = place_or_none(reference, section, index)
    assert found[0] == found[1]
    assert found[0] in (None, expected), "the reference leaves what goes beyond the end to the reader of the record"


def place_or_none(routines: ModuleType, section: bytes, index: int) -> tuple[int, int] | None:
    try:
        span: tuple[int, int] = routines.find_nth_record(section, index)
    except InvalidRecordError:
        return None
    return span


def test_the_nth_record_of_a_batch_is_found_alike() -> None:
    records = [Record(i, 1, b"k", bytes(i % 200)) for i in range(500)]
    (batch,) = iter_batches(bytes(build_batch(records)))
    assert isinstance(batch, RecordBatch)
    section = bytes(batch.uncompressed_section())
    for index in (0, 1, 150, 499):
        expected = reference.find_nth_record(section, index)
        assert [routines.find_nth_record(section, index) for routines in WALKS] == [expected, expected]
    assert [place_or_none(routines, section, 500) for routines in (reference, *WALKS)] == [None] * 3


def test_buffers_are_released() -> None:
    rows, chunk = Rows(10), bytearray(build_batch([Record(0, 1, b"k", b"v")]))
    for walks, puts in zip(WALKS, ENTRIES, strict=True):
        rows.count = 0
        walks.walk_chunk(rows, chunk, WANTED, 0)
        puts.put_entries(bytearray(80), rows, FileLayout(10, 10, 1, 0), 0, 1)
        puts.put_tags(rows, 0, 1)
        chunk.append(chunk.pop())  # raises BufferError while it is held
        for column in (rows.offsets, rows.timestamps, rows.key_hashes, rows.tag_hashes, rows.positions, rows.sizes):
            column.append(column.pop())
        rows.entries.append(rows.entries.pop())


def test_the_compiled_routines_serve_where_there_are_any() -> None:
    assert engine.walk_chunk is (walk if walk.IS_COMPILED else reference).walk_chunk
    assert engine.put_entries is (entries if entries.IS_COMPILED else reference).put_entries
    assert engine.match_records(b"", 0, MatchQuery(None, None, b"", 0, None, 0, 1)) == []
