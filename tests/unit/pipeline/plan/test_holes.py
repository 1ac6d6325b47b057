"""Offsets missing in the middle of a log: compacted ones are skipped, lost ones are reported, by every reader."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from tests.support.depth import DEPTH
from tests.support.pipelines import NOW_MS, TOPIC_ID, DataDirectory, fill, say_cleaned, write
from tidelog.log.files.checkpoints import CLEANER_OFFSET_FILE, write_offset_checkpoint
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.decode.decode import ReadOptions, read_slice
from tidelog.pipeline.errors import DataLossError
from tidelog.pipeline.files.batch_walk import headers
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.segment_files import SegmentFile, list_segments
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.jobs.audit import AuditRequest, PartitionAudit, audit
from tidelog.pipeline.jobs.export import ExportRequest, export
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.options import parse_options
from tidelog.pipeline.plan import holes
from tidelog.pipeline.plan.holes import Hole, checkpointed_below, marked_below
from tidelog.pipeline.plan.offsets import log_bounds
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, plan
from tidelog.pipeline.plan.rows import LostRange, SegmentSlice
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.pipeline.source.stream_reader import TidelogStreamReader
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

OFFSETS = Columns(("offset",))


@pytest.fixture(autouse=True)
def without_waiting_for_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holes, "SAVE_PATIENCE_S", 0.0)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    """Sixty batches of five records in at least three segments, of a broker that was stopped."""
    directory = DataDirectory(tmp_path / "data")
    fill(directory.log("t"), 60)
    directory.close()
    yield directory
    directory.close()


def place(data: DataDirectory) -> PartitionDirectory:
    return PartitionDirectory("t", TOPIC_ID, 0, str(data.path / "t-0"))


def segments_of(data: DataDirectory) -> list[SegmentFile]:
    return list_segments(place(data).path)


def remove(segment: SegmentFile) -> None:
    for suffix in (".log", ".index", ".timeindex", ".snapshot"):
        Path(segment.sibling(suffix)).unlink(missing_ok=True)


def remove_middle(data: DataDirectory) -> tuple[int, int]:
    """Remove the second segment; return the range of its offsets."""
    segments = segments_of(data)
    assert len(segments) >= 3
    remove(segments[1])
    return segments[1].base_offset, segments[2].base_offset


def cut_batches(segment: SegmentFile, first: int, count: int) -> tuple[int, int]:
    """Remove ``count`` batches from a file without another trace; return the range of their offsets."""
    with OpenSegment(segment.path) as file:
        found = list(headers(file, 0, file.size))
        gone = found[first : first + count]
        start, end = gone[0].position, gone[-1].position + gone[-1].size
        left = file.read_at(0, start) + file.read_at(end, file.size)
    Path(segment.path).write_bytes(left)
    for suffix in (".index", ".timeindex"):
        Path(segment.sibling(suffix)).unlink()
    return gone[0].base_offset, gone[-1].last_offset + 1


def plan_slices(data: DataDirectory, start: int = 0, end: int | None = None, **fields: Any) -> list[SegmentSlice]:
    end = log_bounds(place(data)).end if end is None else end
    return plan(ReadRequest((OffsetRange(place(data), start, end),), **fields))


def read(slices: list[SegmentSlice], **options: Any) -> list[int]:
    batches = (batch for piece in slices for batch in read_slice(piece, OFFSETS, options=ReadOptions(**options)))
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def audit_partition(data: DataDirectory) -> PartitionAudit:
    return audit(None, AuditRequest(data.source(), records=False)).partitions[0]


class TestASegmentIsGone:
    def test_missing_offsets_of_a_log_that_was_never_compacted_are_lost(self, data: DataDirectory) -> None:
        first, behind = remove_middle(data)
        expected = (
            rf"t-0: offsets {first} to {behind - 1} are missing between .*t-0/0{{20}}.log and .*t-0/{behind:020d}.log: "
            r"there is no .*cleaner-offset-checkpoint, so nothing says that they were compacted \(failOnDataLoss=false"
        )
        with pytest.raises(DataLossError, match=expected):
            plan_slices(data)

    def test_a_checkpoint_of_another_log_does_not_explain_missing_offsets(self, data: DataDirectory) -> None:
        remove_middle(data)
        say_cleaned(data.path, 1 << 40, "other")
        with pytest.raises(DataLossError, match=r"it was never compacted, .*cleaner-offset-checkpoint has no entry"):
            plan_slices(data)

    def test_missing_offsets_above_the_checkpoint_are_lost(self, data: DataDirectory) -> None:
        first, _ = remove_middle(data)
        say_cleaned(data.path, first)
        with pytest.raises(DataLossError, match=f"says that the log was compacted below offset {first} "):
            plan_slices(data)

    def test_missing_offsets_below_the_checkpoint_count_as_compacted(self, data: DataDirectory) -> None:
        first, behind = remove_middle(data)
        say_cleaned(data.path, behind)
        assert read(plan_slices(data)) == [*range(first), *range(behind, 300)]

    def test_a_damaged_checkpoint_explains_nothing(self, data: DataDirectory) -> None:
        remove_middle(data)
        (data.path / CLEANER_OFFSET_FILE).write_text("nonsense")
        with pytest.raises(DataLossError, match=r"nothing says that they were compacted: .*cleaner-offset-checkpoint"):
            plan_slices(data)

    def test_offsets_outside_the_requested_range_may_be_missing(self, data: DataDirectory) -> None:
        first, behind = remove_middle(data)
        assert read(plan_slices(data, 0, first)) == list(range(first))
        assert read(plan_slices(data, behind)) == list(range(behind, 300))
        with pytest.raises(DataLossError, match=f"offsets {first + 2} to {first + 2} are missing"):
            plan_slices(data, first + 2, first + 3)

    @pytest.mark.parametrize(
        "fields", [{}, {"min_partitions": 7}, {"max_records_per_partition": 11}, {"bytes_per_task": 700}]
    )
    def test_reading_continues_after_the_missing_offsets(
        self, data: DataDirectory, caplog: pytest.LogCaptureFixture, fields: dict[str, Any]
    ) -> None:  # fmt: skip
        first, behind = remove_middle(data)
        lost: list[LostRange] = []
        with caplog.at_level(logging.WARNING):
            slices = plan_slices(data, fail_on_data_loss=False, lost=lost, **fields)
        assert f"data loss: t-0: offsets {first} to " in caplog.text
        assert {offset for found in lost for offset in range(found.start, found.end)} == set(range(first, behind))
        caplog.clear()
        assert read(slices) == [*range(first), *range(behind, 300)]
        assert not caplog.records, "told once, by the driver"

    def test_a_segment_removed_during_a_query_is_lost(self, data: DataDirectory) -> None:
        slices = plan_slices(data)
        first, behind = remove_middle(data)
        with pytest.raises(DataLossError, match=f"offsets {first} to {behind - 1} are missing between"):
            read(slices)
        lost: list[LostRange] = []
        assert read(slices, fail_on_data_loss=False, lost=lost) == [*range(first), *range(behind, 300)]
        assert lost == [LostRange("t", 0, first, behind)]

    def test_two_missing_segments_in_a_row_are_one_range(self, tmp_path: Path) -> None:
        data = DataDirectory(tmp_path / "more")
        fill(data.log("t"), 120)
        data.close()
        segments = segments_of(data)
        for gone in segments[1:3]:
            remove(gone)
        first, behind = segments[1].base_offset, segments[3].base_offset
        with pytest.raises(DataLossError, match=f"offsets {first} to {behind - 1} are missing"):
            plan_slices(data)

    def test_a_missing_first_segment_is_no_hole(self, data: DataDirectory) -> None:
        segments = segments_of(data)
        remove(segments[0])
        assert log_bounds(place(data)).start == segments[1].base_offset


class TestBatchesAreGone:
    def test_batches_missing_within_a_file_are_lost(self, data: DataDirectory) -> None:
        first, behind = cut_batches(segments_of(data)[1], 2, 3)
        with pytest.raises(DataLossError, match=f"offsets {first} to {behind - 1} are missing in .*: there is no"):
            read(plan_slices(data))
        lost: list[LostRange] = []
        assert read(plan_slices(data), fail_on_data_loss=False, lost=lost) == [*range(first), *range(behind, 300)]
        assert lost == [LostRange("t", 0, first, behind)]

    @pytest.mark.parametrize("first_batch", [0, 7])
    def test_batches_missing_at_either_end_of_a_file_are_lost(self, data: DataDirectory, first_batch: int) -> None:
        segment = segments_of(data)[1]
        with OpenSegment(segment.path) as file:
            batches = len(list(headers(file, 0, file.size)))
        first, behind = cut_batches(segment, first_batch and batches - 1, 1)
        with pytest.raises(DataLossError, match=f"offsets {first} to {behind - 1} are missing"):
            read(plan_slices(data))

    def test_a_file_in_which_the_checkpoint_lies_was_cleaned_as_a_whole(self, data: DataDirectory) -> None:
        segment = segments_of(data)[1]
        first, behind = cut_batches(segment, 4, 2)
        say_cleaned(data.path, segment.base_offset + 1)
        assert read(plan_slices(data)) == [*range(first), *range(behind, 300)]
        say_cleaned(data.path, segment.base_offset)
        with pytest.raises(DataLossError):
            read(plan_slices(data))

    def test_missing_offsets_of_old_formats_are_lost(self, tmp_path: Path) -> None:
        from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set

        directory = tmp_path / "data" / "t-0"
        directory.mkdir(parents=True)
        sets = [
            build_message_set([Record(base + i, 5, b"k", b"v") for i in range(2)], MessageSetOptions(magic=1))
            for base in (0, 2, 4)
        ]
        (directory / f"{0:020d}.log").write_bytes(bytes(sets[0]) + bytes(sets[2]))
        there = PartitionDirectory("t", None, 0, str(directory))
        slices = plan(ReadRequest((OffsetRange(there, 0, 6),)))
        with pytest.raises(DataLossError, match="offsets 2 to 3 are missing"):
            read(slices)
        assert read(slices, fail_on_data_loss=False) == [0, 1, 4, 5]


class TestMarksOfACleaner:
    def test_a_later_batch_that_lacks_records_shows_compaction(self, data: DataDirectory) -> None:
        """A copy without checkpoint, a round that was killed before it saved one, a replica of a compacted leader."""
        first, behind = remove_middle(data)
        path = segments_of(data)[1].path
        content = Path(path).read_bytes()
        lacking = build_batch([Record(behind, NOW_MS, b"k", b"v")], BatchOptions(last_offset_delta=4))
        with OpenSegment(path) as file:
            rest = file.read_at(next(iter(headers(file, 0, file.size))).size, len(content))
        Path(path).write_bytes(bytes(lacking) + rest)
        Path(path.replace(".log", ".index")).unlink()
        assert marked_below(place(data).path, behind) == behind + 5
        assert read(plan_slices(data)) == [*range(first), behind, *range(behind + 5, 300)]
        assert audit_partition(data).total("lost_offsets") == 0

    def test_a_file_that_is_swapped_meanwhile_is_searched(
        self, data: DataDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It counted as a file without marks, so compacted offsets counted as lost."""
        path = Path(segments_of(data)[1].path)
        behind = segments_of(data)[1].base_offset
        path.write_bytes(build_batch([Record(behind, NOW_MS, b"k", b"v")], BatchOptions(last_offset_delta=4)))
        listings = iter([[SegmentFile(behind, f"{path}.swap")], segments_of(data)])
        monkeypatch.setattr(holes, "list_segments", lambda directory: next(listings))
        assert marked_below(place(data).path, behind) == behind + 5

    def test_a_log_that_was_never_cleaned_has_no_batch_that_lacks_records(self, data: DataDirectory) -> None:
        assert marked_below(place(data).path, 0) == 0
        assert marked_below(str(data.path / "not-there-0"), 0) == 0

    def test_damaged_files_have_no_batch_that_lacks_records(self, data: DataDirectory) -> None:
        for segment in segments_of(data):
            Path(segment.path).write_bytes(b"\xff" * 200)
        assert marked_below(place(data).path, 0) == 0


