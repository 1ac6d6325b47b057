"""Message sets of magic 0 and 1: plain and compressed, relative offsets, bytes of other clients, damage."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from aiokafka.record import legacy_records as aiokafka_records
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records import NOW_MS, kafka_python, record_lists
from tidelog.protocol.errors import (
    CorruptMessageError,
    InvalidRecordError,
    MessageTooLargeError,
    UnsupportedCompressionTypeError,
)
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.compression import CompressionType, compress
from tidelog.protocol.record.message_set import (
    ByteBufferMessageSet,
    LegacyRecordBatch,
    MessageSetOptions,
    build_message_set,
    uncompressed_size,
)
from tidelog.protocol.record.message_writer import MessageWriter
from tidelog.protocol.record.record_batch import Record

kafka_python_records = kafka_python("record.legacy_records")

CODECS = [CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4]


def plain(record: Record, magic: int) -> Record:
    """Return the fields of a record that an old format keeps."""
    return Record(record.offset, record.timestamp if magic else -1, record.key, record.value)


def some_records(count: int = 3) -> list[Record]:
    return [Record(10 + i, NOW_MS + i, b"key-%d" % i, b"value-%d" % i) for i in range(count)]


def wrapper(content: bytes | None, *, magic: int = 1, attributes: int = 1, offset: int = 5) -> bytes:
    """Wrap the given bytes; the wrapper's own checksum is right."""
    writer = MessageWriter()
    with writer.entry(offset), writer.message(magic, attributes, NOW_MS, None):
        writer.write_nullable(None if content is None else compress(content, attributes & 7, magic=magic))
    return writer.to_bytes()


@given(records=record_lists(holes=True), magic=st.sampled_from([0, 1]), codec=st.sampled_from(CODECS))
def test_a_built_set_is_read_back(records: list[Record], magic: int, codec: CompressionType) -> None:
    built = ByteBufferMessageSet(build_message_set(records, MessageSetOptions(magic, codec)))
    expected = [plain(record, magic) for record in records]
    assert list(built) == expected
    assert list(built) == expected, "each iteration starts afresh"
    entries = list(built.shallow_entries())
    assert all(entry.is_valid() for entry in entries)
    assert len(entries) == (len(records) if codec == CompressionType.NONE else 1)
    assert entries[-1].last_offset == records[-1].offset
    assert [record.offset for entry in iter_batches(built.buffer) for record in entry.records()] == [
        record.offset for record in records
    ]


@given(
    records=record_lists(),
    magic=st.sampled_from([0, 1]),
    library=st.sampled_from([kafka_python_records.LegacyRecordBatchBuilder, aiokafka_records.LegacyRecordBatchBuilder]),
)
def test_sets_have_the_bytes_of_python_clients(records: list[Record], magic: int, library: Any) -> None:
    theirs = library(magic=magic, compression_type=0, batch_size=1 << 20)
    for record in records:
        theirs.append(record.offset, timestamp=max(0, record.timestamp), key=record.key, value=record.value)
    ours = [record._replace(timestamp=max(0, record.timestamp)) for record in records]
    assert build_message_set(ours, MessageSetOptions(magic)) == bytes(theirs.build())


@pytest.mark.parametrize(
    ("magic", "codec"),
    [(magic, codec) for magic in (0, 1) for codec in CODECS[1:] if (magic, codec) != (0, CompressionType.LZ4)],
)
def test_python_clients_wrappers_are_read_and_ours_by_them(magic: int, codec: CompressionType) -> None:
    theirs = aiokafka_records.LegacyRecordBatchBuilder(magic=magic, compression_type=int(codec), batch_size=1 << 20)
    for offset in range(20):
        theirs.append(offset, timestamp=NOW_MS, key=b"k", value=b"v" * 100)
    (entry,) = ByteBufferMessageSet(bytes(theirs.build())).shallow_entries()
    assert [record.offset for record in entry.records()] == list(range(20))
    assert {(record.key, record.value) for record in entry.records()} == {(b"k", b"v" * 100)}
    ours = build_message_set(some_records(20), MessageSetOptions(magic, codec))
    read = aiokafka_records.LegacyRecordBatch(bytearray(ours), magic)
    assert read.validate_crc()
    assert [record.offset for record in read] == [record.offset for record in some_records(20)]


def test_magic_1_wrapper_has_relative_offsets_and_the_largest_timestamp() -> None:
    records = [Record(100, 7, b"a", b""), Record(105, 9, b"b", b""), Record(109, 8, b"c", b"")]
    (entry,) = ByteBufferMessageSet(build_message_set(records, MessageSetOptions(1, 1))).shallow_entries()
    assert entry.offset == 109
    assert [message.offset for message in entry.inner_messages()] == [0, 5, 9]
    assert entry.max_timestamp == 9
    assert (entry.base_offset, entry.last_offset, entry.next_offset, entry.record_count) == (100, 109, 110, 3)


def test_magic_0_wrapper_has_absolute_offsets_and_no_time() -> None:
    (entry,) = ByteBufferMessageSet(build_message_set(some_records(), MessageSetOptions(0, 1))).shallow_entries()
    assert [message.offset for message in entry.inner_messages()] == [10, 11, 12]
    assert entry.max_timestamp == -1


