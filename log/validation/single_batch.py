"""Compiled check of the usual produced batch: magic 2, nothing to change but offset and epoch.

Equal to ``LogValidator._single_unchanged`` in plain Python, which serves uncompiled, but for malformed records: those
are left to the general way, which names the fault. Types for C stand in ``single_batch.pxd``. Any thread.
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
)

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

NO_CODEC = -1
"""The topic keeps the codec that came."""
_SLOW_ATTRIBUTES = TIMESTAMP_TYPE_MASK | CONTROL_MASK | DELETE_HORIZON_MASK
_CODEC = 0x07
_TRANSACTIONAL = TRANSACTIONAL_MASK
_OVERHEAD, _LOG_OVERHEAD, _MAGIC, _V2 = RECORD_BATCH_OVERHEAD, LOG_OVERHEAD, MAGIC_OFFSET, MAGIC_V2
_ATTRIBUTES = ATTRIBUTES_OFFSET
_LENGTH, _EPOCH, _CRC, _LAST_DELTA, _BASE_TIMESTAMP, _MAX_TIMESTAMP = 8, 12, 17, 23, 27, 35
_PRODUCER_ID, _PRODUCER_EPOCH, _BASE_SEQUENCE, _COUNT = 43, 51, 53, 57
_NO_PRODUCER, _NO_TIME = NO_PRODUCER_ID, NO_TIMESTAMP
_FAR = 1 << 62
"""Timestamps and deltas beyond this are left to the general way: their sums may not fit 64 bits."""
_LOCKED_BYTES = 4096
"""Up to this size the interpreter lock is kept: to drop it and take it again takes longer than the work."""
_MOST_RECORDS = TURN_RECORDS_COMPILED if IS_COMPILED else TURN_RECORDS
# Makes a named tuple without the Python function in front of it.
_new_tuple = tuple.__new__


class BatchLimits:
    """The topic's side of the check; ``codec`` is NO_CODEC where any will do."""

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


def check_and_assign(
    records: memoryview, next_offset: int, leader_epoch: int, now_ms: int, limits: BatchLimits, budget: WorkBudget
) -> ValidationResult | None:
    """Check a batch and write its offset and leader epoch in place; None: take the general way, nothing was changed.

    Raises what ``WorkBudget.decompress`` raises, TooMuchForTurnError.
    """
    if records.readonly:
        return None
    held = words.hold_writable(records)
    try:
        return _check_and_assign(held, records, next_offset, leader_epoch, now_ms, limits, budget)
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
) -> ValidationResult | None:
    data, size = held.data, held.size
    if not _is_usual(data, size, limits):
        return None
    count = words.load_be_i32(data, _COUNT)
    if count > _MOST_RECORDS and budget.in_turn:
        raise TooMuchForTurnError
    codec = data[_ATTRIBUTES + 1] & _CODEC
    if codec:
        plain = words.hold(budget.decompress(records[_OVERHEAD:], codec, limits.max_plain, count))
        with cython.nogil:
            is_whole, low, high, keyless, is_consecutive = section_walk.walk(plain.data, plain.size, count)
        words.release(plain)
    elif size <= _LOCKED_BYTES:
        is_whole, low, high, keyless, is_consecutive = _check_plain(data, size, count)
    else:
        with cython.nogil:
            is_whole, low, high, keyless, is_consecutive = _check_plain(data, size, count)
    base_timestamp, max_timestamp = words.load_be_i64(data, _BASE_TIMESTAMP), words.load_be_i64(data, _MAX_TIMESTAMP)
    if not (is_whole and is_consecutive and -_FAR < base_timestamp < _FAR and low > -_FAR and high < _FAR):
        return None
    low += base_timestamp
    if (
        high + base_timestamp != max_timestamp
        or low < _NO_TIME
        or low < now_ms - limits.before_ms
        or max_timestamp - now_ms > limits.after_ms
        or (keyless >= 0 and limits.is_keyed)
    ):
        return None
    words.store_be_u64(held.bytes, 0, next_offset)
    words.store_be_u32(held.bytes, _EPOCH, leader_epoch)
    last_delta, base_sequence = words.load_be_i32(data, _LAST_DELTA), words.load_be_i32(data, _BASE_SEQUENCE)
    last_offset = next_offset + last_delta
    last_sequence = base_sequence if base_sequence < 0 else (base_sequence + last_delta) & 0x7FFFFFFF
    is_transactional = data[_ATTRIBUTES + 1] & _TRANSACTIONAL != 0
    summary = _new_tuple(BatchSummary, (
        0, size, next_offset, last_offset, max_timestamp, words.load_be_i64(data, _PRODUCER_ID),
        words.load_be_i16(data, _PRODUCER_EPOCH), base_sequence, last_sequence, is_transactional, False,
    ))  # fmt: skip
    shallow = last_offset if max_timestamp >= 0 else -1
    return _new_tuple(ValidationResult, (
        records, next_offset, last_offset, max_timestamp, shallow, 1, (summary,), False, _NO_TIME,
    ))  # fmt: skip


def _is_usual(data: words.Bytes, size: int, limits: BatchLimits) -> bool:
    """Return whether the header asks for nothing but an offset, and the checksum is right."""
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
    return True  # the checksum of records that are not compressed is computed with the walk over them


def _check_plain(data: words.Bytes, size: int, count: int) -> tuple[bool, int, int, int, bool]:
    """Checksum and walk of a batch that is not compressed."""
    if words.crc32c(data, _ATTRIBUTES, size - _ATTRIBUTES) != words.load_be_u32(data, _CRC):
        return False, 0, 0, 0, False
    return section_walk.walk(words.at(data, _OVERHEAD), size - _OVERHEAD, count)
