"""Compiled check of the usual produced batch: magic 2, with nothing to change but offset and leader epoch.

``LogValidator._assign_single`` is the same in plain Python, and is used where nothing is compiled. Malformed records
are left to ``validator.validate_generally``, which names the fault. C types are in ``single_batch.pxd``. Any thread.
"""

from __future__ import annotations

from tidelog.log.records import section_walk
from tidelog.log.records.work_budget import TURN_RECORDS, TURN_RECORDS_COMPILED, TooMuchForTurnError, WorkBudget
from tidelog.log.validation.result import BatchSummary, ValidationResult
from tidelog.protocol.compiled import words
from tidelog.protocol.record.record_batch import (
    ATTRIBUTES_OFFSET,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MAGIC_V2,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    Buffer,
)

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

NO_CODEC = -1
"""Value of ``BatchLimits.codec`` when the topic keeps the producer's codec."""
_SLOW_ATTRIBUTES = TIMESTAMP_TYPE_MASK | CONTROL_MASK | DELETE_HORIZON_MASK
_CODEC = 0x07
_TRANSACTIONAL = TRANSACTIONAL_MASK
_OVERHEAD, _LOG_OVERHEAD, _MAGIC, _V2 = RECORD_BATCH_OVERHEAD, LOG_OVERHEAD, MAGIC_OFFSET, MAGIC_V2
_ATTRIBUTES = ATTRIBUTES_OFFSET
_LENGTH, _EPOCH, _CRC, _LAST_DELTA, _BASE_TIMESTAMP, _MAX_TIMESTAMP = 8, 12, 17, 23, 27, 35
_PRODUCER_ID, _PRODUCER_EPOCH, _BASE_SEQUENCE, _COUNT = 43, 51, 53, 57
_NO_PRODUCER, _NO_TIME = NO_PRODUCER_ID, NO_TIMESTAMP
_FAR = 1 << 62
"""Larger timestamps and deltas are left to ``validate_generally``: their sums may not fit into 64 bits."""
_LOCKED_BYTES = 4096
"""Up to this size the interpreter lock is kept: to drop it and take it again takes longer than the work."""
_MAX_RECORDS = TURN_RECORDS_COMPILED if IS_COMPILED else TURN_RECORDS


class CheckedBatch:
    """Validated records and what an append needs of them: offsets, times, and the first batch's producer fields.

    ``indexed_offset`` is the last offset of the first batch, for an entry of the offset index.
    """

    __slots__ = (
        "append_time_ms",
        "base_sequence",
        "first_offset",
        "indexed_offset",
        "is_control",
        "is_transactional",
        "last_offset",
        "last_sequence",
        "max_timestamp",
        "offset_of_max_timestamp",
        "producer_epoch",
        "producer_id",
        "records",
    )

    def note(
        self,
        records: Buffer,
        first_offset: int,
        last_delta: int,
        max_timestamp: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        is_transactional: bool,
    ) -> None:
        """Set all fields from the header of a client's batch."""
        self.records = records
        self.first_offset = first_offset
        self.last_offset = self.indexed_offset = first_offset + last_delta
        self.max_timestamp = max_timestamp
        self.offset_of_max_timestamp = self.last_offset if max_timestamp >= 0 else -1
        self.append_time_ms = _NO_TIME
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.last_sequence = base_sequence if base_sequence < 0 else (base_sequence + last_delta) & 0x7FFFFFFF
        self.is_transactional = is_transactional
        self.is_control = False

    def take(self, result: ValidationResult) -> None:
        """Set all fields from the result of a validation."""
        summary = result.batches[0]
        self.records = result.records
        self.first_offset = result.first_offset
        self.last_offset = result.last_offset
        # An index entry names one message of an old set: it has the position of the first one, so also its offset.
        self.indexed_offset = result.last_offset if result.shallow_count == 1 else summary.last_offset
        self.max_timestamp = result.max_timestamp
        self.offset_of_max_timestamp = result.offset_of_max_timestamp
        self.append_time_ms = result.log_append_time_ms
        self.producer_id = summary.producer_id
        self.producer_epoch = summary.producer_epoch
        self.base_sequence = summary.base_sequence
        self.last_sequence = summary.last_sequence
        self.is_transactional = summary.is_transactional
        self.is_control = summary.is_control

    def build_result(self) -> ValidationResult:
        """Build the same result as ``validate_generally`` for a batch that :meth:`note` took."""
        summary = BatchSummary(
            0, len(self.records), self.first_offset, self.last_offset, self.max_timestamp, self.producer_id,
            self.producer_epoch, self.base_sequence, self.last_sequence, bool(self.is_transactional), False,
        )  # fmt: skip
        return ValidationResult(
            self.records, self.first_offset, self.last_offset, self.max_timestamp, self.offset_of_max_timestamp, 1,
            (summary,), False, self.append_time_ms,
        )  # fmt: skip


class BatchLimits:
    """A topic's limits for a batch: codec (or NO_CODEC), bytes before and after decompression, timestamps relative to
    now in ms, and whether records need keys."""

    __slots__ = ("after_ms", "before_ms", "codec", "is_keyed", "max_bytes", "max_plain")

    def __init__(
        self, codec: int, max_bytes: int, max_plain: int, before_ms: int, after_ms: int, *, is_keyed: bool
    ) -> None:
        self.codec = codec
        self.max_bytes = max_bytes
        self.max_plain = max_plain
        self.before_ms = before_ms
        self.after_ms = after_ms
        self.is_keyed = is_keyed


