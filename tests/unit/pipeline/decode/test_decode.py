"""Segment slices decoded to Arrow: every format and codec, transactions, filters; swapped, deleted, damaged files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.extensions import uncompiled
from tests.support.pipelines import TOPIC_ID, DataDirectory, end_transaction, fill, say_cleaned, write
from tidelog.log.files.checkpoints import write_partition_metadata
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.decode import arrow_rows, column_reader, columns
from tidelog.pipeline.decode.column_reader import ColumnReader
from tidelog.pipeline.decode.decode import Isolation, ReadOptions, read_blocks, read_slice
from tidelog.pipeline.decode.past_damage import Damage, read_past_damage
from tidelog.pipeline.errors import CorruptBatchError, DataLossError, MalformedTimestampError, TopicRecreatedError
from tidelog.pipeline.files.batch_walk import headers
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.plan.offsets import log_bounds
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, RowFilter, SegmentSlice, plan
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

pytest.importorskip("pyarrow")

ALL = Columns.default(headers=True)
Row = tuple[Any, ...]


UNCOMPILED = uncompiled(columns)


@pytest.fixture(params=["as built", "uncompiled"], autouse=True)
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "uncompiled":
        monkeypatch.setattr(column_reader, "columns", UNCOMPILED)
        monkeypatch.setattr(arrow_rows, "columns", UNCOMPILED)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    directory = DataDirectory(tmp_path / "data")
    yield directory
    directory.close()


def directory_of(data: DataDirectory, topic: str = "t", partition: int = 0) -> PartitionDirectory:
    return PartitionDirectory(topic, TOPIC_ID, partition, str(data.path / f"{topic}-{partition}"))


def slices_of(data: DataDirectory, start: int = 0, end: int | None = None, **fields: Any) -> list[SegmentSlice]:
    directory = directory_of(data)
    bounds = log_bounds(directory, read_committed=fields.pop("read_committed", False))
    end = bounds.last_stable if end is None else end
    return plan(ReadRequest((OffsetRange(directory, start, end),), **fields))


def rows_of(slices: list[SegmentSlice], wanted: Columns = ALL, **options: Any) -> list[Row]:
    found: list[Row] = []
    for piece in slices:
        for batch in read_slice(piece, wanted, options=ReadOptions(**options)):
            batch.validate(full=True)
            assert batch.num_rows
            assert batch.schema.equals(wanted.arrow_schema())
            columns = [column.cast("int64") if str(column.type).startswith("timestamp") else column for column in batch]
            found += zip(*(column.to_pylist() for column in columns), strict=True)
    return found


def row(record: Record, timestamp_type: int = 0) -> Row:
    headers = [{"key": name, "value": value} for name, value in record.headers] or None
    return (record.key, record.value, "t", 0, record.offset, record.timestamp * 1000, timestamp_type, headers)


@pytest.mark.parametrize("codec", range(5))
def test_records_of_every_codec_are_read(data: DataDirectory, codec: int) -> None:
    written = fill(data.log("t"), 40, compression=codec)
    assert rows_of(slices_of(data)) == [row(record) for record in written]


def test_nulls_empties_headers_and_append_time(data: DataDirectory) -> None:
    records = [
        Record(0, 1_000, None, None, (("a", b"1"), ("ä", None), ("a", b""))),
        Record(1, 2_000, b"", b"", ()),
        Record(2, -1, b"k" * 300, b"v" * 3000, (("", b"x" * 200),)),
    ]
    log = data.log("t")
    write(log, records)
    assert rows_of(slices_of(data)) == [row(record) for record in records]
    later = bytes(build_batch([Record(3, 7, b"k", b"v")], BatchOptions(log_append_time=99)))
    place = OpenSegment(slices_of(data)[0].path)
    place.close()
    with open(place.path, "ab") as file:
        file.write(later)
    assert rows_of(slices_of(data))[-1] == (b"k", b"v", "t", 0, 3, 99_000, 1, None)


def test_a_header_name_that_is_no_text_gets_replacement_characters(data: DataDirectory) -> None:
    good = bytes(build_batch([Record(0, 1, b"k", b"v", (("xy", b"1"), ("z", b"2")))]))
    data.log("t")
    section = bytearray(good)
    at = section.index(b"xy")
    section[at : at + 2] = b"\xff\xfe"
    from tidelog.protocol.record.record_batch import set_crc

    set_crc(section, 0, len(section))
    (data.path / "t-0" / f"{0:020d}.log").write_bytes(section)
    assert rows_of(slices_of(data))[0][7] == [{"key": "��", "value": b"1"}, {"key": "z", "value": b"2"}]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", range(4))
@pytest.mark.parametrize("append_time", [None, 77])
def test_old_message_sets(data: DataDirectory, magic: int, codec: int, append_time: int | None) -> None:
    data.log("t")
    records = [Record(n, 1000 + n if magic else -1, b"k%d" % n if n % 3 else None, b"v" * n) for n in range(30)]
    sets = [
        build_message_set(records[at : at + 10], MessageSetOptions(magic, codec, None, append_time if magic else None))
        for at in (0, 10, 20)
    ]
    (data.path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(sets))
    is_append_time = magic == 1 and append_time is not None
    expected = [
        row(record._replace(timestamp=77) if is_append_time else record, -1 if magic == 0 else int(is_append_time))
        for record in records
    ]
    assert rows_of(slices_of(data)) == expected
    assert rows_of(slices_of(data, 7, 23)) == expected[7:23]


def test_formats_and_codecs_mixed_in_one_segment(data: DataDirectory) -> None:
    data.log("t")
    records = [Record(n, n, b"k", b"v%d" % n) for n in range(60)]
    pieces = [
        build_message_set(records[:5], MessageSetOptions(0, 0)),
        build_message_set(records[5:10], MessageSetOptions(1, 1)),
        *(
            bytes(build_batch(records[at : at + 5], BatchOptions(compression=codec)))
            for at, codec in zip(range(10, 60, 5), [0, 4, 0, 0, 1, 2, 3, 0, 4, 4], strict=True)
        ),
    ]
    (data.path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(pieces))
    assert [found[1] for found in rows_of(slices_of(data))] == [record.value for record in records]


def test_any_range_of_offsets_is_read_with_tasks_of_any_size(data: DataDirectory) -> None:
    written = fill(data.log("t"), 60, compression=0)
    for start, end in [(0, 1), (3, 4), (7, 203), (100, 300), (299, 300), (0, 300)]:
        for size in (1, 500, 3000, 1 << 30):
            slices = slices_of(data, start, end, bytes_per_task=size)
            assert [found[4] for found in rows_of(slices, ALL)] == [r.offset for r in written[start:end]]
            assert [piece.start_offset for piece in slices[1:]] == [piece.end_offset for piece in slices[:-1]]


def test_aborted_and_open_transactions(data: DataDirectory) -> None:
    log = data.log("t")
    write(log, [Record(0, 1, None, b"plain")])
    for producer, commit in ((1, True), (2, False), (3, None)):
        for sequence in (0, 1):
            options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            write(log, [Record(0, 1, None, b"%d" % producer)], is_transactional=True, **options)
        if commit is not None:
            end_transaction(log, producer, commit=commit)
    write(log, [Record(0, 1, None, b"behind")])
    everything = rows_of(slices_of(data), Columns(("value",)))
    assert [found[0] for found in everything] == [b"plain", b"1", b"1", b"2", b"2", b"3", b"3", b"behind"]
    committed = rows_of(slices_of(data, read_committed=True), Columns(("value",)), isolation=Isolation.READ_COMMITTED)
    assert [found[0] for found in committed] == [b"plain", b"1", b"1"], (
        "up to the open transaction, without the aborted"
    )


def test_an_abort_is_found_without_its_transaction_index(data: DataDirectory) -> None:
    log = data.log("t")
    write(log, [Record(0, 1, None, b"x")], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    end_transaction(log, 1, commit=False)
    for path in (data.path / "t-0").glob("*.txnindex"):
        path.unlink()
    assert not rows_of(slices_of(data, read_committed=True), isolation=Isolation.READ_COMMITTED)


def test_rows_are_filtered_by_times_and_key(data: DataDirectory) -> None:
    written = fill(data.log("t"), 40)
    low, high = written[50].timestamp, written[120].timestamp
    wanted = RowFilter(low, high, b"key-3")
    found = rows_of(slices_of(data, row_filter=wanted), row_filter=wanted)
    assert found == [row(r) for r in written if low <= r.timestamp <= high and r.key == b"key-3"]


def test_columns_are_read_in_any_order(data: DataDirectory) -> None:
    written = fill(data.log("t"), 3)
    names = ("offset", "value", "partition")
    assert rows_of(slices_of(data), Columns(names)) == [(r.offset, r.value, 0) for r in written]


def test_large_batches_and_values_grow_the_buffers(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_reader, "CHUNK_BYTES", 300)
    monkeypatch.setattr(column_reader, "ARENA_BYTES", 400)
    monkeypatch.setattr(column_reader, "TABLE_ROWS", 4)
    written: list[Record] = []
    for codec in (0, 4, 1, 0):
        written += fill(data.log("t"), 3, records=30, compression=codec)
    write(data.log("t"), [Record(0, 5, b"k", bytes(2000))])
    found = rows_of(slices_of(data))
    assert found[:-1] == [row(record) for record in written]
    assert found[-1][1] == bytes(2000)


def test_blocks_have_as_many_rows_as_records(data: DataDirectory) -> None:
    written = fill(data.log("t"), 5)
    rows = sum(block.rows for piece in slices_of(data) for block in read_blocks(piece))
    assert rows == len(written)


class TestBesideALiveBroker:
    def test_bytes_after_the_last_whole_batch_are_ignored(self, data: DataDirectory) -> None:
        written = fill(data.log("t"), 3)
        path = slices_of(data)[-1].path
        for tail in (b"\x00", bytes(70), bytes(build_batch([Record(15, 1, b"k", b"v")]))[:-1]):
            size = os.path.getsize(path)
            with open(path, "ab") as file:
                file.write(tail)
            assert rows_of(slices_of(data)) == [row(record) for record in written]
            os.truncate(path, size)

    def test_a_torn_last_batch_ends_the_log(self, data: DataDirectory) -> None:
        fill(data.log("t"), 3)
        path = slices_of(data)[-1].path
        with open(path, "r+b") as file:
            file.seek(-3, os.SEEK_END)
            file.write(b"\xff\xff\xff")
        assert len(rows_of(slices_of(data))) == 10

    def test_a_segment_swapped_after_planning_is_found_by_its_offsets(self, data: DataDirectory) -> None:
        written = fill(data.log("t"), 60)
        slices = slices_of(data, bytes_per_task=700)
        assert len({piece.path for piece in slices}) > 2
        first, second = sorted({piece.path for piece in slices})[:2]
        kept = [record for record in written if record.offset % 5 in (0, 4)]
        middle = max(piece.end_offset for piece in slices if piece.path == first)
        end = max(piece.end_offset for piece in slices if piece.path == second)
        cleaned = b"".join(
            bytes(build_batch([a, b], BatchOptions(base_offset=a.offset)))
            for a, b in zip(kept[::2], kept[1::2], strict=True)
            if a.offset < end
        )
        Path(first + ".cleaned").write_bytes(cleaned)
        os.rename(first + ".cleaned", first)
        os.remove(first.replace(".log", ".index"))
        os.remove(second)
        expected = [record for record in written if record.offset >= end or record in kept]
        assert 0 < middle < end
        assert rows_of(slices) == [row(record) for record in expected]

    def test_deleted_segments_are_loss_or_left_out(self, data: DataDirectory) -> None:
        written = fill(data.log("t"), 60)
        slices = slices_of(data)
        gone = slices[0]
        os.rename(gone.path, gone.path + ".deleted")
        with pytest.raises(DataLossError, match=f"t-0: records from 0 to {gone.end_offset - 1} were deleted"):
            rows_of(slices)
        found = rows_of(slices, fail_on_data_loss=False)
        assert found == [row(record) for record in written if record.offset >= gone.end_offset]

    def test_an_open_file_is_read_after_its_name_was_removed(self, data: DataDirectory) -> None:
        written = fill(data.log("t"), 10)
        piece = slices_of(data)[0]
        with OpenSegment(piece.path) as file:
            os.remove(piece.path)
            rows = sum(block.rows for block in ColumnReader(piece, file).blocks())
        assert rows == len([record for record in written if record.offset < piece.end_offset])

    @pytest.mark.parametrize("batches_gone", [1, 3])
    def test_a_new_file_with_the_old_inode_is_another_file(self, data: DataDirectory, batches_gone: int) -> None:
        """File systems give a deleted file's inode to the next one: here one inode gets what a cleaner left."""
        written = fill(data.log("t"), 60)
        pieces = slices_of(data)
        with OpenSegment(pieces[0].path) as file:
            starts = [header.position for header in headers(file, 0, file.size)]
            first = next(headers(file, starts[batches_gone], file.size)).base_offset
            left = file.read_at(starts[batches_gone], file.size)
        inode = os.stat(pieces[0].path).st_ino
        Path(pieces[0].path).write_bytes(left)
        assert os.stat(pieces[0].path).st_ino == inode
        say_cleaned(data.path, first)
        assert rows_of(pieces) == [row(record) for record in written if record.offset >= first]

    def test_a_topic_that_was_created_again_is_an_error(self, data: DataDirectory) -> None:
        fill(data.log("t"), 3)
        slices = slices_of(data)
        data.close()
        shutil.rmtree(data.path / "t-0")
        fill(data.log("t", topic_id=bytes(range(1, 17))), 3)
        write_partition_metadata(OsFileSystem(), str(data.path / "t-0"), bytes(range(1, 17)))
        with pytest.raises(TopicRecreatedError, match="topic t was deleted and created again"):
            rows_of([replace(piece, inode=1) for piece in slices])

    def test_an_active_segment_with_the_old_inode_may_be_of_a_new_topic(self, data: DataDirectory) -> None:
        """Its records were read as those of the deleted topic."""
        fill(data.log("t"), 3)
        slices = slices_of(data)
        write_partition_metadata(OsFileSystem(), str(data.path / "t-0"), bytes(range(1, 17)))
        with pytest.raises(TopicRecreatedError, match="topic t was deleted and created again"):
            rows_of(slices)

    def test_a_topic_that_was_deleted_is_data_loss(self, data: DataDirectory, caplog: pytest.LogCaptureFixture) -> None:
        fill(data.log("t"), 3)
        slices = slices_of(data)
        data.close()
        shutil.rmtree(data.path / "t-0")
        with pytest.raises(DataLossError, match="is gone"):
            rows_of(slices)
        assert rows_of(slices, fail_on_data_loss=False) == []
        assert [record.getMessage() for record in caplog.records] == ["data loss: t-0: records from 0 to 14 are gone"]


