"""Both engines take the same rows out of the same bytes and put the same entries."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import DEPTH
from tidelog.log.find import filtering, index_file, lookup
from tidelog.log.find.consume_queue import ConsumeQueueFile
from tidelog.log.find.engine import reference
from tidelog.log.find.engine.calls import FindCalls
from tidelog.log.find.engine.engine import FindEngine
from tidelog.log.find.engine.kernel_group import FIND
from tidelog.log.find.engine.reference import Stop, Wanted
from tidelog.log.find.hashing import key_seed
from tidelog.log.find.index_file import IndexDamagedError, IndexFile
from tidelog.log.find.lookup import Query
from tidelog.log.find.rows import Rows
from tidelog.log.records.kernel_loader import load_array_kernels
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.errors import InvalidRecordError, KafkaStorageError
from tidelog.protocol.record.record_batch import (
    BatchOptions,
    EndTransactionMarker,
    Record,
    RecordBatch,
    build_batch,
    end_transaction_marker,
    iter_batches,
)

kernels = pytest.importorskip("tidelog.log.find.engine.kernel_calls", reason="no numba: pip install 'tidelog[kernels]'")
IMAGE: list[FindCalls] = []
load_array_kernels(FIND, lambda loaded: IMAGE.append(FindCalls(loaded)), lambda _: None).join()
ENGINES = [kernels, *IMAGE]
"""Numba's, and where the processor allows it an image of their machine code."""
WANTED = Wanted(key_seed("topic"), b"kind")

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


def walk_both(chunk: bytes, capacity: int = 100) -> tuple[Rows, reference.Walk]:
    plain = Rows(capacity)
    expected = reference.walk_chunk(plain, memoryview(chunk), WANTED, 1000)
    for engine in ENGINES:
        for form in (memoryview(chunk), memoryview(bytearray(chunk))):
            fast = Rows(capacity)
            assert engine.walk_chunk(fast, form, WANTED, 1000) == expected
            assert columns(fast) == columns(plain)
    return plain, expected


@given(batches(), st.integers(0, 400))
@settings(deadline=None)
def test_chunks_are_walked_alike(chunk: bytes, cut: int) -> None:
    walk_both(chunk)
    walk_both(chunk[: max(0, len(chunk) - cut)])


