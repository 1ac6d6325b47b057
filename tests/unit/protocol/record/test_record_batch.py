"""Record batches of magic 2: round trips, bytes of other clients, damage, control batches."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record import default_records as aiokafka_records
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records import NOW_MS, batch_of, headers, kafka_python, nullable_bytes, record_lists
from tidelog.protocol.errors import CorruptMessageError, InvalidRecordError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.compression import CompressionType
from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set
from tidelog.protocol.record.record_batch import (
    CRC_OFFSET,
    DELETE_HORIZON_MASK,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    RECORD_BATCH_OVERHEAD,
    TURN_BATCHES,
    BatchOptions,
    EndTransactionMarker,
    Record,
    RecordBatch,
    append_varint,
    assign_offset_and_epoch,
    build_batch,
    control_record_type,
    end_transaction_marker,
    has_transactional_batch,
    increment_sequence,
    parse_end_transaction_marker,
    read_varint,
    read_varlong,
    set_crc,
)

kafka_python_records = kafka_python("record.default_records")


@given(records=record_lists(holes=True), codec=st.sampled_from(list(CompressionType)))
def test_a_built_batch_is_read_back(records: list[Record], codec: CompressionType) -> None:
    batch = RecordBatch(build_batch(records, BatchOptions(compression=codec)))
    batch.ensure_valid()
    assert list(batch.records()) == records
    assert batch.compression_type == codec
    assert batch.record_count == len(records)
    assert batch.last_offset == records[-1].offset
    assert batch.max_timestamp == max(record.timestamp for record in records)


@given(
    key=nullable_bytes,
    value=nullable_bytes,
    record_headers=headers,
    deltas=st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=5),
    producer_id=st.sampled_from([-1, 4711]),
    library=st.sampled_from(
        [kafka_python_records.DefaultRecordBatchBuilder, aiokafka_records.DefaultRecordBatchBuilder]
    ),
)
def test_batches_have_the_bytes_of_python_clients(
    key: bytes | None,
    value: bytes | None,
    record_headers: list[tuple[str, bytes | None]],
    deltas: list[int],
    producer_id: int,
    library: Any,
) -> None:
    sequence = -1 if producer_id < 0 else 17
    theirs = library(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=producer_id,
        producer_epoch=-1 if producer_id < 0 else 3,
        base_sequence=sequence,
        batch_size=1 << 20,
    )
    records = []
    for offset, delta in enumerate(deltas):
        timestamp = NOW_MS + delta
        theirs.append(offset, timestamp=timestamp, key=key, value=value, headers=record_headers)
        records.append(Record(offset, timestamp, key, value, tuple(record_headers)))
    options = BatchOptions(
        partition_leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=-1 if producer_id < 0 else 3,
        base_sequence=sequence,
    )
    ours = build_batch(records, options)
    built = bytes(theirs.build())
    leader_epoch = slice(LOG_OVERHEAD, MAGIC_OFFSET)  # clients fill it with 0 or -1; the CRC does not cover it
    ours[leader_epoch] = built[leader_epoch]
    assert bytes(ours) == built


@pytest.mark.parametrize(
    ("codec", "library"),
    [(codec, aiokafka_records) for codec in ("none", "gzip", "snappy", "lz4", "zstd")]
    + [(codec, kafka_python_records) for codec in ("none", "gzip", "lz4", "zstd")],  # its snappy needs python-snappy
)
def test_python_clients_batches_are_read(codec: str, library: Any) -> None:
    number = CompressionType[codec.upper()]
    theirs = library.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(number),
        is_transactional=True,
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
        batch_size=1 << 20,
    )
    for offset in range(100):
        theirs.append(offset, timestamp=NOW_MS, key=b"k", value=b"value" * 20, headers=[])
    batch = RecordBatch(bytes(theirs.build()))
    batch.ensure_valid()
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (1, 2, 3, 102)
    expected = [Record(i, NOW_MS, b"k", b"value" * 20, (), 3 + i) for i in range(100)]
    assert list(batch) == expected


@pytest.mark.parametrize("codec", list(CompressionType))
def test_our_batches_are_read_by_aiokafka(codec: CompressionType) -> None:
    built = bytes(batch_of(50, compression=codec))
    theirs = aiokafka_records.DefaultRecordBatch(built)
    assert theirs.validate_crc()
    assert [(record.offset, record.key) for record in theirs] == [(i, b"key-%06d" % i) for i in range(50)]


@given(value=st.integers(-(2**31), 2**31 - 1))
def test_varint_round_trip(value: int) -> None:
    out = bytearray()
    append_varint(out, value)
    assert read_varint(out, 0) == (value, len(out))
    assert read_varlong(out, 0) == (value, len(out))


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_varlong_round_trip(value: int) -> None:
    out = bytearray()
    append_varint(out, value)
    assert read_varlong(out, 0) == (value, len(out))


def test_varint_of_six_bytes_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="longer than 5"):
        read_varint(b"\xff" * 6, 0)


def test_offset_and_epoch_are_outside_the_checksum() -> None:
    buffer = batch_of(3)
    assign_offset_and_epoch(buffer, 0, 1 << 40, 7)
    batch = RecordBatch(buffer)
    batch.ensure_valid()
    assert [record.offset for record in batch] == [(1 << 40) + i for i in range(3)]
    assert batch.partition_leader_epoch == 7
    assert batch.next_offset == (1 << 40) + 3


def test_every_flipped_bit_after_the_checksum_is_seen() -> None:
    whole = batch_of(2, value_bytes=5)
    for position in range(CRC_OFFSET, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        assert not RecordBatch(damaged).is_valid()
        with pytest.raises(CorruptMessageError):
            RecordBatch(damaged).ensure_valid()


def test_cut_batch_is_not_valid() -> None:
    whole = batch_of(2)
    assert not RecordBatch(whole[:-1]).is_valid()
    with pytest.raises(CorruptMessageError, match="too few"):
        RecordBatch(whole[: RECORD_BATCH_OVERHEAD - 1])


def test_walk_yields_whole_batches_and_ends_quietly_at_a_cut_one() -> None:
    buffer = bytes(batch_of(1) + batch_of(2) + batch_of(3))
    for cut in (0, 1, 40, 100):
        assert [batch.record_count for batch in iter_batches(buffer[: len(buffer) - cut])] == [1, 2, 3][
            : 3 if cut == 0 else 2
        ]
    assert [batch.record_count for batch in iter_batches(buffer, len(batch_of(1)))] == [2, 3]


@pytest.mark.parametrize(
    ("position", "value", "reason"), [(8, 0xFF, "size"), (MAGIC_OFFSET, 3, "magic"), (11, 20, "size")]
)
def test_walk_refuses_an_impossible_length(position: int, value: int, reason: str) -> None:
    buffer = batch_of(1)
    buffer[position] = value
    with pytest.raises(CorruptMessageError, match=reason):
        list(iter_batches(buffer))


PLAIN = bytes(build_batch([Record(0, NOW_MS, b"k", b"v")]))
OURS = bytes(build_batch([Record(0, NOW_MS, b"k", b"v")], BatchOptions(producer_id=1, is_transactional=True)))


def test_batches_of_a_transaction_are_recognised_by_their_headers() -> None:
    samples = (PLAIN, OURS, PLAIN + OURS, OURS[:-1], PLAIN[:-1] + OURS, b"", None)
    found = [has_transactional_batch(each) for each in samples]
    assert found == [False, True, True, True, False, False, False]


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_is_of_no_transaction(magic: int) -> None:
    """At the position of a batch's attributes an old message has a part of its timestamp or key."""
    times = range(0, 1 << 34, 1 << 26)
    messages = [build_message_set([Record(0, time, b"\xff" * 40, b"v")], MessageSetOptions(magic)) for time in times]
    assert all(len(message) > RECORD_BATCH_OVERHEAD for message in messages)
    assert not any(has_transactional_batch(message) for message in messages)