def attributes_of(records: Buffer | None) -> int:
    """Return the attributes if ``records`` is exactly one batch of magic 2, by its length field; else -1."""
    if records is None:
        return -1
    held = words.hold(records)
    attributes = -1
    data, size = held.data, held.size
    if size >= _OVERHEAD and data[_MAGIC] == _V2 and words.load_be_i32(data, _LENGTH) == size - _LOG_OVERHEAD:
        attributes = words.load_be_u16(data, _ATTRIBUTES)
    words.release(held)
    return attributes


def check_and_assign(
    records: memoryview,
    next_offset: int,
    leader_epoch: int,
    now_ms: int,
    limits: BatchLimits,
    budget: WorkBudget,
    checked: CheckedBatch,
) -> bool:
    """Check a batch, write its offset and leader epoch in place and note it in ``checked``.

    Returns False, with nothing changed, if ``validate_generally`` has to validate it.

    Raises what ``WorkBudget.decompress`` raises, TooMuchForTurnError.
    """
    if records.readonly:
        return False
    held = words.hold_writable(records)
    try:
        return _check_and_assign(held, records, next_offset, leader_epoch, now_ms, limits, budget, checked)
    finally:
        words.release(held)


def _check_and_assign(
    held: words.Held,
    records: memoryview,
    next_offset: int,
    leader_epoch: int,
    now_ms: int,
    limits: BatchLimits,
    budget: WorkBudget,
    checked: CheckedBatch,
) -> bool:
    data, size = held.data, held.size
    if not _is_usual(data, size, limits):
        return False
    count = words.load_be_i32(data, _COUNT)
    if count > _MAX_RECORDS and budget.in_turn:
        raise TooMuchForTurnError
    codec = data[_ATTRIBUTES + 1] & _CODEC
    plain_size = 0
    if codec:
        plain = words.hold(budget.decompress(records[_OVERHEAD:], codec, limits.max_plain, count))
        with cython.nogil:
            is_whole, low, high, keyless, is_consecutive = section_walk.walk(plain.data, plain.size, count)
        plain_size = plain.size
        words.release(plain)
    elif size <= _LOCKED_BYTES:
        is_whole, low, high, keyless, is_consecutive = _check_plain(data, size, count)
    else:
        with cython.nogil:
            is_whole, low, high, keyless, is_consecutive = _check_plain(data, size, count)
    base_timestamp, max_timestamp = words.load_be_i64(data, _BASE_TIMESTAMP), words.load_be_i64(data, _MAX_TIMESTAMP)
    if (
        not (is_whole and is_consecutive and -_FAR < base_timestamp < _FAR and low > -_FAR and high < _FAR)
        or high + base_timestamp != max_timestamp
        or low + base_timestamp < _NO_TIME
        or low + base_timestamp < now_ms - limits.before_ms
        or max_timestamp - now_ms > limits.after_ms
        or (keyless >= 0 and limits.is_keyed)
    ):
        if codec:
            budget.give_back(plain_size, count)
        return False
    words.store_be_u64(held.bytes, 0, next_offset)
    words.store_be_u32(held.bytes, _EPOCH, leader_epoch)
    checked.note(
        records,
        next_offset,
        words.load_be_i32(data, _LAST_DELTA),
        max_timestamp,
        words.load_be_i64(data, _PRODUCER_ID),
        words.load_be_i16(data, _PRODUCER_EPOCH),
        words.load_be_i32(data, _BASE_SEQUENCE),
        data[_ATTRIBUTES + 1] & _TRANSACTIONAL != 0,
    )
    return True


def _is_usual(data: words.Bytes, size: int, limits: BatchLimits) -> bool:
    """Return whether the header shows that the batch needs nothing but an offset and leader epoch. The checksum of a
    compressed batch must be right, too."""
    if size < _OVERHEAD or data[_MAGIC] != _V2 or size > limits.max_bytes or words.load_be_u64(data, 0) != 0:
        return False
    attributes = words.load_be_u16(data, _ATTRIBUTES)
    codec = attributes & _CODEC
    last_delta = words.load_be_i32(data, _LAST_DELTA)
    if (
        words.load_be_i32(data, _LENGTH) != size - _LOG_OVERHEAD
        or attributes & _SLOW_ATTRIBUTES
        or last_delta < 0
        or last_delta != words.load_be_i32(data, _COUNT) - 1
        or (words.load_be_i32(data, _BASE_SEQUENCE) < 0 and words.load_be_i64(data, _PRODUCER_ID) != _NO_PRODUCER)
        or (limits.codec >= 0 and codec != limits.codec)
    ):
        return False
    if codec:
        return words.crc32c(data, _ATTRIBUTES, size - _ATTRIBUTES) == words.load_be_u32(data, _CRC)
    return True  # without compression, ``_check_plain`` compares the checksum


def _check_plain(data: words.Bytes, size: int, count: int) -> tuple[bool, int, int, int, bool]:
    """Compare the checksum of a batch that is not compressed, and walk over its records; see ``section_walk.walk``."""
    if words.crc32c(data, _ATTRIBUTES, size - _ATTRIBUTES) != words.load_be_u32(data, _CRC):
        return False, 0, 0, 0, False
    return section_walk.walk(words.at(data, _OVERHEAD), size - _OVERHEAD, count)