def test_wrapper_with_offset_0_keeps_its_inner_offsets() -> None:
    """Some versions of librdkafka produce such wrappers."""
    inner = build_message_set([Record(i, NOW_MS, b"k", b"v") for i in range(3)], MessageSetOptions(1))
    entry = LegacyRecordBatch(wrapper(inner, offset=0))
    assert [record.offset for record in entry] == [0, 1, 2]


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP])
def test_log_append_time_counts_for_every_message(codec: CompressionType) -> None:
    built = build_message_set(some_records(), MessageSetOptions(1, codec, log_append_time=42))
    assert [record.timestamp for record in ByteBufferMessageSet(built)] == [42, 42, 42]
    assert all(entry.timestamp_type == 1 for entry in ByteBufferMessageSet(built).shallow_entries())


def test_offsets_come_from_the_assigner() -> None:
    counter = itertools.count(1000)
    built = ByteBufferMessageSet.create(lambda: next(counter), MessageSetOptions(1, 1), some_records())
    assert [record.offset for record in built] == [1000, 1001, 1002]


def test_an_empty_set_is_empty() -> None:
    assert build_message_set([], MessageSetOptions(1, 1)) == b""
    assert list(ByteBufferMessageSet(b"")) == []


@pytest.mark.parametrize("magic", [0, 1])
def test_estimate_is_exact_without_codec(magic: int) -> None:
    assert uncompressed_size(some_records(), magic) == len(build_message_set(some_records(), MessageSetOptions(magic)))


@pytest.mark.parametrize("magic", [0, 1])
def test_a_cut_last_message_ends_the_set_quietly(magic: int) -> None:
    whole = build_message_set(some_records(), MessageSetOptions(magic))
    for cut in range(1, len(whole) // 3):
        assert len(list(ByteBufferMessageSet(whole[:-cut]))) == 2


def test_flipped_bits_are_seen() -> None:
    whole = build_message_set(some_records(1), MessageSetOptions(1))
    for position in range(12, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        try:
            entry = LegacyRecordBatch(damaged)
        except CorruptMessageError:
            continue
        assert not entry.is_valid()
        with pytest.raises(CorruptMessageError, match="corrupt"):
            entry.ensure_valid()


@pytest.mark.parametrize(
    "damaged",
    [
        struct.pack(">qi", 0, 13) + bytes(20),
        struct.pack(">qi", 0, -1) + bytes(20),
        struct.pack(">qiIBb", 0, 20, 0, 1, 0) + bytes(14),  # magic 1 needs 22
        struct.pack(">qiIBb", 0, 14, 0, 2, 0) + bytes(8),
        struct.pack(">qiIBbii", 0, 14, 0, 0, 0, 5, 0),
        struct.pack(">qiIBbii", 0, 14, 0, 0, 0, 2**31 - 1, 0),
        struct.pack(">qiIBbiii", 0, 18, 0, 0, 0, -1, -1, 0),
        struct.pack(">qiIBbi", 0, 14, 0, 0, 0, 4) + b"abcd",
    ],
)
def test_damaged_messages_are_refused(damaged: bytes) -> None:
    with pytest.raises(CorruptMessageError):
        list(ByteBufferMessageSet(damaged))


def test_a_message_of_too_few_bytes_is_refused() -> None:
    with pytest.raises(CorruptMessageError, match="too few"):
        LegacyRecordBatch(bytes(20))
    with pytest.raises(CorruptMessageError, match="cut"):
        LegacyRecordBatch(build_message_set(some_records(1), MessageSetOptions(0))[:-1])


def test_a_set_of_two_magics_is_refused() -> None:
    mixed = build_message_set(some_records(1), MessageSetOptions(0)) + build_message_set(
        some_records(1), MessageSetOptions(1)
    )
    with pytest.raises(InvalidRecordError, match="magic"):
        list(ByteBufferMessageSet(mixed))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "null value"),
        (b"", "no inner"),
        (build_message_set(some_records(), MessageSetOptions(0)), "magic"),
        (build_message_set(some_records(), MessageSetOptions(1, 1)), "not be compressed"),
    ],
)
def test_bad_wrappers_are_refused(content: bytes | None, reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        list(ByteBufferMessageSet(wrapper(content)))


def test_codecs_an_old_format_does_not_know() -> None:
    writer = MessageWriter()
    with writer.entry(0), writer.message(1, 4, NOW_MS, None):
        writer.write_nullable(b"whatever")
    with pytest.raises(UnsupportedCompressionTypeError):
        list(ByteBufferMessageSet(writer.to_bytes()))
    with pytest.raises(UnsupportedCompressionTypeError):
        build_message_set(some_records(), MessageSetOptions(1, CompressionType.ZSTD))


def test_nested_bomb_is_bounded() -> None:
    with pytest.raises(MessageTooLargeError, match="more than"):
        list(ByteBufferMessageSet(wrapper(bytes(10_000_000)), max_decompressed_bytes=1_000_000))


def test_entry_looks_like_a_batch() -> None:
    entry = LegacyRecordBatch(build_message_set(some_records(1), MessageSetOptions(1)))
    assert (entry.producer_id, entry.base_sequence, entry.last_sequence, entry.partition_leader_epoch) == (-1,) * 4
    assert not entry.is_control
    assert not entry.is_transactional
    assert entry.delete_horizon_ms is None
    assert (entry.base_offset, entry.record_count, entry.base_timestamp) == (10, 1, NOW_MS)
    assert (entry.key, entry.value) == (b"key-0", b"value-0")
    assert bytes(entry.view()) == entry.buffer
    assert "magic=1" in repr(entry)