def test_the_walk_for_transactions_ends_at_a_batch_shorter_than_its_header() -> None:
    """A hundred megabytes of them would take the loop a second."""
    short = bytearray(40)
    short[8:12], short[MAGIC_OFFSET] = (28).to_bytes(4, "big"), 2
    assert not has_transactional_batch(bytes(short) + OURS)


def test_the_walk_for_transactions_is_of_a_few_batches() -> None:
    assert has_transactional_batch(PLAIN * (TURN_BATCHES - 1) + OURS)
    assert not has_transactional_batch(PLAIN * TURN_BATCHES + OURS)


def test_log_append_time_is_every_records_timestamp() -> None:
    batch = RecordBatch(
        build_batch([Record(0, 5, b"k", b"v"), Record(1, 9, b"k", b"v")], BatchOptions(log_append_time=77))
    )
    assert batch.timestamp_type == 1
    assert [record.timestamp for record in batch] == [77, 77]
    assert batch.max_timestamp == 77


def test_delete_horizon_replaces_the_base_timestamp() -> None:
    records = [Record(3, NOW_MS, b"k", None), Record(9, NOW_MS + 5, b"k2", b"v")]
    batch = RecordBatch(
        build_batch(records, BatchOptions(base_offset=0, last_offset_delta=12, delete_horizon_ms=NOW_MS + 99))
    )
    assert batch.delete_horizon_ms == NOW_MS + 99
    assert batch.attributes & DELETE_HORIZON_MASK
    assert list(batch) == records
    assert batch.last_offset == 12


