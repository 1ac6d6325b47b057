"""Reading past damage: records whose time does not fit a column, damaged batches near them, and files that a cleaner
swaps meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import tidelog
from tests.support.pipelines import NOW_MS, TOPIC_ID, DataDirectory, end_transaction, say_cleaned, write
from tidelog.pipeline.decode import past_damage
from tidelog.pipeline.decode.decode import Isolation, ReadOptions, read_slice
from tidelog.pipeline.decode.past_damage import Damage, read_past_damage
from tidelog.pipeline.errors import CorruptBatchError, DataLossError, MalformedTimestampError
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.plan import holes
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, SegmentSlice, plan
from tidelog.pipeline.plan.rows import LostRange
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import Record, build_batch, set_crc

BATCHES = 12
STRANGE_MS = 1 << 62
GROUPS = ((0, 1), (2, 3, 4), (5, 6), (7,))
"""Offsets of the batches of a closed segment."""


def records_of(offsets: tuple[int, ...], strange: int = -1, time_ms: int = STRANGE_MS) -> list[Record]:
    return [Record(o, time_ms if o == strange else NOW_MS, b"k", b"value %d" % o) for o in offsets]


def write_segments(data: DataDirectory, batches: Sequence[bytes | bytearray], following: int = 8) -> None:
    """Write a closed segment of these bytes, and an active one that begins at ``following``."""
    data.log("t")
    data.close()
    (data.path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(batches))
    (data.path / "t-0" / f"{following:020d}.log").write_bytes(build_batch(records_of((following,))))


def plan_of(data: DataDirectory, end: int = 9, bytes_per_task: int = 1 << 30) -> list[SegmentSlice]:
    directory = PartitionDirectory("t", TOPIC_ID, 0, str(data.path / "t-0"))
    return plan(ReadRequest((OffsetRange(directory, 0, end),), bytes_per_task))


def read(slices: list[SegmentSlice], **options: Any) -> tuple[list[int], list[Damage]]:
    """Return the offsets that were read, and the damage."""
    kept: list[Damage] = []
    batches = read_past_damage(slices, Columns(("offset", "timestamp")), ReadOptions(**options), kept.append)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()], kept


@pytest.mark.parametrize("strange", [2, 6, 10])
@pytest.mark.parametrize("damaged_byte", [70, 16], ids=["record", "magic"])
def test_a_strange_time_and_damage_in_one_segment(tmp_path: Path, strange: int, damaged_byte: int) -> None:
    """Damage after such a time ended the read with an error, and so did such a time shortly before damage."""
    data = DataDirectory(tmp_path / "data")
    data.log("t")
    batches = [
        build_batch([Record(number, (1 << 62) if number == strange else NOW_MS, b"k", b"value")])
        for number in range(BATCHES + 1)
    ]
    damaged = 8 if strange == 6 else 6
    batches[damaged][damaged_byte] ^= 0x40
    (data.path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(batches[:-1]))
    (data.path / "t-0" / f"{BATCHES:020d}.log").write_bytes(batches[-1])
    found = tidelog.scan(data.path, "t", columns=["offset", "timestamp"], skip_damage=True).read_all()
    # Without an index, nothing shows where the next batch begins after an impossible header.
    lost = {strange, damaged} if damaged_byte == 70 else {strange, *range(damaged, BATCHES)}
    assert found.column("offset").to_pylist() == [number for number in range(BATCHES + 1) if number not in lost]
    data.close()


@pytest.mark.parametrize("strange", range(8))
def test_all_records_around_a_strange_time_are_read(data: DataDirectory, strange: int) -> None:
    """The batches after it were reported as damaged: their offsets lie after the end of the part before it."""
    batches = [bytes(build_batch(records_of(offsets, strange))) for offsets in GROUPS]
    write_segments(data, batches)
    found, kept = read(plan_of(data))
    assert found == [offset for offset in range(9) if offset != strange]
    number = next(number for number, offsets in enumerate(GROUPS) if strange in offsets)
    assert [(one.offset, one.position, one.data) for one in kept] == [
        (strange, sum(map(len, batches[:number])), batches[number])
    ]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("strange", range(8))
def test_old_messages_around_a_strange_time_are_read(data: DataDirectory, magic: int, codec: int, strange: int) -> None:
    sets = [
        bytes(build_message_set(records_of(offsets, strange), MessageSetOptions(magic, codec))) for offsets in GROUPS
    ]
    write_segments(data, sets)
    found, kept = read(plan_of(data))
    lost = [strange] if magic else []  # magic 0 has no times
    assert found == [offset for offset in range(9) if offset not in lost]
    assert [one.offset for one in kept] == lost


def test_the_bytes_of_a_batch_are_given_once_for_all_its_strange_times(data: DataDirectory) -> None:
    """They were given with each of its records: a batch of 10,000 times in nanoseconds needed 10 GB."""
    batch = bytes(build_batch([record._replace(timestamp=NOW_MS * 10**6) for record in records_of(tuple(range(8)))]))
    write_segments(data, [batch])
    found, kept = read(plan_of(data))
    assert found == [8]
    assert [(one.offset, one.position, one.size) for one in kept] == [(o, 0, len(batch)) for o in range(8)]
    assert [one.data for one in kept] == [batch, *[b""] * 7]
    assert all(one.reason.endswith("in 64 bits; its batch is given with offset 0") for one in kept[1:])


def test_several_strange_times_in_and_around_a_batch(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_damage, "KEPT_BYTES", 100)  # less than two batches: the others are found later
    records = [record._replace(timestamp=-STRANGE_MS) for record in records_of(tuple(range(8)))]
    good = {1, 4, 6}
    batches = [
        build_batch([records[o]._replace(timestamp=NOW_MS) if o in good else records[o] for o in offsets])
        for offsets in GROUPS
    ]
    write_segments(data, batches)
    found, kept = read(plan_of(data))
    assert found == [1, 4, 6, 8]
    assert [one.offset for one in kept] == [0, 2, 3, 5, 7]


def test_records_of_aborted_transactions_have_no_strange_times(data: DataDirectory) -> None:
    """They were given to the caller, who reads committed records only."""
    log = data.log("t")
    options = {"producer_id": 4, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    write(log, [Record(0, NOW_MS, b"k", b"aborted")], **options)
    end_transaction(log, 4, commit=False)
    write(log, [Record(0, NOW_MS, b"k", b"committed")])
    data.close()
    path = data.path / "t-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    size = 12 + int.from_bytes(content[8:12], "big")
    last = size + 12 + int.from_bytes(content[size + 8 : size + 12], "big")
    for start, end in ((0, size), (last, len(content))):
        content[start + 27 : start + 35] = content[start + 35 : start + 43] = STRANGE_MS.to_bytes(8, "big")
        set_crc(content, start, end)
    path.write_bytes(content)
    found, kept = read(plan_of(data, 3), isolation=Isolation.READ_COMMITTED)
    assert (found, [one.offset for one in kept]) == ([], [2])
    found, kept = read(plan_of(data, 3))
    assert (found, [one.offset for one in kept]) == ([], [0, 2])


def test_a_batch_without_readable_records_after_a_strange_time_is_damage(data: DataDirectory) -> None:
    """Its checksum is right; the search for a time that is too early ended in an error that is not of the pipeline."""
    batches = [build_batch(records_of(offsets, 1, -STRANGE_MS)) for offsets in GROUPS]
    batches[2][61:] = b"\xff" * (len(batches[2]) - 61)
    set_crc(batches[2], 0, len(batches[2]))
    write_segments(data, batches)
    found, kept = read(plan_of(data))
    assert found == [0, 2, 3, 4, 7, 8]
    assert [one.offset for one in kept] == [1, 5]


@pytest.mark.parametrize(("start", "expected"), [(0, [5]), (5, [5]), (6, [5]), (7, []), (8, [])])
def test_damage_before_the_wanted_offsets_is_not_reported(data: DataDirectory, start: int, expected: list[int]) -> None:
    """A slice begins at an indexed batch before its first record. Each run of an export, which begins where the last
    one ended, reported the damage again."""
    batches = batches_with("checksum")
    write_segments(data, batches)
    directory = PartitionDirectory("t", TOPIC_ID, 0, str(data.path / "t-0"))
    found, kept = read(plan(ReadRequest((OffsetRange(directory, start, 9),))))
    assert found == [offset for offset in range(start, 9) if offset not in (5, 6)]
    assert [one.offset for one in kept] == expected


@pytest.mark.parametrize("damage", ["none", "checksum", "time"])
@pytest.mark.parametrize("offset", [0, 3, 4, 5, 7])
def test_holes_around_damage_are_lost_once(
    data: DataDirectory, damage: str, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before the damage of a slice were missing from the list."""
    monkeypatch.setattr(holes, "SAVE_PATIENCE_S", 0.0)
    offsets = (0, 3, 4, 5, 7)
    batches = [build_batch(records_of((one,), offset if damage == "time" else -1)) for one in offsets]
    if damage == "checksum":
        batches[offsets.index(offset)][70] ^= 0x40
    write_segments(data, batches)
    lost: list[LostRange] = []
    found, kept = read(plan_of(data), fail_on_data_loss=False, lost=lost)
    assert [one.offset for one in kept] == ([] if damage == "none" else [offset])
    assert found == [one for one in (*offsets, 8) if damage == "none" or one != offset]
    holes_of = {
        (1, 3): {0, 3},
        (6, 7): {5, 7},
    }  # and the batches beside them: with a damaged one, the damage names both
    expected = [hole for hole, beside in holes_of.items() if damage != "checksum" or offset not in beside]
    assert sorted((one.start, one.end) for one in lost) == expected


