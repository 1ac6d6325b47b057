"""Down-conversion for old fetch versions: kept and dropped fields, where the result ends, and how much memory it
holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from aiokafka.record.memory_records import MemoryRecords

from tests.support.records import NOW_MS
from tidelog.log.records.down_convert import ConversionLimit, down_convert
from tidelog.protocol.errors import (
    CorruptMessageError,
    InvalidRecordError,
    KafkaStorageError,
    UnsupportedCompressionTypeError,
)
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.compression import CompressionType
from tidelog.protocol.record.message_set import ByteBufferMessageSet, MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import (
    BatchOptions,
    EndTransactionMarker,
    Record,
    build_batch,
    end_transaction_marker,
)
from tidelog.protocol.transferable import TransferableRecords

CODECS = [CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4]
BIG = 1 << 30


def records_from(first: int, count: int = 4) -> list[Record]:
    return [Record(first + i, NOW_MS + i, b"key-%d" % i, b"value-%d" % i, (("h", b"x"),)) for i in range(count)]


def batch(first: int, codec: int = 0, count: int = 4, **options: int) -> bytes:
    return bytes(build_batch(records_from(first, count), BatchOptions(compression=codec, **options)))  # type: ignore[arg-type]


def marker(offset: int) -> bytes:
    commit = EndTransactionMarker(True, 0)
    return bytes(end_transaction_marker(commit, timestamp=NOW_MS, producer_id=1, producer_epoch=0, offset=offset))


def converted(stored: bytes, magic: int, *, first_offset: int = 0, max_bytes: int = BIG) -> bytes:
    return b"".join(down_convert([stored], magic, first_offset, max_bytes))


class OpenFile:
    """A descriptor as a log's file provides it."""

    def __init__(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        self._descriptor = os.open(path, os.O_RDONLY)

    def fileno(self) -> int:
        return self._descriptor

    def retain(self) -> None:
        """Do nothing: holders are not counted here."""

    def release(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "segment.log"


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_new_batches_become_old_messages(magic: int, codec: CompressionType) -> None:
    result = ByteBufferMessageSet(converted(batch(10, codec) + batch(14, codec), magic))
    expected = [
        Record(record.offset, record.timestamp if magic else -1, record.key, record.value)
        for record in records_from(10) + records_from(14)
    ]
    assert list(result) == expected
    for entry in result.shallow_entries():
        entry.ensure_valid()
        assert (entry.magic, entry.compression_type) == (magic, codec)


def test_a_client_library_reads_the_result() -> None:
    read = MemoryRecords(converted(batch(10, CompressionType.GZIP) + batch(14), 1))
    offsets = []
    while read.has_next():
        message = read.next_batch()
        assert message is not None
        assert message.validate_crc()
        offsets += [record.offset for record in message]
    assert offsets == list(range(10, 18))


@pytest.mark.parametrize("codec", CODECS)
def test_magic_1_becomes_magic_0_and_older_stays_as_it_is(codec: CompressionType) -> None:
    newer = build_message_set(records_from(5), MessageSetOptions(1, codec))
    older = build_message_set(records_from(9), MessageSetOptions(0, codec))
    assert converted(older, 0) == older
    assert converted(newer + older, 1) == newer + older
    result = ByteBufferMessageSet(converted(newer + older, 0))
    assert [record.offset for record in result] == list(range(5, 13))
    assert {entry.magic for entry in result.shallow_entries()} == {0}


def test_log_append_time_is_kept() -> None:
    result = ByteBufferMessageSet(converted(batch(0, log_append_time=77), 1))
    assert {(record.timestamp) for record in result} == {77}
    assert {entry.timestamp_type for entry in result.shallow_entries()} == {1}


def test_control_batches_are_dropped() -> None:
    result = converted(marker(0) + batch(1) + marker(5) + batch(6), 1)
    assert [record.offset for record in ByteBufferMessageSet(result)] == [1, 2, 3, 4, 6, 7, 8, 9]
    assert converted(marker(0) + marker(1), 1) == b""


def test_messages_below_the_offset_asked_for_are_left_out_when_single() -> None:
    plain = ByteBufferMessageSet(converted(batch(0), 1, first_offset=2))
    assert [record.offset for record in plain] == [2, 3]
    wrapped = ByteBufferMessageSet(converted(batch(0, CompressionType.GZIP), 1, first_offset=2))
    assert [record.offset for record in wrapped] == [0, 1, 2, 3]


def test_holes_stay_and_emptied_batches_are_dropped() -> None:
    holes = [Record(3, NOW_MS, b"a", b"v"), Record(9, NOW_MS, b"b", None)]
    stored = build_batch(holes, BatchOptions(base_offset=0, last_offset_delta=20, compression=CompressionType.GZIP))
    emptied = build_batch([], BatchOptions(base_offset=21, last_offset_delta=4))
    result = ByteBufferMessageSet(converted(bytes(stored + emptied), 1))
    assert [(record.offset, record.value) for record in result] == [(3, b"v"), (9, None)]


@pytest.mark.parametrize("max_bytes", [0, 1, 60, 61, 100, 200, 10_000])
def test_the_result_is_cut_at_the_limit_but_the_first_message_is_whole(max_bytes: int) -> None:
    whole = converted(batch(0) + batch(4), 1)
    first = next(ByteBufferMessageSet(whole).shallow_entries()).size_in_bytes
    result = converted(batch(0) + batch(4), 1, max_bytes=max_bytes)
    assert result == whole[: max(max_bytes, first)]
    assert next(iter(ByteBufferMessageSet(result))).offset == 0


def test_zstd_is_an_error_at_first_and_an_end_later() -> None:
    with pytest.raises(UnsupportedCompressionTypeError):
        converted(batch(0, CompressionType.ZSTD) + batch(4), 1)
    with pytest.raises(UnsupportedCompressionTypeError):
        converted(marker(0) + batch(1, CompressionType.ZSTD), 1)
    result = converted(batch(0) + batch(4, CompressionType.ZSTD) + batch(8), 1)
    assert [record.offset for record in ByteBufferMessageSet(result)] == [0, 1, 2, 3]


def test_a_cut_last_batch_is_left_out() -> None:
    assert converted(batch(0) + batch(4)[:-1], 1) == converted(batch(0), 1)


def test_malformed_records_are_refused() -> None:
    stored = bytearray(batch(0))
    stored[61] = 0x01
    with pytest.raises(InvalidRecordError):
        converted(bytes(stored), 1)


def test_slices_of_files_are_read_batch_by_batch(scratch: Path) -> None:
    content = batch(0) + batch(4) + batch(8)
    file = OpenFile(scratch, b"before" + content)
    sources: list[TransferableRecords | bytes] = [TransferableRecords(file, 6, len(content) - 1), batch(12)]
    try:
        pieces = list(down_convert(sources, 1, 0, BIG))
    finally:
        file.release()
    assert [[record.offset for record in ByteBufferMessageSet(piece)] for piece in pieces] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [12, 13, 14, 15],
    ]


def test_reading_stops_when_the_limit_is_reached(scratch: Path) -> None:
    """Bytes after the limit are never read, even if they are damaged."""
    first = batch(0)
    file = OpenFile(scratch, first + bytes(100))
    try:
        assert list(down_convert([TransferableRecords(file, 0, len(first) + 100)], 1, 0, 50))
        with pytest.raises(CorruptMessageError, match="size 0"):
            list(down_convert([TransferableRecords(file, 0, len(first) + 100)], 1, 0, BIG))
    finally:
        file.release()


def test_a_file_that_ends_early_or_fails_is_a_storage_error(scratch: Path) -> None:
    file = OpenFile(scratch, batch(0)[:-1])
    with pytest.raises(KafkaStorageError, match="ends 1 bytes"):
        list(down_convert([TransferableRecords(file, 0, len(batch(0)))], 1, 0, BIG))
    file.release()
    with pytest.raises(KafkaStorageError, match="failed"):
        list(down_convert([TransferableRecords(file, 0, 100)], 1, 0, BIG))


def test_every_stored_format_in_one_range() -> None:
    stored = (
        build_message_set(records_from(0), MessageSetOptions(0, 1))
        + build_message_set(records_from(4), MessageSetOptions(1, 3))
        + batch(8, CompressionType.SNAPPY)
    )
    assert [entry.magic for entry in iter_batches(stored)] == [0, 1, 2]
    assert [record.offset for entry in iter_batches(converted(stored, 0)) for record in entry.records()] == list(
        range(12)
    )


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP, CompressionType.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("max_records", [1, 7, 30, 31, 100])
def test_a_limited_conversion_continues_where_the_last_one_ended(
    magic: int, codec: CompressionType, max_records: int
) -> None:
    values = [b"v%d" % number for number in range(30)]
    records = [Record(100 + number, NOW_MS, None, value) for number, value in enumerate(values)]
    stored = [
        build_batch(part, BatchOptions(compression=codec)) for part in (records, [Record(130, NOW_MS, None, b"last")])
    ]
    found: dict[int, bytes | None] = {}
    offset = 100
    while offset <= 130:
        limit = ConversionLimit(max_records)
        converted = b"".join(down_convert(stored[offset == 130 :], magic, offset, BIG, limit=limit))
        messages = list(ByteBufferMessageSet(converted))
        assert len(messages) <= max_records
        assert messages[-1].offset >= offset
        found |= {message.offset: message.value for message in messages}
        offset = messages[-1].offset + 1
    assert found == dict(enumerate([*values, b"last"], 100))


def test_a_limit_that_is_used_up_converts_nothing() -> None:
    assert not list(
        down_convert([bytes(build_batch([Record(0, NOW_MS, None, b"v")]))], 1, 0, BIG, limit=ConversionLimit(0))
    )