def test_no_delete_horizon_by_default() -> None:
    assert RecordBatch(batch_of(1)).delete_horizon_ms is None


def test_empty_batch_keeps_its_offsets() -> None:
    batch = RecordBatch(
        build_batch([], BatchOptions(base_offset=40, last_offset_delta=9, producer_id=1, base_sequence=2))
    )
    batch.ensure_valid()
    assert (batch.base_offset, batch.last_offset, batch.record_count, list(batch)) == (40, 49, 0, [])
    assert batch.last_sequence == 11


def test_sequence_wraps() -> None:
    assert increment_sequence(2**31 - 1, 1) == 0
    assert increment_sequence(5, 3) == 8
    assert RecordBatch(batch_of(1)).last_sequence == -1
    assert RecordBatch(build_batch([Record(0, 0, None, None, [])], BatchOptions(base_sequence=-7))).last_sequence == -7


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_transaction_marker_is_built_and_parsed(commit: bool) -> None:
    marker = EndTransactionMarker(commit, coordinator_epoch=12)
    batch = RecordBatch(end_transaction_marker(marker, timestamp=NOW_MS, producer_id=5, producer_epoch=6, offset=100))
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (5, 6, -1)
    (record,) = batch
    assert record.offset == 100
    assert record.key == bytes((0, 0, 0, int(commit)))
    assert record.value == b"\x00\x00\x00\x00\x00\x0c"
    assert parse_end_transaction_marker(record) == marker


def test_other_control_types_are_no_markers() -> None:
    assert parse_end_transaction_marker(Record(0, 0, b"\x00\x00\x00\x02", b"")) is None


@pytest.mark.parametrize(
    "record",
    [
        Record(0, 0, None, None),
        Record(0, 0, b"\x00", None),
        Record(0, 0, b"\xff\xff\x00\x01", b"\x00" * 6),
        Record(0, 0, b"\x00\x00\x00\x01", None),
        Record(0, 0, b"\x00\x00\x00\x01", b"\x00" * 5),
        Record(0, 0, b"\x00\x00\x00\x01", b"\xff\xff\x00\x00\x00\x00"),
    ],
)
def test_damaged_markers_are_refused(record: Record) -> None:
    with pytest.raises(InvalidRecordError):
        parse_end_transaction_marker(record)


def test_the_type_of_a_control_record_is_in_its_key() -> None:
    assert control_record_type(b"\x00\x00\x00\x07") == 7


def with_section(section: bytes, count: int) -> RecordBatch:
    buffer = bytearray(build_batch([], BatchOptions(base_offset=0, last_offset_delta=count - 1))) + section
    buffer[8:12] = (len(buffer) - LOG_OVERHEAD).to_bytes(4, "big")
    buffer[57:61] = count.to_bytes(4, "big", signed=True)
    set_crc(buffer, 0, len(buffer))
    return RecordBatch(buffer)


RECORD = b"\x0e\x00\x00\x00\x02k\x01\x00"


@pytest.mark.parametrize(
    ("section", "count"),
    [
        (RECORD, -1),
        (RECORD, 2**31 - 1),
        (RECORD + b"\x00", 1),
        (RECORD, 2),
        (b"\x10" + RECORD[1:], 1),
        (b"\x0c" + RECORD[1:], 1),
        (b"\x01" + RECORD[1:], 1),
        (b"\x0e\x00\x00\x00\x02k\x01\x01", 1),  # -1 headers
        (b"\x0e\x00\x00\x00\x02k\x01\x7e", 1),  # 63 headers
        (b"\x0e\x00\x00\x00\x7ek\x01\x00", 1),  # key longer than the record
        (b"\x12\x00\x00\x00\x02k\x01\x02\x01\x00", 1),  # null header name
        (b"\x0e\x00\xff\xff\xff\xff\xff\xff", 1),
    ],
)
def test_malformed_records_are_refused(section: bytes, count: int) -> None:
    batch = with_section(section, count)
    batch.ensure_valid()
    with pytest.raises(InvalidRecordError):
        list(batch)


def test_a_negative_length_below_minus_one_is_null() -> None:
    batch = with_section(b"\x0c\x00\x00\x00\x03\x05\x00", 1)
    assert list(batch) == [Record(0, -1, None, None)]


def test_views_share_the_buffer() -> None:
    buffer = batch_of(1) + batch_of(2)
    second = RecordBatch(buffer, len(batch_of(1)))
    assert second.view().obj is buffer
    assert bytes(second.view()) == bytes(batch_of(2))
    assert "records=2" in repr(second)