class TestALiveCleaner:
    def test_the_checkpoint_may_come_a_moment_after_the_swap(
        self, data: DataDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, behind = remove_middle(data)
        waits: list[float] = []

        def save(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                say_cleaned(data.path, behind)

        monkeypatch.setattr(holes, "SAVE_PATIENCE_S", 60.0)
        monkeypatch.setattr(time, "sleep", save)
        assert read(plan_slices(data)) == [*range(first), *range(behind, 300)]
        assert len(waits) == 3

    def test_planning_does_not_wait_for_a_checkpoint_if_files_are_old(
        self, data: DataDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        remove_middle(data)
        monkeypatch.setattr(holes, "SAVE_PATIENCE_S", 1e9)
        monkeypatch.setattr(holes, "RECENT_S", -1.0)
        with pytest.raises(DataLossError):
            plan_slices(data)

    def test_the_checkpoint_is_read_once_while_it_stays(self, data: DataDirectory) -> None:
        say_cleaned(data.path, 7)
        partition, directory = TopicPartition("t", 0), place(data).path
        assert [checkpointed_below(partition, directory) for _ in range(2)] == [7, 7]
        os.unlink(data.path / CLEANER_OFFSET_FILE)
        assert checkpointed_below(partition, directory) == 0
        entries = {partition: 123456789, TopicPartition("u", 0): 1}
        write_offset_checkpoint(OsFileSystem(), str(data.path / CLEANER_OFFSET_FILE), entries)
        assert checkpointed_below(partition, directory) == 123456789

    def test_few_checkpoints_are_remembered(self, data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(holes, "MAX_REMEMBERED", 2)
        for number in range(5):
            say_cleaned(data.path, 3)
            assert checkpointed_below(TopicPartition("t", 0), str(data.path / str(number) / "t-0")) == 0
        assert len(holes._CHECKPOINTS) <= 2


class TestStreams:
    def test_the_rest_of_a_log_is_searched_once_for_traces_of_a_cleaner(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each hole led to a search through all later headers, so a log with many holes took hours."""
        log = DataDirectory(tmp_path / "other").log("t")
        path = Path(log.directory) / f"{0:020d}.log"
        path.write_bytes(b"".join(build_batch([Record(2 * number, NOW_MS, b"k", b"v")]) for number in range(50)))
        searched: list[int] = []

        def search(directory: str, start: int, count: ReadCount | None = None) -> int:
            searched.append(start)
            return marked_below(directory, start, count)

        monkeypatch.setattr(holes, "marked_below", search)
        directory = PartitionDirectory("t", TOPIC_ID, 0, log.directory)
        slices = plan(ReadRequest((OffsetRange(directory, 0, 99),)))
        lost: list[LostRange] = []
        assert read(slices, fail_on_data_loss=False, lost=lost) == list(range(0, 99, 2))
        assert (len(lost), len(searched)) == (49, 1)

    def test_a_stream_reports_missing_offsets_within_a_batch(
        self, data: DataDirectory, caplog: pytest.LogCaptureFixture
    ) -> None:
        first, behind = remove_middle(data)
        options = {"path": str(data.path), "subscribe": "t"}
        reader = TidelogStreamReader(parse_options(options, streaming=True), OFFSETS)
        with pytest.raises(DataLossError, match=f"offsets {first} to {behind - 1} are missing between"):
            reader.partitions({"t": {"0": 0}}, {"t": {"0": 300}})
        reader = TidelogStreamReader(parse_options(options | {"failOnDataLoss": "false"}, streaming=True), OFFSETS)
        parts = reader.partitions({"t": {"0": 0}}, {"t": {"0": 300}})
        rows = [row for part in parts for batch in reader.read(part) for row in batch.column("offset").to_pylist()]
        assert rows == [*range(first), *range(behind, 300)]
        assert f"offsets {first} to {behind - 1} are missing" in caplog.text


class TestJobs:
    def test_audit_distinguishes_lost_offsets_from_compacted_ones(self, data: DataDirectory) -> None:
        first, behind = remove_middle(data)
        found = audit_partition(data)
        assert found.is_wrong
        assert (found.total("lost_offsets"), found.total("compacted_offsets")) == (behind - first, 0)
        say_cleaned(data.path, behind)
        found = audit_partition(data)
        assert not found.is_wrong
        assert (found.total("lost_offsets"), found.total("compacted_offsets")) == (0, behind - first)

    def test_audit_of_batches_that_are_gone(self, data: DataDirectory) -> None:
        segment = segments_of(data)[1]
        first, behind = cut_batches(segment, 4, 2)
        assert audit_partition(data).total("lost_offsets") == behind - first
        say_cleaned(data.path, segment.base_offset + 1)
        assert audit_partition(data).total("compacted_offsets") == behind - first

    def test_export_refuses_lost_offsets_and_records_accepted_ones(self, data: DataDirectory, tmp_path: Path) -> None:
        first, behind = remove_middle(data)
        inner = cut_batches(segments_of(data)[-1], 1, 1)
        request = ExportRequest(data.source(), str(tmp_path / "table"))
        with pytest.raises(DataLossError, match=f"offsets {first} to {behind - 1} are missing"):
            export(None, request)
        accepting = ExportRequest(data.source(), str(tmp_path / "table"), fail_on_data_loss=False)
        result = export(None, accepting)
        assert result.rows == 300 - (behind - first) - (inner[1] - inner[0])
        assert result.manifest.topics["t"].partitions[0].lost == ((first, behind), inner)
        assert not export(None, accepting).committed

    def test_export_refuses_batches_that_are_gone(self, data: DataDirectory, tmp_path: Path) -> None:
        first, behind = cut_batches(segments_of(data)[-1], 1, 1)
        with pytest.raises(Exception, match=f"offsets {first} to {behind - 1} are missing in"):
            export(None, ExportRequest(data.source(), str(tmp_path / "table")))


@pytest.mark.parametrize("appends", [(6, 10), (10, 14)])
@settings(deadline=None, max_examples=15 * DEPTH, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_missing_offset_is_reported_or_explained(
    tmp_path_factory: pytest.TempPathFactory, appends: tuple[int, int], draw: st.DataObject
) -> None:
    """Segments are taken away at random: plan and audit find the same offsets missing, and all of them."""
    data = DataDirectory(tmp_path_factory.mktemp("log") / "data", segment_bytes=1400)
    log, present = data.log("t"), set[int]()
    for _ in range(draw.draw(st.integers(*appends))):
        count = draw.draw(st.integers(1, 4))
        first = write(log, [Record(i, NOW_MS + i, b"k", b"v" * draw.draw(st.integers(1, 300))) for i in range(count)])
        present |= set(range(first, first + count))
    end = log.log_end_offset
    data.close()
    segments = segments_of(data)
    for segment in segments[1:-1]:
        if draw.draw(st.booleans()):
            following = min(other.base_offset for other in segments if other.base_offset > segment.base_offset)
            remove(segment)
            present -= set(range(segment.base_offset, following))
    clean = draw.draw(st.sampled_from([0, *(segment.base_offset for segment in segments)]))
    say_cleaned(data.path, clean)
    missing = {offset for offset in range(end) if offset not in present and offset >= clean}
    lost: list[LostRange] = []
    slices = plan_slices(data, fail_on_data_loss=False, lost=lost)
    assert read(slices, fail_on_data_loss=False, lost=lost) == sorted(present)
    reported = {offset for found in lost for offset in range(found.start, found.end) if offset not in present}
    assert {offset for offset in reported if offset >= clean} == missing
    assert audit_partition(data).total("lost_offsets") == len(reported)
    if missing:
        with pytest.raises(DataLossError):
            plan_slices(data)


def test_a_hole_names_the_files_around_it() -> None:
    one, two = SegmentFile(0, "/a/0.log"), SegmentFile(9, "/a/9.log")
    assert str(Hole(1, 2, one, two)) == "between /a/0.log and /a/9.log"
    assert str(Hole(1, 2, one, one)) == "in /a/0.log"
