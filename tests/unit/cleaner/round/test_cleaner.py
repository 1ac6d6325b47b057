"""A cleaning round over real files: random logs against a dict model, and a test for each known pitfall. Compiled and
in plain Python."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.cleaning import NOW_MS, LogWriter, compacted, file_names, log_bytes, open_log, records_of, whole
from tests.support.depth import DEPTH
from tests.support.memory_directory import memory_place
from tidelog.cleaner.engine.batch_table import BASE_OFFSET
from tidelog.cleaner.engine.engine import ENGINE, Engine, ReferenceEngine
from tidelog.cleaner.errors import CleaningAbortedError, UnframedSegmentError
from tidelog.cleaner.log_to_clean import LogToClean
from tidelog.cleaner.round import segment_reader
from tidelog.cleaner.round.chunk import Reading
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions, CleanerStats, RoundHooks
from tidelog.cleaner.round.segment_reader import SegmentReader
from tidelog.cleaner.round.segment_writer import group_segments
from tidelog.log.check import check_directory
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import Record, RecordBatch, build_batch, set_crc

REFERENCE = ReferenceEngine()
SMALL = CleanerOptions(map_bytes=64 * 1024, io_buffer_bytes=1024)
#: Functions that say before each step whether a round may read ahead.
READS_AHEAD: list[Callable[[], bool]] = [lambda: True, lambda: False, cycle([True, False, False]).__next__]
DAY_MS = 86_400_000


def clean(
    log: UnifiedLog, engine: Engine = REFERENCE, *, first_dirty: int = 0, now_ms: int = NOW_MS, **options: Any
) -> CleanerStats:
    """Run one round over everything below the active segment."""
    return Cleaner(engine, options.pop("options", SMALL)).clean(whole(log, first_dirty), now_ms, **options)


@dataclass
class Model:
    """The expected records of a log: data records by offset, and records of aborted transactions apart."""

    live: dict[int, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    open: dict[int, list[int]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)

    def add(self, first: int, pairs: Iterable[tuple[bytes | None, bytes | None]], producer_id: int = -1) -> None:
        for offset, pair in enumerate(pairs, first):
            self.live[offset] = pair
            if producer_id >= 0:
                self.open.setdefault(producer_id, []).append(offset)

    def end(self, producer_id: int, *, commit: bool) -> None:
        offsets = self.open.pop(producer_id, [])
        if not commit:
            self.aborted.update(offsets)

    def after_cleaning(self, start: int, end: int, tail: int) -> dict[int, tuple[bytes | None, bytes | None]]:
        """Return the records left when [start, end) was cleaned; records from ``tail`` on are untouched."""
        latest = {
            key: offset
            for offset, (key, _) in sorted(self.live.items())
            if offset < end and offset not in self.aborted and key is not None
        }
        return {
            offset: (key, value)
            for offset, (key, value) in self.live.items()
            if offset >= tail or (key is not None and latest.get(key) == offset and offset not in self.aborted)
        }


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"", b"key of more than eight bytes"])
PAIRS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=30)), min_size=1, max_size=4)
APPEND = st.tuples(st.just("append"), PAIRS, st.sampled_from([0, 0, 1, 2, 3, 4]))
TRANSACTIONAL = st.tuples(st.just("transactional"), PAIRS, st.integers(1, 3))
END = st.tuples(st.just("end"), st.integers(1, 3), st.booleans())
ROLL = st.tuples(st.just("roll"))
CLEAN = st.tuples(st.just("clean"))
STEPS = st.lists(st.one_of(APPEND, APPEND, TRANSACTIONAL, END, ROLL, CLEAN), max_size=25)


def play(log: UnifiedLog, steps: list[Any], engine: Engine, options: CleanerOptions) -> None:
    """Run the steps; after each round the log must equal the model, and at the end as well."""
    writer, model, first_dirty = LogWriter(log), Model(), 0
    for step in [*steps, ("roll",), ("clean",)]:
        if step[0] == "append":
            model.add(writer.append(step[1], compression=step[2]), step[1])
        elif step[0] == "transactional":
            model.add(writer.transactional(step[2], step[1]), step[1], step[2])
        elif step[0] == "end":
            writer.end(step[1], commit=step[2])
            model.end(step[1], commit=step[2])
        elif step[0] == "roll":
            writer.roll()
        else:
            cleanable = whole(log, first_dirty)
            end = cleanable.first_uncleanable_offset
            Cleaner(engine, options).clean(cleanable, NOW_MS)
            model.live = model.after_cleaning(first_dirty, end, end)
            first_dirty = end
            found = {record.offset: (record.key, record.value) for record in records_of(log)}
            assert found == model.live
    assert check_directory(log.environment.file_system, log.directory) == []


@pytest.fixture(params=[REFERENCE, ENGINE], ids=["reference", "as built"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    return request.param  # type: ignore[no-any-return]


@settings(max_examples=60 * DEPTH, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_a_random_log_keeps_the_records_of_the_model(engine: Engine, steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory(dir=memory_place()) as directory:
        log = open_log(Path(directory), compacted(segment_bytes=600))
        play(log, steps, engine, SMALL)
        log.close()


@settings(max_examples=40 * DEPTH, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_map_of_few_keys_gives_the_same_through_hash_ranges(engine: Engine, steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory(dir=memory_place()) as directory:
        log = open_log(Path(directory), compacted(segment_bytes=600))
        play(log, steps, engine, CleanerOptions(map_bytes=64, io_buffer_bytes=1024))
        log.close()


@pytest.mark.parametrize("half", [1, 2])
@settings(max_examples=20 * DEPTH, deadline=None)
@given(steps=STEPS)
def test_engines_leave_equal_bytes(half: int, steps: list[Any]) -> None:
    """In two halves, because one test may take a second at most."""
    contents = []
    as_built = [(ENGINE, replace(SMALL, reads_ahead=rule)) for rule in READS_AHEAD]
    for engine, options in ((REFERENCE, SMALL), *as_built):
        with tempfile.TemporaryDirectory(dir=memory_place()) as directory:
            log = open_log(Path(directory), compacted(segment_bytes=600))
            play(log, steps, engine, options)
            indices = [
                (Path(segment.offset_index.path).read_bytes(), Path(segment.time_index.path).read_bytes())
                for segment in list(log.segments)[:-1]
            ]
            contents.append(([segment.base_offset for segment in log.segments], log_bytes(log), indices))
            log.close()

    assert all(content == contents[0] for content in contents)


def filled(directory: Path, *segments: Sequence[tuple[bytes | None, bytes | None]], **config: Any) -> UnifiedLog:
    """Write one batch of single records per list entry, one closed segment per list."""
    log = open_log(directory, compacted(**config))
    writer = LogWriter(log)
    for pairs in segments:
        for pair in pairs:
            writer.append([pair])
        writer.roll()
    return log


def keys_of(log: UnifiedLog) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.key) for record in records_of(log)]


def test_segment_with_nothing_to_drop_is_left_alone(tmp_path: Path, engine: Engine) -> None:
    value = b"v" * 400
    log = filled(
        tmp_path, [(b"a", value), (b"b", value)], [(b"c", value), (b"c", value)], [(b"d", value)], segment_bytes=1000
    )
    before = list(log.segments)

    stats = clean(log, engine)

    after = list(log.segments)
    assert after[0] is before[0]
    assert after[1] is not before[1]
    assert stats.bytes_written < before[1].size
    assert (stats.groups_unchanged, stats.groups_rewritten) == (2, 1)


def test_untouched_batches_keep_their_bytes(tmp_path: Path, engine: Engine) -> None:
    log = open_log(tmp_path)
    writer = LogWriter(log)
    writer.append([(b"a", b"1"), (b"b", b"2")], compression=4)
    writer.append([(b"c", b"3")])
    writer.append([(b"c", b"4"), (b"e", b"5")], compression=2)
    writer.roll()
    batches = [bytes(batch.view()) for batch in iter_batches(log_bytes(log))]

    clean(log, engine)

    assert [bytes(batch.view()) for batch in iter_batches(log_bytes(log))] == [batches[0], batches[2]]


def test_changed_batch_keeps_codec_offsets_and_sequence(tmp_path: Path, engine: Engine) -> None:
    for codec in range(5):
        directory = tmp_path / str(codec)
        directory.mkdir()
        log = open_log(directory)
        writer = LogWriter(log)
        pairs = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
        writer.append(pairs, compression=codec, producer_id=7, producer_epoch=1, base_sequence=0)
        writer.append([(b"b", b"4")])
        writer.roll()

        clean(log, engine)

        batch = next(iter_batches(log_bytes(log)))
        assert isinstance(batch, RecordBatch)
        assert batch.is_valid()
        assert (batch.compression_type, batch.base_offset, batch.last_offset) == (codec, 0, 2)
        assert (batch.base_sequence, batch.last_sequence, batch.record_count) == (0, 2, 2)
        assert [record.offset for record in batch.records()] == [0, 2]


def test_tombstone_gets_a_horizon_and_goes_when_it_has_passed(tmp_path: Path, engine: Engine) -> None:
    log = filled(tmp_path, [(b"a", b"1")], [(b"a", None)], [(b"b", b"2")])
    times = {record.offset: record.timestamp for record in records_of(log)}

    clean(log, engine)
    first = next(iter_batches(log_bytes(log)))
    assert keys_of(log) == [(1, b"a"), (2, b"b")]
    assert first.delete_horizon_ms == NOW_MS + DAY_MS
    assert {record.offset: record.timestamp for record in records_of(log)} == {1: times[1], 2: times[2]}

    clean(log, engine, first_dirty=3, now_ms=NOW_MS + DAY_MS - 1)
    assert keys_of(log) == [(1, b"a"), (2, b"b")]
    stats = clean(log, engine, first_dirty=3, now_ms=NOW_MS + DAY_MS)
    assert keys_of(log) == [(2, b"b")]
    assert stats.tombstones_dropped == 1


def test_horizon_that_is_set_is_not_moved(tmp_path: Path, engine: Engine) -> None:
    log = filled(tmp_path, [(b"a", None), (b"b", b"1")], [(b"c", b"2")])
    clean(log, engine)
    before = log_bytes(log)

    clean(log, engine, now_ms=NOW_MS + 1000)

    assert log_bytes(log) == before


@pytest.mark.parametrize("timestamp", [0, -1, 2**63 - 1])
def test_horizon_keeps_any_timestamp(tmp_path: Path, engine: Engine, timestamp: int) -> None:
    log = open_log(tmp_path, compacted(message_timestamp_after_max_ms=2**63 - 1))
    records = build_batch([Record(0, timestamp, b"a", None), Record(1, 5, b"b", b"v")])
    log.append_as_leader(memoryview(records), leader_epoch=0)
    log.update_high_watermark(2)
    log.roll()

    clean(log, engine)

    assert [record.timestamp for record in records_of(log)] == [timestamp, 5]


def test_aborted_records_go_and_supersede_nothing(tmp_path: Path, engine: Engine) -> None:
    log = open_log(tmp_path)
    writer = LogWriter(log)
    writer.append([(b"a", b"committed")])
    writer.transactional(1, [(b"a", b"aborted")])
    writer.end(1, commit=False)
    writer.transactional(2, [(b"b", b"committed")])
    writer.end(2, commit=True)
    writer.roll()

    clean(log, engine)

    assert [(record.key, record.value) for record in records_of(log)] == [(b"a", b"committed"), (b"b", b"committed")]
    assert [record.offset for record in records_of(log, control=True)] == [2, 4]


def test_marker_goes_after_its_records_and_its_horizon(tmp_path: Path, engine: Engine) -> None:
    log = open_log(tmp_path)
    writer = LogWriter(log)
    writer.transactional(1, [(b"a", b"aborted")])
    writer.end(1, commit=False)
    writer.transactional(1, [(b"z", b"last sequence of the producer")], epoch=1)
    writer.end(1, commit=True, epoch=1)
    writer.append([(b"b", b"1")])
    writer.roll()

    clean(log, engine)  # the aborted batch goes
    assert log.collect_aborted_transactions(0, 10)[0].last_offset == 1
    clean(log, engine, first_dirty=5)  # nothing is left of its transaction: the marker gets a horizon
    marker = next(batch for batch in iter_batches(log_bytes(log)) if batch.is_control)
    assert (marker.base_offset, marker.delete_horizon_ms) == (1, NOW_MS + DAY_MS)
    clean(log, engine, first_dirty=5, now_ms=NOW_MS + DAY_MS)

    assert [record.offset for record in records_of(log, control=True)] == [3]
    assert log.collect_aborted_transactions(0, 10) == []


def test_last_batch_of_a_producer_stays_when_emptied(tmp_path: Path, engine: Engine) -> None:
    log = open_log(tmp_path)
    writer = LogWriter(log)
    writer.append([(b"a", b"1")], producer_id=9, producer_epoch=0, base_sequence=0)
    writer.append([(b"a", b"2")], producer_id=9, producer_epoch=0, base_sequence=1)
    writer.append([(b"a", b"3")])
    writer.roll()

    clean(log, engine)

    batches = [batch for batch in iter_batches(log_bytes(log)) if isinstance(batch, RecordBatch)]
    assert [(b.base_offset, b.record_count, b.last_sequence) for b in batches] == [(1, 0, 1), (2, 1, -1)]
    assert all(batch.is_valid() for batch in batches)
    clean(log, engine, first_dirty=3)
    assert len(list(iter_batches(log_bytes(log)))) == 2


def test_last_offset_of_the_range_stays_as_an_empty_batch(tmp_path: Path, engine: Engine) -> None:
    log = open_log(tmp_path)
    writer = LogWriter(log)
    writer.append([(b"a", b"1")])
    writer.transactional(1, [(b"b", b"2")])
    writer.roll()
    writer.end(1, commit=False)
    writer.roll()

    clean(log, engine)

    assert next(iter(list(iter_batches(log_bytes(log)))[::-1])).last_offset == 2


def corrupt(log: UnifiedLog, segment_index: int, position: int, value: int) -> None:
    path = log.segments[segment_index].records.path
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(bytes([value]))


def test_poison_batch_is_kept_as_bytes_and_reported(tmp_path: Path, engine: Engine) -> None:
    log = filled(tmp_path, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    size = log.segments[0].size // 3
    corrupt(log, 0, size - 3, 0xEE)  # in the first batch
    poison = log.segments[0].records.read_at(0, size)

    stats = clean(log, engine)

    assert log_bytes(log)[:size] == poison
    assert stats.unreadable_batches == 1
    assert str(stats.unreadable[0]) == "segment 0, byte 0, offset 0: its checksum is wrong"
    assert [key for _, key in keys_of_valid(log)] == [b"b", b"a"]


def keys_of_valid(log: UnifiedLog) -> list[tuple[int, bytes | None]]:
    batches = [batch for batch in iter_batches(log_bytes(log)) if batch.is_valid()]
    return [(record.offset, record.key) for batch in batches for record in batch.records()]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_batch_that_does_not_decompress_is_kept_as_bytes(tmp_path: Path, engine: Engine, codec: int) -> None:
    log = open_log(tmp_path)
    writer = LogWriter(log)
    writer.append([(b"a", b"1" * 300)], compression=codec)
    first = log.segments.active.size
    writer.append([(b"a", b"2")])
    writer.roll()
    data = bytearray(log.segments[0].records.read_at(0, first))
    data[61:] = b"\xee" * len(data[61:])
    set_crc(data, 0, len(data))
    Path(log.segments[0].records.path).write_bytes(bytes(data) + log.segments[0].records.read_at(first, 10_000))

    stats = clean(log, engine)

    assert log_bytes(log)[:first] == bytes(data)
    assert "it cannot be decompressed" in stats.unreadable[0].reason


def test_bomb_is_kept_as_bytes(tmp_path: Path, engine: Engine) -> None:
    log = open_log(tmp_path)
    LogWriter(log).append([(b"a", b"0" * 500_000)], compression=4)
    LogWriter(log).append([(b"a", b"1")])
    log.roll()

    stats = clean(log, engine, options=CleanerOptions(64 * 1024, 1024, max_decompressed_bytes=100_000))

    assert stats.unreadable_batches == 1
    assert len(records_of(log)) == 2


@pytest.mark.parametrize("first_dirty", [0, 3])
def test_segment_without_frames_is_left_alone_and_the_rest_cleaned(
    tmp_path: Path, engine: Engine, first_dirty: int
) -> None:
    log = filled(tmp_path, [(b"a", b"1")], [(b"a", b"2"), (b"b", b"3")], [(b"a", b"4")], [(b"c", b"5"), (b"c", b"6")])
    broken = log.segments[1]
    corrupt(log, 1, broken.size // 2 + 8, 0x7F)  # the second batch's length
    content = Path(broken.records.path).read_bytes()

    stats = clean(log, engine, first_dirty=first_dirty)

    assert broken in log.segments
    assert Path(broken.records.path).read_bytes() == content
    assert [segment.base_offset for segment in log.segments][:3] == [0, 1, 3]
    assert "the segment is not cleaned" in stats.unreadable[0].reason
    left = [(r.offset, r.key) for s in log.segments if s is not broken
            for batch in iter_batches(s.records.read_at(0, s.size)) for r in batch.records()]  # fmt: skip
    assert left[-2:] == [(3, b"a"), (5, b"c")]


def test_keyless_record_is_dropped_and_counted(tmp_path: Path, engine: Engine) -> None:
    log = open_log(tmp_path, compacted(cleanup_policy="delete"))
    LogWriter(log).append([(None, b"1"), (b"a", b"2")])
    log.roll()
    log.update_config(compacted())

    stats = clean(log, engine)

    assert keys_of(log) == [(1, b"a")]
    assert stats.keyless_records == 1


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("offset", [-5, 5, 2**40])
def test_old_message_with_an_impossible_offset_stays_as_it_is(
    tmp_path: Path, engine: Engine, codec: int, offset: int
) -> None:
    log = open_log(tmp_path, compacted(message_format_version="0.10.2"))
    options = MessageSetOptions(magic=1, compression=codec)
    for key in (b"a", b"b", b"a"):
        message = build_message_set([Record(0, NOW_MS, key, b"1")], options)
        log.append_as_leader(memoryview(bytearray(message)), leader_epoch=0)
    log.update_high_watermark(3)
    log.roll()
    path = Path(log.segments.first.records.path)
    stored = bytearray(path.read_bytes())
    second = 12 + int.from_bytes(stored[8:12], "big")
    stored[second : second + 8] = offset.to_bytes(8, "big", signed=True)  # no checksum covers an offset
    path.write_bytes(stored)

    stats = clean(log, engine)

    assert [batch.reason for batch in stats.unreadable] == ["its offsets or record count are impossible"]
    assert stored[second : second + len(stored) // 3] in log_bytes(log)
    assert keys_of(log)[-1] == (2, b"a")


@pytest.mark.parametrize("codec", [0, 1])
def test_two_damaged_old_messages_in_a_row_both_stay(tmp_path: Path, engine: Engine, codec: int) -> None:
    log = open_log(tmp_path, compacted(message_format_version="0.10.2"))
    options = MessageSetOptions(magic=1, compression=codec)
    for key in (b"a", b"b", b"c", b"a"):
        message = build_message_set([Record(0, NOW_MS, key, b"1")], options)
        log.append_as_leader(memoryview(bytearray(message)), leader_epoch=0)
    log.update_high_watermark(4)
    log.roll()
    path = Path(log.segments.first.records.path)
    stored = bytearray(path.read_bytes())
    size = 12 + int.from_bytes(stored[8:12], "big")
    for start in (size, 2 * size):
        stored[start : start + 8] = (2**40).to_bytes(8, "big")
    path.write_bytes(stored)

    stats = clean(log, engine)

    assert stats.unreadable_batches == 2
    assert bytes(stored[size : 3 * size]) in log_bytes(log)


def test_a_length_that_claims_the_rest_of_the_segment_gets_no_memory(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reader, "LARGE_CLAIM_BYTES", 4096)
    log = filled(tmp_path, [(b"a", b"v" * 3000)] * 30)
    segment = log.segments.first
    corrupt(log, 0, 9, 1)  # the length: 65,536 bytes more
    reader = SegmentReader(engine, 1024, 1 << 20)

    with pytest.raises(UnframedSegmentError, match="no batch begins at byte 0"):
        list(reader.steps(Reading(segment, 2**31, 0, (0, segment.size))))
    reader.close()

    assert len(reader.buffer) < 2048


@pytest.mark.parametrize("magic", [1, 2])
def test_a_large_batch_is_read(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, magic: int) -> None:
    monkeypatch.setattr(segment_reader, "LARGE_CLAIM_BYTES", 4096)
    log = open_log(tmp_path, compacted(message_format_version="0.10.2") if magic == 1 else None)
    if magic == 1:
        message = build_message_set([Record(0, NOW_MS, b"a", b"v" * 70_000)], MessageSetOptions(magic=1))
        log.append_as_leader(memoryview(bytearray(message)), leader_epoch=0)
    else:
        LogWriter(log).append([(b"a", b"v" * 70_000)])
    reader = SegmentReader(engine, 1024, 1 << 20)

    rows = list(reader.steps(Reading(log.segments.first, 2**31, 0, (0, log.segments.first.size))))
    reader.close()

    assert rows == [(0, 1)]
    assert len(reader.buffer) > 70_000


def test_old_messages_far_from_each_other_become_batches_of_their_own(tmp_path: Path, engine: Engine) -> None:
    log = open_log(tmp_path, compacted(message_format_version="0.10.2"))
    for key in (b"a", b"b"):
        message = build_message_set([Record(0, NOW_MS, key, b"1")], MessageSetOptions(magic=1))
        log.append_as_leader(memoryview(bytearray(message)), leader_epoch=0)
    reader = SegmentReader(engine, 1024, 1 << 20)
    path = Path(log.segments.first.records.path)
    stored = bytearray(path.read_bytes())
    far = len(stored) // 2
    stored[far : far + 8] = (2**32).to_bytes(8, "big")
    path.write_bytes(stored)

    rows = list(reader.steps(Reading(log.segments.first, 2**33, 0, (0, len(stored)))))
    reader.close()

    assert rows == [(0, 2)]
    assert reader.table[:2, BASE_OFFSET].tolist() == [0, 2**32]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_old_message_sets_become_version_2(tmp_path: Path, engine: Engine, magic: int, codec: int) -> None:
    version = {0: "0.9.0", 1: "0.10.2"}[magic]
    log = open_log(tmp_path, compacted(message_format_version=version))
    keys = [b"a", b"b", b"a", b"c", b"c"]
    for number, key in enumerate(keys):
        records = [Record(0, NOW_MS - 10 + number, key, b"%d" % number)]
        log.append_as_leader(
            memoryview(bytearray(build_message_set(records, MessageSetOptions(magic=magic, compression=codec)))),
            leader_epoch=0,
        )
    log.update_high_watermark(5)
    log.roll()
    before = {record.offset: record for record in records_of(log)}

    clean(log, engine)

    after = records_of(log)
    assert [record.offset for record in after] == [1, 2, 4]
    assert after == [before[offset] for offset in (1, 2, 4)]
    batches = list(iter_batches(log_bytes(log)))
    assert {batch.magic for batch in batches} == {2}
    assert {batch.compression_type for batch in batches} == {codec}
    assert all(batch.is_valid() for batch in batches)


def test_batch_larger_than_the_buffer_is_read_whole(tmp_path: Path, engine: Engine) -> None:
    log = filled(tmp_path, [(b"a", b"1" * 30_000), (b"b", b"2" * 40_000), (b"a", b"3" * 50_000)])

    clean(log, engine)

    assert keys_of(log) == [(1, b"b"), (2, b"a")]


def test_segments_merge_up_to_segment_bytes(tmp_path: Path, engine: Engine) -> None:
    log = filled(tmp_path, *[[(b"k%d" % n, b"v" * 100), (b"same", b"v" * 100)] for n in range(10)])

    clean(log, engine)

    assert len(log.segments) == 2
    assert len(records_of(log)) == 11


def test_group_never_spans_more_than_31_bits_of_offsets(tmp_path: Path, engine: Engine) -> None:
    log = filled(tmp_path, [(b"a", b"1")], [(b"a", b"2")], [(b"b", b"3")])
    segments = list(log.segments)[:3]
    group = partial(group_segments, segments, max_index_bytes=10**9)

    assert group([1, 2**31, 2**31 + 1], set(), max_bytes=10**9) == [segments[:2], segments[2:]]
    assert group([1, 2, 3], {1}, max_bytes=10**9) == [segments[:1], segments[2:]]
    assert group([1, 2, 3], set(), max_bytes=1) == [[segment] for segment in segments]


def test_emptied_segment_stays_readable(tmp_path: Path, engine: Engine) -> None:
    log = filled(tmp_path, [(b"a", b"1" * 600)], [(b"a", b"2" * 600)], [(b"a", b"3" * 600)], segment_bytes=700)

    clean(log, engine)

    assert keys_of(log) == [(2, b"a")]
    reopened = open_log(tmp_path, compacted(segment_bytes=700))
    assert keys_of(reopened) == [(2, b"a")]


def test_dry_run_counts_and_changes_nothing(tmp_path: Path, engine: Engine) -> None:
    log = filled(tmp_path, [(b"a", b"1"), (b"a", b"2")], [(b"a", b"3")])
    names, before = file_names(log), log_bytes(log)

    stats = clean(log, engine, dry_run=True)

    assert (file_names(log), log_bytes(log)) == (names, before)
    assert (stats.records_before, stats.records_after, stats.bytes_written) == (3, 1, 0)
    assert stats.bytes_after < stats.bytes_before


def test_abort_leaves_old_segments_and_no_files(tmp_path: Path, engine: Engine) -> None:
    log = filled(tmp_path, [(b"a", b"%d" % n) for n in range(100)])
    names, before = file_names(log), log_bytes(log)
    for calls_left in range(1, 100):
        left = calls_left

        def check(_: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise CleaningAbortedError("stop")

        try:
            clean(log, engine, hooks=RoundHooks(check))
        except CleaningAbortedError:
            assert (file_names(log), log_bytes(log)) == (names, before)
        else:
            break
    assert keys_of(log) == [(99, b"a")]
    assert calls_left > 3


def test_segment_removed_during_the_round_is_not_brought_back(tmp_path: Path, engine: Engine) -> None:
    log = filled(tmp_path, [(b"a", b"1"), (b"a", b"2")], [(b"b", b"3")])
    done = False

    def check(_: int) -> None:
        nonlocal done
        if any(name.endswith(".cleaned") for name in os.listdir(log.directory)) and not done:
            done = True
            log.maybe_increment_log_start_offset(2)
            log.delete_old_segments(NOW_MS)

    with pytest.raises(CleaningAbortedError, match="removed during the round"):
        clean(log, engine, hooks=RoundHooks(check))

    assert done
    assert keys_of(log) == [(2, b"b")]
    assert not any(name.endswith((".cleaned", ".swap")) for name in file_names(log))


def test_progress_is_saved_after_each_group_of_the_dirty_section(tmp_path: Path, engine: Engine) -> None:
    value = b"v" * 600
    log = filled(tmp_path, *[[(b"a", value)] for _ in range(4)], segment_bytes=700)
    reported: list[int] = []

    clean(log, engine, first_dirty=2, hooks=RoundHooks(progress=reported.append))

    assert reported == [3, 4]


def test_index_entries_are_those_of_a_rebuild(tmp_path: Path, engine: Engine) -> None:
    log = filled(tmp_path, [(b"k%d" % (n % 150), b"v" * (n % 90)) for n in range(300)], index_interval_bytes=300)
    clean(log, engine)
    segment = log.segments[0]
    made = Path(segment.offset_index.path).read_bytes(), Path(segment.time_index.path).read_bytes()
    log.close()
    for path in (segment.offset_index.path, segment.time_index.path):
        os.unlink(path)

    log = open_log(tmp_path, compacted(index_interval_bytes=300))

    segment = log.segments[0]
    assert len(made[0]) > 80
    assert (Path(segment.offset_index.path).read_bytes(), Path(segment.time_index.path).read_bytes()) == made


def test_reader_with_the_old_file_reads_on(tmp_path: Path, engine: Engine) -> None:
    log = filled(tmp_path, [(b"a", b"1"), (b"a", b"2")])
    promised = log.segments[0].slice(0, log.segments[0].size)
    before = log.segments[0].records.read_at(0, promised.size)

    clean(log, engine)
    log.environment.deletions.run(everything=True)

    assert os.pread(promised.file.fileno(), promised.size, promised.position) == before
    promised.release()


def test_many_keys_read_every_byte_at_most_twice_and_write_it_once(tmp_path: Path, engine: Engine) -> None:
    pairs = [(b"%d" % (n * 7919 % 400), b"v") for n in range(600)]
    log = filled(tmp_path, pairs[:300], pairs[300:])
    size = sum(segment.size for segment in log.segments)

    stats = clean(log, engine, options=CleanerOptions(map_bytes=1024, io_buffer_bytes=4096))

    assert len(records_of(log)) == 400
    assert stats.spilled_bytes > 0
    assert size < stats.bytes_read <= 2 * size
    assert stats.bytes_written <= size
    assert stats.map_utilization == 1.0


def test_a_round_without_anything_to_clean_reads_nothing(tmp_path: Path, engine: Engine) -> None:
    log = open_log(tmp_path)

    stats = Cleaner(engine, SMALL).clean(LogToClean(log.topic_partition, log, 0, 0), NOW_MS)

    assert (stats.end_offset, stats.bytes_read) == (0, 0)
