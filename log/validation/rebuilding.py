# cython: wraparound=True, boundscheck=True
"""Work on records of any format, one by one: checks that name invalid records, and batches that are rebuilt.

``validator`` and ``message_sets`` use it. Results for records that were changed in place are built here too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.log.validation.params import (
    MAX_RECORD_ERRORS,
    AppendContext,
    RecordError,
    RejectedRecordsError,
    RejectedTimestampsError,
    ValidationParams,
    ensure_size,
)
from tidelog.log.validation.result import BatchSummary, ValidationResult
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    MAGIC_V0,
    MAGIC_V2,
    NO_TIMESTAMP,
    BatchOptions,
    Record,
    RecordBatch,
    build_batch,
)

if TYPE_CHECKING:
    from tidelog.protocol.record.message_set import LegacyRecordBatch


def check_each_record(
    records: Iterable[Record], timestamp_type: int, params: ValidationParams, context: AppendContext
) -> None:
    """Check keys and timestamps, record by record. Raises RejectedRecordsError, RejectedTimestampsError."""
    faults: list[RecordError] = []
    invalid_timestamp = False
    for index, record in enumerate(records):
        if params.is_compacted and record.key is None:
            where = f"in topic partition {params.topic_partition}"
            faults.append(RecordError(index, f"Compacted topic cannot accept message without key {where}"))
        elif fault := _timestamp_fault(record.timestamp, timestamp_type, params, context.now_ms):
            invalid_timestamp = True
            faults.append(RecordError(index, fault))
        if len(faults) == MAX_RECORD_ERRORS:
            break
    if not faults:
        return
    shown = "; ".join(f"record {index}: {message}" for index, message in faults[:3])
    if invalid_timestamp:
        raise RejectedTimestampsError(f"One or more records have an invalid timestamp: {shown}", faults)
    raise RejectedRecordsError(f"One or more records have been rejected due to {len(faults)} errors: {shown}", faults)


def _timestamp_fault(timestamp: int, timestamp_type: int, params: ValidationParams, now_ms: int) -> str | None:
    if params.timestamp_type == CREATE_TIME and timestamp != NO_TIMESTAMP:
        earliest = max(0, now_ms - params.timestamp_before_max_ms)
        latest = now_ms + params.timestamp_after_max_ms
        if not earliest <= timestamp <= latest:
            return f"Timestamp {timestamp} is out of range. The timestamp should be within [{earliest}, {latest}]"
        return None
    if timestamp_type == LOG_APPEND_TIME:
        return "Producer should not set timestamp type to LogAppendTime"
    return None


def rebuild(records: Iterable[Record], options: BatchOptions, params: ValidationParams) -> ValidationResult:
    """Build batches of the topic's format from ``records``, with consecutive offsets from ``options.base_offset`` on.

    Raises MessageTooLargeError when the result is too large, UnsupportedCompressionTypeError for a codec that the
    format does not know.
    """
    first = options.base_offset or 0
    numbered = [
        Record(first + index, record.timestamp, record.key, record.value, record.headers)
        for index, record in enumerate(records)
    ]
    if params.magic == MAGIC_V2:
        return result_of(memoryview(build_batch(numbered, options)), params, sizes_changed=True)
    from tidelog.protocol.record.message_set import MessageSetOptions, build_message_set

    built = build_message_set(
        numbered,
        MessageSetOptions(params.magic, options.compression, options.level, options.log_append_time),
    )
    return result_of(memoryview(built), params, sizes_changed=True)


def result_of(view: memoryview, params: ValidationParams, *, sizes_changed: bool) -> ValidationResult:
    """Build the result for the finished batches in ``view``. Raises MessageTooLargeError if rebuilding made one too
    large."""
    return result_from(
        view, tuple(_summary(batch) for batch in iter_batches(view)), params, sizes_changed=sizes_changed
    )


def result_from(
    view: memoryview, summaries: tuple[BatchSummary, ...], params: ValidationParams, *, sizes_changed: bool
) -> ValidationResult:
    """Build the result of :func:`result_of` from the batches' summaries, with the same errors."""
    newest = max(summaries, key=lambda summary: summary.max_timestamp)
    if sizes_changed:
        for summary in summaries:
            ensure_size(summary.size_in_bytes, params)
    max_timestamp = newest.max_timestamp
    is_append_time = params.timestamp_type == LOG_APPEND_TIME and params.magic > MAGIC_V0
    return ValidationResult(
        records=view,
        first_offset=summaries[0].base_offset,
        last_offset=summaries[-1].last_offset,
        max_timestamp=max_timestamp,
        offset_of_max_timestamp=newest.last_offset if max_timestamp != NO_TIMESTAMP else -1,
        shallow_count=len(summaries),
        batches=summaries,
        sizes_changed=sizes_changed,
        log_append_time_ms=max_timestamp if is_append_time else NO_TIMESTAMP,
    )


def _summary(batch: RecordBatch | LegacyRecordBatch) -> BatchSummary:
    return BatchSummary(
        batch.position,
        batch.size_in_bytes,
        batch.base_offset,
        batch.last_offset,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.last_sequence,
        batch.is_transactional,
        batch.is_control,
    )