# ---- files that are swapped


def swapped_at_problem(monkeypatch: pytest.MonkeyPatch, swap: Callable[[], None]) -> None:
    """Swap files at the moment between a first problem and the look at its bytes."""
    swaps = [swap]

    def reading(*given: Any, **named: Any) -> Iterator[Any]:
        try:
            yield from read_slice(*given, **named)
        except (CorruptBatchError, MalformedTimestampError):
            if swaps:
                swaps.pop()()
            raise

    monkeypatch.setattr(past_damage, "read_slice", reading)


def put(path: Path, content: bytes) -> None:
    path.with_suffix(".swap").write_bytes(content)
    os.replace(path.with_suffix(".swap"), path)


PROBLEMS = pytest.mark.parametrize("problem", ["time", "early time", "checksum"])


def batches_with(problem: str) -> list[bytes]:
    """Build the batches with a problem in the third: that of offset 5 alone, or of offsets 5 and 6."""
    time_ms = {"time": STRANGE_MS, "early time": -STRANGE_MS}.get(problem, NOW_MS)
    batches = [build_batch(records_of(offsets, 5, time_ms)) for offsets in GROUPS]
    if problem == "checksum":
        batches[2][-2] ^= 1
    return [bytes(batch) for batch in batches]


@PROBLEMS
@pytest.mark.parametrize("is_swapped_before", [False, True])
@pytest.mark.parametrize("bytes_per_task", [1, 1 << 30])
def test_a_segment_that_was_swapped_is_read_past_its_problem(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch, problem: str, is_swapped_before: bool, bytes_per_task: int
) -> None:
    """The cleaner removes the first batch, and appends the next segment's. The old file's positions were used, or the
    read ended in an error."""
    batches = batches_with(problem)
    write_segments(data, batches)
    slices = plan_of(data, bytes_per_task=bytes_per_task)
    segment, following = (data.path / "t-0" / f"{base:020d}.log" for base in (0, 8))

    def swap() -> None:
        say_cleaned(data.path, 8)
        put(segment, b"".join(batches[1:]) + build_batch(records_of((8, 9))))
        put(following.with_name(f"{10:020d}.log"), b"")
        following.unlink()

    if is_swapped_before:
        swap()
    else:
        swapped_at_problem(monkeypatch, swap)
    found, kept = read(slices)
    gone = {5, 6} if problem == "checksum" else {5}
    # Of a first batch that the cleaner removed meanwhile, the records may have been read before.
    assert [offset for offset in found if offset > 1] == [offset for offset in range(2, 9) if offset not in gone]
    assert [(one.offset, one.position, one.data) for one in kept] == [(5, len(batches[1]), batches[2])]