class TestDamage:
    def damage(self, data: DataDirectory, position: int, replacement: bytes) -> list[SegmentSlice]:
        fill(data.log("t"), 4)
        slices = slices_of(data)
        with open(slices[0].path, "r+b") as file:
            file.seek(position)
            file.write(replacement)
        return slices

    def size(self, data: DataDirectory) -> int:
        return len(build_batch(fill(data.log("other"), 1)))

    def test_a_bad_checksum_names_file_position_and_offset(self, data: DataDirectory) -> None:
        size = self.size(data)
        slices = self.damage(data, size + 70, b"\xff\xff")
        with pytest.raises(CorruptBatchError, match="checksum does not hold") as caught:
            rows_of(slices)
        error = caught.value
        assert (error.file, error.position, error.offset) == (slices[0].path, size, 5)
        assert str(error).startswith(f"{slices[0].path}: corrupt batch at byte {size} (offset 5)")

    def test_an_impossible_length_is_corrupt(self, data: DataDirectory) -> None:
        for length in (b"\x7f\xff\xff\xff", b"\x00\x00\x00\x05", b"\xff\xff\xff\xff"):
            slices = self.damage(data, self.size(data) + 8, length)
            with pytest.raises(CorruptBatchError):
                rows_of(slices)

    @pytest.mark.parametrize("flipped", [0x01, 0x80])
    @pytest.mark.parametrize(("start", "end"), [(0, 60), (3, 9)])
    def test_no_byte_of_a_closed_segment_hides_a_record(
        self, data: DataDirectory, start: int, end: int, flipped: int
    ) -> None:
        written = fill(data.log("t"), 30, records=2)
        slices = slices_of(data, start, end, bytes_per_task=1000)
        expected = [row(record) for record in written[start:end]]
        content = Path(slices[0].path).read_bytes()
        with open(slices[0].path, "r+b", buffering=0) as file:
            for position in range(slices[0].end_position // 2):
                os.pwrite(file.fileno(), bytes([content[position] ^ flipped]), position)
                with suppress(CorruptBatchError):
                    assert rows_of(slices) == expected, position
                os.pwrite(file.fileno(), content[position : position + 1], position)

    def test_an_unknown_magic_is_corrupt(self, data: DataDirectory) -> None:
        slices = self.damage(data, self.size(data) + 16, b"\x09")
        with pytest.raises(CorruptBatchError):
            rows_of(slices)

    def test_an_offset_that_jumps_ahead_hides_nothing(self, data: DataDirectory) -> None:
        slices = self.damage(data, self.size(data), (1 << 40).to_bytes(8, "big"))
        with pytest.raises(CorruptBatchError, match=r"offsets jump ahead of 1|its offset jumps ahead"):
            rows_of(slices)

    def test_an_offset_that_goes_back(self, data: DataDirectory) -> None:
        slices = self.damage(data, self.size(data), (3).to_bytes(8, "big"))
        with pytest.raises(CorruptBatchError, match=r"\(offset 3\): its offset goes back, 5 or more should follow"):
            rows_of(slices)

    @pytest.mark.parametrize("codec", [0, 1])
    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize("start", [0, 12])
    def test_old_messages_whose_offsets_go_back(self, data: DataDirectory, magic: int, codec: int, start: int) -> None:
        """They were read as they are; those of version 2 were refused."""
        first, second = (
            build_message_set([Record(n, 1, b"k", b"v") for n in offsets], MessageSetOptions(magic, codec))
            for offsets in (range(10), range(5, 14))
        )
        data.log("t")
        (data.path / "t-0" / f"{0:020d}.log").write_bytes(bytes(first) + bytes(second))
        with pytest.raises(CorruptBatchError, match="its offset goes back, 10 or more should follow") as caught:
            rows_of(slices_of(data, start))
        assert caught.value.position == len(first)

    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize("cleaned", [0, 1 << 41])
    def test_an_old_message_whose_offset_jumps_ahead_hides_nothing(
        self, data: DataDirectory, magic: int, cleaned: int
    ) -> None:
        self._check_jump(
            data, build_message_set([Record(n, 1, b"k", b"v") for n in range(9)], MessageSetOptions(magic, 0)), cleaned
        )

    @pytest.mark.parametrize("cleaned", [0, 1 << 41])
    def test_a_batch_whose_offset_jumps_ahead_in_a_cleaned_log_hides_nothing(
        self, data: DataDirectory, cleaned: int
    ) -> None:
        """In a cleaned log the record was read with the wrong offset, and those after it were left out."""
        self._check_jump(data, b"".join(build_batch([Record(n, 1, b"k", b"v")]) for n in range(9)), cleaned)

    def _check_jump(self, data: DataDirectory, messages: bytes, cleaned: int) -> None:
        """Check that only message 4 of 9 is lost if its offset jumps ahead, to one that the log has or not."""
        if cleaned:
            say_cleaned(data.path, cleaned)
        data.log("t")
        size = len(messages) // 9
        for offset in (7, 20, 1 << 40):
            content = bytearray(messages)
            content[4 * size : 4 * size + 8] = offset.to_bytes(8, "big")
            (data.path / "t-0" / f"{0:020d}.log").write_bytes(content)
            for start in (0, 3, 4, 5):
                with pytest.raises(CorruptBatchError, match=r"offsets? jumps? ahead|its offset goes back") as caught:
                    rows_of(slices_of(data, start))
                assert caught.value.position == 4 * size, (offset, start)
            kept: list[Damage] = []
            batches = read_past_damage(slices_of(data), Columns(("offset",)), ReadOptions(), kept.append)
            found = [found for batch in batches for found in batch.column("offset").to_pylist()]
            assert (found, len(kept)) == ([0, 1, 2, 3, 5, 6, 7, 8], 1), offset

    @pytest.mark.parametrize("magic", [0, 1])
    @pytest.mark.parametrize("length", [-(1 << 31), -13, -12, -11, -1, 0, 13])
    def test_an_impossible_size_of_an_old_message_is_corrupt(
        self, data: DataDirectory, magic: int, length: int
    ) -> None:
        """With -12 the message counted as cut: the rest of the slice was read into memory, and the error said so."""
        data.log("t")
        messages = build_message_set([Record(n, 1, b"k", b"v") for n in range(9)], MessageSetOptions(magic, 0))
        path, size = data.path / "t-0" / f"{0:020d}.log", len(messages) // 9
        path.write_bytes(messages)
        slices = slices_of(data)
        content = bytearray(messages)
        content[4 * size + 8 : 4 * size + 12] = length.to_bytes(4, "big", signed=True)
        with path.open("r+b") as file:
            file.write(content)
        with pytest.raises(CorruptBatchError, match=f"it claims {length + 12} bytes, fewer than a batch has") as caught:
            rows_of(slices)
        assert caught.value.position == 4 * size

    def test_a_file_that_became_shorter_is_corrupt(self, data: DataDirectory) -> None:
        slices = self.damage(data, 0, b"")
        os.truncate(slices[0].path, self.size(data) * 2 + 30)
        with pytest.raises(CorruptBatchError, match="the planned bytes end within it"):
            rows_of(slices)
        with OpenSegment(slices[0].path) as file, pytest.raises(CorruptBatchError, match="the file ends at byte"):
            list(ColumnReader(slices[0], file).blocks())

    def test_a_section_that_does_not_decompress_is_a_corrupt_batch(self, data: DataDirectory) -> None:
        data.log("t")
        batch = bytearray(build_batch([Record(n, 1, b"k", b"v" * 50) for n in range(4)], BatchOptions(compression=4)))
        batch[61:65] = b"none"
        from tidelog.protocol.record.record_batch import set_crc

        set_crc(batch, 0, len(batch))
        (data.path / "t-0" / f"{0:020d}.log").write_bytes(batch)
        with pytest.raises(CorruptBatchError, match="t-0"):
            rows_of(slices_of(data))

    def test_a_timestamp_that_does_not_fit_microseconds_is_an_error(self, data: DataDirectory) -> None:
        data.log("t")
        batch = build_batch([Record(0, 5, b"k", b"v"), Record(1, (1 << 62), b"k", b"v")])
        (data.path / "t-0" / f"{0:020d}.log").write_bytes(batch)
        with pytest.raises(MalformedTimestampError, match="t-0, offset 1: timestamp 4611686018427387904 ms"):
            rows_of(slices_of(data))
        assert rows_of(slices_of(data), Columns(("offset",))) == [(0,), (1,)]


def test_many_rows_come_in_several_batches(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidelog.pipeline.decode import arrow_rows

    monkeypatch.setattr(arrow_rows, "BATCH_ROWS", 8)
    monkeypatch.setattr(column_reader, "TABLE_ROWS", 7)
    written = fill(data.log("t"), 20)
    assert rows_of(slices_of(data)) == [row(record) for record in written]
    assert np.diff([found[4] for found in rows_of(slices_of(data))]).tolist() == [1] * (len(written) - 1)


def test_large_headers_end_a_batch_as_large_values_do(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """They did not count: 8,192 records with 300 KB of headers each were one batch, beyond Arrow's limit of 2 GiB."""
    monkeypatch.setattr(arrow_rows, "BATCH_BYTES", 20_000)
    monkeypatch.setattr(column_reader, "CHUNK_BYTES", 4096)
    data.log("t")
    records = [Record(number, 1, b"k", b"v", (("name", b"x" * 2000),)) for number in range(40)]
    (data.path / "t-0" / f"{0:020d}.log").write_bytes(b"".join(build_batch([record]) for record in records))
    batches = [batch for piece in slices_of(data) for batch in read_slice(piece, ALL)]
    assert sum(batch.num_rows for batch in batches) == 40
    assert max(batch.nbytes for batch in batches) < 20_000
