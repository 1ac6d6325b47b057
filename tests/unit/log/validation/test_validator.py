"""LogValidator: refusals, fields that are assigned in place, batches that are rebuilt, and equal results compiled and
in plain Python."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records import NOW_MS, batch_of, record_lists
from tidelog.log.validation.params import (
    MAX_RECORD_ERRORS,
    UNBOUNDED_MS,
    AppendContext,
    AppendOrigin,
    ValidationParams,
    record_errors,
)
from tidelog.log.validation.result import ValidationResult
from tidelog.log.validation.validator import LogValidator, validate_and_assign_offsets, validate_generally
from tidelog.protocol.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    MessageTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.compression import CompressionType, compress
from tidelog.protocol.record.message_set import (
    ByteBufferMessageSet,
    LegacyRecordBatch,
    MessageSetOptions,
    build_message_set,
)
from tidelog.protocol.record.message_writer import MessageWriter
from tidelog.protocol.record.record_batch import (
    LOG_APPEND_TIME,
    BatchOptions,
    EndTransactionMarker,
    Record,
    RecordBatch,
    build_batch,
    end_transaction_marker,
    set_crc,
)

CODECS = list(CompressionType)
OLD_CODECS = CODECS[:-1]
HOUR_MS = 3_600_000


def validate(
    records: bytes | bytearray, *, origin: AppendOrigin = AppendOrigin.CLIENT, **params: int | bool | str | None
) -> ValidationResult:
    """Assign offsets from 100 on under leader epoch 7."""
    validator = LogValidator(ValidationParams(topic_partition="topic-0", **params))  # type: ignore[arg-type]
    return validator.validate_and_assign_offsets(memoryview(bytearray(records)), 100, 7, NOW_MS, origin)


def stored(result: ValidationResult) -> list[Record]:
    """Return every record of the result, each batch checked first."""
    return list(_records_of(result))


def _records_of(result: ValidationResult) -> Iterator[Record]:
    for batch in iter_batches(result.records):
        batch.ensure_valid()
        yield from batch.records()


def patched(change: Callable[[bytearray], None], *, count: int = 2) -> bytearray:
    """Build a good batch with one change and the checksum made right again."""
    batch = batch_of(count)
    change(batch)
    set_crc(batch, 0, len(batch))
    return batch


def put(form: str, position: int, value: int) -> Callable[[bytearray], None]:
    return lambda batch: struct.pack_into(form, batch, position, value)


# --- magic 2, nothing to change --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 2, 300])
def test_a_good_batch_is_assigned_in_place(codec: CompressionType, count: int) -> None:
    view = memoryview(batch_of(count, compression=codec))
    result = LogValidator(ValidationParams()).validate_and_assign_offsets(view, 100, 7, NOW_MS)
    assert result.records is view
    assert (result.first_offset, result.last_offset) == (100, 99 + count)
    assert result.max_timestamp == NOW_MS + count - 1
    assert result.offset_of_max_timestamp == 99 + count
    assert not result.sizes_changed
    assert [record.offset for record in stored(result)] == list(range(100, 100 + count))
    assert RecordBatch(view).partition_leader_epoch == 7


def test_the_summary_has_the_fields_for_producer_state() -> None:
    batch = build_batch(
        [Record(i, NOW_MS, b"k", b"v") for i in range(3)],
        BatchOptions(producer_id=9, producer_epoch=4, base_sequence=2**31 - 2, is_transactional=True),
    )
    (summary,) = validate(batch).batches
    assert (summary.position, summary.size_in_bytes) == (0, len(batch))
    assert (summary.base_offset, summary.last_offset) == (100, 102)
    assert (summary.producer_id, summary.producer_epoch) == (9, 4)
    assert (summary.base_sequence, summary.last_sequence) == (2**31 - 2, 0)
    assert summary.is_transactional
    assert not summary.is_control


@given(
    records=record_lists(),
    codec=st.sampled_from(CODECS),
    producer=st.sampled_from([(-1, -1, -1), (5, 0, 0), (5, 1, 2**31 - 1)]),
    transactional=st.booleans(),
    compacted=st.booleans(),
    bounds=st.sampled_from([(UNBOUNDED_MS, UNBOUNDED_MS), (2**46, UNBOUNDED_MS), (UNBOUNDED_MS, 2**47)]),
)
def test_the_short_way_and_the_general_way_agree(
    records: list[Record],
    codec: CompressionType,
    producer: tuple[int, int, int],
    transactional: bool,
    compacted: bool,
    bounds: tuple[int, int],
) -> None:
    options = BatchOptions(
        compression=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        is_transactional=transactional,
    )
    params = ValidationParams(
        is_compacted=compacted, timestamp_before_max_ms=bounds[0], timestamp_after_max_ms=bounds[1]
    )
    batch = build_batch(records, options)
    context = AppendContext(100, 7, NOW_MS)
    outcomes: list[object] = []
    for way in (validate_and_assign_offsets, validate_generally):
        view = memoryview(bytearray(batch))
        try:
            result = way(view, params, context)
            outcomes.append((bytes(result.records), result._replace(records=b"")))
        except KafkaError as error:
            assert bytes(view) == batch, "what is refused is not changed"
            outcomes.append((type(error), str(error), record_errors(error)))
    assert outcomes[0] == outcomes[1]


def test_a_read_only_buffer_is_copied() -> None:
    batch = bytes(batch_of(2))
    result = LogValidator(ValidationParams()).validate_and_assign_offsets(memoryview(batch), 100, 7, NOW_MS)
    assert bytes(result.records) != batch
    assert [record.offset for record in stored(result)] == [100, 101]


def test_a_cut_second_batch_is_left_out() -> None:
    result = validate(batch_of(2) + batch_of(3)[:-1])
    assert len(result.records) == len(batch_of(2))
    assert result.last_offset == 101


# --- magic 2, refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put(">q", 0, 1), "baseOffset"),
        (put(">i", 23, -1), "offset range"),
        (put(">i", 23, 5), "Inconsistent"),
        (put(">i", 57, 0), "count"),
        (put(">i", 57, -5), "count"),
        (put(">i", 57, 2**31 - 1), "count"),
        (put(">h", 21, 0x20), "control"),
        (put(">h", 21, 0x40), "delete horizon"),
        (put(">q", 43, 5), "sequence"),
        (put(">b", 61, 0x01), "size"),
        (put(">b", 61, 0x7E), "record"),
    ],
)
def test_bad_batches_are_refused(change: Callable[[bytearray], None], reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason) as caught:
        validate(patched(change))
    assert record_errors(caught.value) == ()


def test_a_claimed_count_of_2_to_the_31_costs_nothing() -> None:
    def change(batch: bytearray) -> None:
        struct.pack_into(">i", batch, 23, 2**31 - 2)
        struct.pack_into(">i", batch, 57, 2**31 - 1)

    with pytest.raises(InvalidRecordError, match="count 2147483647"):
        validate(patched(change))


@pytest.mark.parametrize("position", [17, 21, 40, 60, 61, 90])
def test_damage_is_corrupt(position: int) -> None:
    batch = batch_of(2)
    batch[position] ^= 0x40
    with pytest.raises(CorruptMessageError):
        validate(batch)


@pytest.mark.parametrize("records", [b"", b"\x00" * 10, bytes(batch_of(1))[:-1]])
def test_no_whole_batch_is_refused(records: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="no batches"):
        validate(records)


def test_two_batches_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="more than one"):
        validate(batch_of(1) + batch_of(1))


def test_mixed_magics_are_refused() -> None:
    old = build_message_set([Record(0, NOW_MS, b"k", b"v")], MessageSetOptions(1))
    with pytest.raises(InvalidRecordError, match="magic"):
        validate(bytes(batch_of(1)) + old)


def test_a_batch_above_the_limit_is_too_large() -> None:
    batch = batch_of(2)
    assert validate(batch, max_message_bytes=len(batch)).last_offset == 101
    with pytest.raises(MessageTooLargeError, match=str(len(batch))):
        validate(batch, max_message_bytes=len(batch) - 1)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(UnsupportedCompressionTypeError):
        validate(patched(put(">h", 21, 5)))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_bomb_is_refused(codec: CompressionType) -> None:
    batch = build_batch([Record(0, NOW_MS, b"k", bytes(5_000_000))], BatchOptions(compression=codec))
    with pytest.raises(MessageTooLargeError, match="more than 1000000"):
        validate(batch, max_decompressed_bytes=1_000_000)


def test_keys_are_required_on_compacted_topics() -> None:
    batch = build_batch([Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS, None, b"v"), Record(2, NOW_MS, None, b"v")])
    assert validate(batch).last_offset == 102
    with pytest.raises(InvalidRecordError, match="without key") as caught:
        validate(batch, is_compacted=True)
    assert [index for index, _ in record_errors(caught.value)] == [1, 2]


def test_the_number_of_reported_records_is_limited() -> None:
    batch = build_batch([Record(i, NOW_MS, None, b"v") for i in range(1000)])
    with pytest.raises(InvalidRecordError) as caught:
        validate(batch, is_compacted=True)
    assert len(record_errors(caught.value)) == MAX_RECORD_ERRORS


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
def test_timestamps_out_of_bounds_are_blamed_by_index(codec: CompressionType) -> None:
    times = [NOW_MS, NOW_MS - HOUR_MS - 1, NOW_MS - HOUR_MS, NOW_MS + HOUR_MS, NOW_MS + HOUR_MS + 1, -1]
    batch = build_batch([Record(i, t, b"k", b"v") for i, t in enumerate(times)], BatchOptions(compression=codec))
    assert validate(batch).last_offset == 105
    with pytest.raises(InvalidTimestampError) as caught:
        validate(batch, timestamp_before_max_ms=HOUR_MS, timestamp_after_max_ms=HOUR_MS)
    assert [index for index, _ in record_errors(caught.value)] == [1, 4]


def test_negative_timestamps_are_refused() -> None:
    batch = build_batch([Record(0, -2, b"k", b"v")])
    with pytest.raises(InvalidTimestampError):
        validate(batch)


def test_timestamps_beyond_64_bits_are_refused() -> None:
    batch = build_batch([Record(0, 0, b"k", b"v"), Record(1, 2**62, b"k", b"v")])
    struct.pack_into(">q", batch, 27, 2**62)
    set_crc(batch, 0, len(batch))
    with pytest.raises(InvalidTimestampError, match="64 bits"):
        validate(batch)


# --- magic 2, changed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_is_stamped_in_place_with_a_new_checksum(codec: CompressionType) -> None:
    view = memoryview(batch_of(3, compression=codec, first_timestamp=5))
    validator = LogValidator(ValidationParams(timestamp_type=LOG_APPEND_TIME))
    result = validator.validate_and_assign_offsets(view, 100, 7, NOW_MS)
    assert result.records == view
    assert [record.timestamp for record in stored(result)] == [NOW_MS] * 3
    assert (result.max_timestamp, result.log_append_time_ms) == (NOW_MS, NOW_MS)
    assert not result.sizes_changed


def test_a_producer_may_not_claim_log_append_time() -> None:
    batch = build_batch([Record(0, 5, b"k", b"v")], BatchOptions(log_append_time=NOW_MS))
    with pytest.raises(InvalidTimestampError, match="LogAppendTime"):
        validate(batch, timestamp_type=LOG_APPEND_TIME)


def test_a_wrong_largest_timestamp_is_put_right() -> None:
    result = validate(patched(put(">q", 35, NOW_MS + 999)))
    assert result.max_timestamp == NOW_MS + 1
    assert RecordBatch(result.records).max_timestamp == NOW_MS + 1
    assert len(stored(result)) == 2


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", CODECS)
@pytest.mark.parametrize("timestamp_type", [0, 1])
def test_another_codec_recompresses(source: CompressionType, target: CompressionType, timestamp_type: int) -> None:
    options = BatchOptions(compression=source, producer_id=1, producer_epoch=2, base_sequence=3)
    records = [Record(i, NOW_MS - i, b"k%d" % i, b"v" * 50, (("h", b"x"),), 3 + i) for i in range(20)]
    result = validate(build_batch(records, options), compression=int(target), timestamp_type=timestamp_type)
    assert RecordBatch(result.records).compression_type == target
    assert result.sizes_changed == (source != target)
    expected = [
        record._replace(offset=100 + i, timestamp=NOW_MS if timestamp_type else record.timestamp)
        for i, record in enumerate(records)
    ]
    assert stored(result) == expected
    assert result.max_timestamp == NOW_MS


def test_a_batch_that_grows_above_the_limit_is_too_large() -> None:
    batch = batch_of(1000, compression=CompressionType.ZSTD)
    with pytest.raises(MessageTooLargeError):
        validate(batch, compression=0, max_message_bytes=2 * len(batch))


@pytest.mark.parametrize("codec", CODECS)
def test_odd_offset_deltas_are_numbered_again(codec: CompressionType) -> None:
    """Kafka corrects the wrong deltas of some old clients; so does Tidelog, instead of refusing the batch."""
    records = [Record(offset, NOW_MS, b"k", b"v") for offset in (0, 7, 2)]
    result = validate(build_batch(records, BatchOptions(compression=codec)))
    assert [record.offset for record in stored(result)] == [100, 101, 102]


def test_coordinators_write_control_batches_in_place() -> None:
    marker = end_transaction_marker(EndTransactionMarker(True, 1), timestamp=NOW_MS, producer_id=5, producer_epoch=0)
    with pytest.raises(InvalidRecordError, match="control"):
        validate(marker)
    result = validate(marker, origin=AppendOrigin.COORDINATOR, compression=int(CompressionType.GZIP))
    assert not result.sizes_changed
    (summary,) = result.batches
    assert summary.is_control


# --- old formats -----------------------------------------------------------------------------------------------------


def some_records(count: int = 5) -> list[Record]:
    return [Record(i, NOW_MS + i, b"key-%d" % i, b"value-%d" % i) for i in range(count)]


def in_format(magic: int, codec: int) -> bytes:
    if magic == 2:
        return bytes(build_batch(some_records(), BatchOptions(compression=codec)))
    return build_message_set(some_records(), MessageSetOptions(magic, codec))


@pytest.mark.parametrize("source_magic", [0, 1, 2])
@pytest.mark.parametrize("target_magic", [0, 1, 2])
@pytest.mark.parametrize("source_codec", OLD_CODECS)
@pytest.mark.parametrize("target_codec", [None, *map(int, OLD_CODECS)])
@pytest.mark.parametrize("timestamp_type", [0, 1])
def test_every_format_into_every_format(
    source_magic: int, target_magic: int, source_codec: int, target_codec: int | None, timestamp_type: int
) -> None:
    result = validate(
        in_format(source_magic, source_codec),
        magic=target_magic,
        compression=target_codec,
        timestamp_type=timestamp_type,
    )
    times = {0: -1, 1: NOW_MS if timestamp_type else None}.get(target_magic and 1)
    expected = [
        record._replace(
            offset=100 + i,
            timestamp=times if times is not None else -1 if source_magic == 0 else record.timestamp,
        )
        for i, record in enumerate(some_records())
    ]
    assert stored(result) == expected
    assert (result.first_offset, result.last_offset) == (100, 104)
    assert result.max_timestamp == max(record.timestamp for record in expected)
    for batch in iter_batches(result.records):
        assert batch.magic == target_magic
        assert batch.compression_type == (source_codec if target_codec is None else target_codec)
        assert batch.timestamp_type == (timestamp_type if target_magic else 0)


@pytest.mark.parametrize("magic", [0, 1])
def test_uncompressed_sets_are_assigned_in_place(magic: int) -> None:
    view = memoryview(bytearray(in_format(magic, 0)))
    result = LogValidator(ValidationParams(magic=magic)).validate_and_assign_offsets(view, 100, 7, NOW_MS)
    assert result.records == view
    assert not result.sizes_changed
    assert [record.offset for record in ByteBufferMessageSet(view)] == [100, 101, 102, 103, 104]
    assert result.shallow_count == 5


def test_a_magic_1_wrapper_is_assigned_in_place() -> None:
    view = memoryview(bytearray(in_format(1, 1)))
    before = bytes(view)
    result = LogValidator(ValidationParams(magic=1)).validate_and_assign_offsets(view, 100, 7, NOW_MS)
    assert not result.sizes_changed
    assert bytes(view)[8:] == before[8:]
    assert LegacyRecordBatch(view).offset == 104
    assert result.offset_of_max_timestamp == 104


def test_a_magic_1_wrapper_with_other_inner_offsets_is_rebuilt() -> None:
    records = [Record(offset, NOW_MS, b"k", b"v") for offset in (0, 3, 4)]
    result = validate(build_message_set(records, MessageSetOptions(1, 1)), magic=1)
    assert result.sizes_changed
    assert [record.offset for record in stored(result)] == [100, 101, 102]


def test_a_wrapper_gets_its_largest_inner_timestamp() -> None:
    inner = build_message_set(some_records(), MessageSetOptions(1))
    writer = MessageWriter()
    with writer.entry(4), writer.message(1, 1, 0, None):
        writer.write_nullable(compress(inner, 1))
    result = validate(writer.to_bytes(), magic=1)
    assert result.max_timestamp == NOW_MS + 4
    assert not result.sizes_changed


def test_damage_inside_a_wrapper_is_corrupt() -> None:
    inner = bytearray(build_message_set(some_records(), MessageSetOptions(1)))
    inner[-1] ^= 1
    writer = MessageWriter()
    with writer.entry(4), writer.message(1, 1, 0, None):
        writer.write_nullable(compress(inner, 1))
    with pytest.raises(CorruptMessageError, match="Inner"):
        validate(writer.to_bytes())


def test_damaged_messages_are_corrupt() -> None:
    damaged = bytearray(in_format(1, 0))
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessageError):
        validate(damaged)


def test_two_wrappers_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="more than one"):
        validate(in_format(1, 1) + in_format(1, 1))


@pytest.mark.parametrize("codec", [0, 1])
def test_keys_and_timestamps_of_old_messages_are_checked(codec: int) -> None:
    records = [Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS + HOUR_MS, None, b"v")]
    old = build_message_set(records, MessageSetOptions(1, codec))
    with pytest.raises(InvalidRecordError) as caught:
        validate(old, is_compacted=True)
    assert [index for index, _ in record_errors(caught.value)] == [1]
    with pytest.raises(InvalidTimestampError) as late:
        validate(old, timestamp_after_max_ms=1000)
    assert [index for index, _ in record_errors(late.value)] == [1]


@pytest.mark.parametrize(("producer_id", "transactional"), [(5, False), (5, True), (-1, True)])
def test_old_topic_formats_have_no_producer_state(producer_id: int, transactional: bool) -> None:
    options = BatchOptions(producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=transactional)
    with pytest.raises(UnsupportedForMessageFormatError):
        validate(build_batch(some_records(), options), magic=1)


def test_old_topic_formats_have_no_zstd() -> None:
    with pytest.raises(UnsupportedCompressionTypeError):
        validate(in_format(2, int(CompressionType.ZSTD)), magic=1)


def test_a_read_only_message_set_is_copied() -> None:
    validator = LogValidator(ValidationParams(magic=1))
    result = validator.validate_and_assign_offsets(memoryview(in_format(1, 0)), 100, 7, NOW_MS)
    assert result.last_offset == 104