@PROBLEMS
def test_a_segment_that_was_deleted_at_its_problem_is_lost(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    """FileNotFoundError was raised."""
    write_segments(data, batches_with(problem))
    slices = plan_of(data)
    segment = data.path / "t-0" / f"{0:020d}.log"
    swapped_at_problem(monkeypatch, lambda: os.rename(segment, f"{segment}.deleted"))
    with pytest.raises(DataLossError, match="were deleted while the query ran: the log begins at 8"):
        read(slices)
    os.rename(f"{segment}.deleted", segment)
    swapped_at_problem(monkeypatch, lambda: os.rename(segment, f"{segment}.deleted"))
    lost: list[LostRange] = []
    found, kept = read(slices, fail_on_data_loss=False, lost=lost)
    assert (found[-1], kept) == (8, [])
    assert lost[-1].end == 8
    assert set(found) | set(range(lost[-1].start, 8)) == set(range(9))


def test_a_hole_before_a_problem_of_swapped_segments_is_reported_once(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holes, "SAVE_PATIENCE_S", 0)
    batches = batches_with("checksum")
    write_segments(data, batches)
    slices = plan_of(data)
    put(data.path / "t-0" / f"{0:020d}.log", batches[0])
    put(data.path / "t-0" / f"{5:020d}.log", batches[2] + batches[3])
    lost: list[LostRange] = []
    found, kept = read(slices, fail_on_data_loss=False, lost=lost)
    assert (found, [one.offset for one in kept]) == ([0, 1, 7, 8], [5])
    assert [(one.start, one.end) for one in lost] == [(2, 5)]