@given(batches(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_damaged_chunks_are_walked_alike(chunk: bytes, generator: random.Random) -> None:
    damaged = bytearray(chunk)
    for _ in range(min(3, len(damaged))):
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
    walk_both(bytes(damaged))


def test_a_batch_that_does_not_fit_stops_the_walk() -> None:
    chunk = bytes(build_batch([Record(i, 1, b"k", b"v") for i in range(5)]))
    rows, walk = walk_both(chunk, capacity=4)
    assert (walk.stop, walk.position, rows.count) == (Stop.FULL, 0, 0)


@given(batches(), st.integers(1, 20), st.integers(2, 30))
@settings(deadline=None, max_examples=40 * DEPTH)
def test_files_are_filled_alike(tmp_path_factory: pytest.TempPathFactory, chunk: bytes, slots: int, room: int) -> None:
    directory = tmp_path_factory.mktemp("files")
    rows = Rows(100)
    reference.walk_chunk(rows, memoryview(chunk), WANTED, 0)
    contents = []
    for name, engine in [("plain", reference), *((f"fast{n}", each) for n, each in enumerate(ENGINES))]:
        file = IndexFile.create(OsFileSystem(), str(directory / f"{name}.keys"), slots, room)
        first = rows.first_keyed(0, rows.count)
        begin = rows.timestamps[first] if first >= 0 else 0
        file.bounds = file.bounds._replace(begin_timestamp=begin)
        put = engine.put_entries(file, rows, 0, rows.count)
        base = rows.offsets[0] if rows.count else 0
        entries = bytes(rows.entries[: 20 * (put.next_entry - 1)])
        tag_room = 20 * (rows.offsets[rows.count - 1] - base + 1) if rows.count else 0
        rows.entries[:] = bytes(len(rows.entries))
        if 0 < tag_room <= len(rows.entries):
            engine.put_tags(rows, 0, rows.count)
        contents.append((put, bytes(file.data), entries, bytes(rows.entries)))
    assert all(content == contents[0] for content in contents)


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
    monkeypatch.setattr(index_file, "ENGINE", engine_with(None))  # writes through os.pwrite
    rows = Rows(100)
    for row in range(100):
        rows.offsets[row], rows.timestamps[row], rows.key_hashes[row] = row, 1000, row % 7
    file = IndexFile.create(OsFileSystem(), str(tmp_path / "file.keys"), 5, 200)
    rows.count = 50
    file.put_rows(rows, 0)
    before = bytes(file.data), file.count
    rows.count = 100
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full_disk)
        with pytest.raises(KafkaStorageError):
            file.put_rows(rows, 50)
    assert (bytes(file.data), file.count) == before
    assert file.put_rows(rows, 50) == 100
    assert list(file.select(3, 0, 2000)) == [row for row in reversed(range(100)) if row % 7 == 3]


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_entries_are_written_alike(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = random.Random(1).randbytes(100)
    monkeypatch.setattr(index_file, "_WRITE_BYTES", piece)
    written = []
    for number, calls in enumerate((None, *ENGINES)):
        monkeypatch.setattr(index_file, "ENGINE", engine_with(calls))
        path = tmp_path / str(number)
        path.write_bytes(b"before")
        with path.open("r+b") as file:
            index_file.write_entries(file.fileno(), str(path), memoryview(bytearray(content)), 3)
        written.append(path.read_bytes())
    assert written == [b"bef" + content] * len(written)


def test_a_write_that_fails_says_why_whoever_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full: Linux has it")
    for calls in (None, *ENGINES):
        monkeypatch.setattr(index_file, "ENGINE", engine_with(calls))
        with full.open("r+b", buffering=0) as file, pytest.raises(KafkaStorageError, match="No space left"):
            index_file.write_entries(file.fileno(), str(full), memoryview(bytearray(20)), 0)


def full_disk(*_: object) -> int:
    raise OSError(errno.ENOSPC, "no space left")


def test_little_work_loads_no_kernels() -> None:
    engine = FindEngine(load_after_bytes=1 << 40)
    chunk = bytes(build_batch([Record(0, 1, b"k", b"v")]))
    assert engine.walk_chunk(Rows(10), memoryview(chunk), WANTED, 0).stop is Stop.END
    assert engine.kernels is None


def test_slots_are_restored_alike(tmp_path: Path) -> None:
    from tidelog.log.find import rebuild as restoring

    generator = random.Random(5)
    rows = Rows(500)
    for row in range(500):
        rows.offsets[row], rows.timestamps[row] = 3 * row, generator.randrange(10**6)
        rows.key_hashes[row] = generator.randrange(40)
    rows.count = 500
    file = IndexFile.create(OsFileSystem(), str(tmp_path / "file.keys"), 7, 600)
    file.put_rows(rows, 0)
    whole = bytes(file.data)
    slots = slice(40, 40 + 4 * 7)
    for count in (501, 1, 2, 300):
        answers, contents = [], []
        for restore in (reference.restore_slots, restoring.restore_slots):
            file.data[slots] = bytes(4 * 7)
            answers.append(restore(file, count))
            contents.append(bytes(file.data))
        assert answers[0] == answers[1]
        assert answers[0].damaged_entry == 0
        assert contents[0] == contents[1]
        assert count < 501 or contents[0] == whole
    file.data[40 + 4 * 7 + 20 * 77] ^= 0x80
    for restore in (reference.restore_slots, restoring.restore_slots):
        file.data[slots] = bytes(4 * 7)
        assert restore(file, 501).damaged_entry == 77


def engine_with(calls: object) -> FindEngine:
    engine = FindEngine(load_after_bytes=1 << 60)
    if calls is not None:
        engine.use_kernels(calls)  # type: ignore[arg-type]
    return engine


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
    answers: list[object] = []
    for calls in (None, *ENGINES):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(filtering, "ENGINE", engine_with(calls))
            patch.setattr(filtering, "PLAIN_RECORDS", 0)
            try:
                answers.append(filtering._matching_places(batch, bytes(section), query))
            except (InvalidRecordError, UnicodeDecodeError) as error:
                answers.append(type(error))
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("min_offset", [0, 2500])
def test_long_chains_are_walked_alike(tmp_path: Path, min_offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(2)
    rows = Rows(5000)
    for row in range(5000):
        rows.offsets[row], rows.timestamps[row] = row, 1000 * row
        rows.key_hashes[row] = generator.choice((7, 7, 17, 3))
    rows.count = 5000
    file = IndexFile.create(OsFileSystem(), str(tmp_path / "file.keys"), 10, 6000)
    monkeypatch.setattr(index_file, "ENGINE", engine_with(None))
    file.put_rows(rows, 0)
    expected = list(file.select(7, 100_000, 4_000_000, min_offset))
    assert len(expected) > 500
    for calls in ENGINES:
        monkeypatch.setattr(index_file, "ENGINE", engine_with(calls))
        assert list(file.select(7, 100_000, 4_000_000, min_offset)) == expected
    for broken, what in ((4, "outside of its chain"), (16, "follows entry")):
        entry = 40 + 4 * 10 + 20 * 2000
        before = bytes(file.data[entry + broken : entry + broken + 4])
        file.data[entry + broken : entry + broken + 4] = b"\x7f\xff\xff\xff"
        for calls in (None, *ENGINES):
            monkeypatch.setattr(index_file, "ENGINE", engine_with(calls))
            with pytest.raises(IndexDamagedError, match=what):
                list(file.select(rows.key_hashes[1999], 0, 2**62))
        file.data[entry + broken : entry + broken + 4] = before


def test_the_nth_record_of_a_batch_is_found_alike() -> None:
    records = [Record(i, 1, b"k", bytes(i % 200)) for i in range(500)]
    (batch,) = iter_batches(bytes(build_batch(records)))
    assert isinstance(batch, RecordBatch)
    section = bytes(batch.uncompressed_section())
    for index in (0, 1, 150, 499):
        expected = lookup.nth_place(section, index)
        assert [engine.nth_place(section, index) for engine in ENGINES] == [expected] * len(ENGINES)
    assert [engine.nth_place(section, 500) for engine in ENGINES] == [(-1, -1)] * len(ENGINES)
