"""Parameters of a validation and the circumstances of an append, and the errors that refuse single records."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from tidelog.log.records.work_budget import NO_BUDGET, WorkBudget
from tidelog.protocol.errors import InvalidRecordError, InvalidTimestampError, MessageTooLargeError
from tidelog.protocol.record.record_batch import CREATE_TIME, LOG_OVERHEAD, MAGIC_V2

UNBOUNDED_MS = (1 << 63) - 1
#: Largest number of bytes to which a produced batch may decompress, or ``MAX_EXPANSION`` times ``max.message.bytes`` if
#: that is more; Kafka has no bound. gzip takes 3.3 ms a MiB: a decompression bomb takes 50 ms, with other codecs 10 ms.
MIN_DECOMPRESSED_BOUND_BYTES = 16 * 1024 * 1024
MAX_EXPANSION = 4
#: Largest number of faults that an answer lists one by one: a request of a million bad records must not make a million
#: strings.
MAX_RECORD_ERRORS = 100


class AppendOrigin(Enum):
    """The origin of an append. Clients may not write control batches; the others may."""

    CLIENT = 0
    COORDINATOR = 1
    REPLICATION = 2


class ValidationParams(NamedTuple):
    """The topic's configuration, as far as validation needs it; a log makes new ones when the configuration changes.
    Sizes in bytes, times in ms.

    ``magic`` is the topic's message format. ``compression`` None means "producer": keep the producer's codec.
    ``max_decompressed_bytes`` None means the bound that follows from ``max_message_bytes``.
    """

    topic_partition: str = ""
    magic: int = MAGIC_V2
    compression: int | None = None
    compression_level: int | None = None
    timestamp_type: int = CREATE_TIME
    timestamp_before_max_ms: int = UNBOUNDED_MS
    timestamp_after_max_ms: int = UNBOUNDED_MS
    max_message_bytes: int = 1024 * 1024 + LOG_OVERHEAD
    max_decompressed_bytes: int | None = None
    is_compacted: bool = False

    @property
    def decompressed_bound(self) -> int:
        """Return the bytes a batch may decompress to; more is MESSAGE_TOO_LARGE, and Java's producer then splits it
        (KIP-126)."""
        if self.max_decompressed_bytes is not None:
            return self.max_decompressed_bytes
        return max(MIN_DECOMPRESSED_BOUND_BYTES, MAX_EXPANSION * self.max_message_bytes)


class AppendContext(NamedTuple):
    """The circumstances of an append: the offset to assign first, the leader epoch, the time in ms, the origin and the
    request's work budget."""

    next_offset: int
    leader_epoch: int
    now_ms: int
    origin: AppendOrigin = AppendOrigin.CLIENT
    budget: WorkBudget = NO_BUDGET


class RecordError(NamedTuple):
    """A refused record: its index in the batch and why (KIP-467)."""

    batch_index: int
    message: str


class RejectedRecordsError(InvalidRecordError):
    """Single records are invalid: ``record_errors`` lists them (at most ``MAX_RECORD_ERRORS``)."""

    def __init__(self, message: str, record_errors: Sequence[RecordError]) -> None:
        super().__init__(message)
        self.record_errors = tuple(record_errors)


class RejectedTimestampsError(InvalidTimestampError):
    """Single records have invalid timestamps: ``record_errors`` lists them, and those that lack a key on a compacted
    topic (at most ``MAX_RECORD_ERRORS`` in all)."""

    def __init__(self, message: str, record_errors: Sequence[RecordError]) -> None:
        super().__init__(message)
        self.record_errors = tuple(record_errors)


def record_errors(error: BaseException) -> tuple[RecordError, ...]:
    """Return the invalid records that an error of this module names, for Produce v8+ answers; empty when the whole
    batch is refused.
    """
    return error.record_errors if isinstance(error, RejectedRecordsError | RejectedTimestampsError) else ()


def ensure_size(size: int, params: ValidationParams) -> None:
    """Raise MessageTooLargeError above ``max.message.bytes``."""
    if size > params.max_message_bytes:
        raise MessageTooLargeError(
            f"The record batch size in the append to {params.topic_partition} is {size} bytes which exceeds the "
            f"maximum configured value of {params.max_message_bytes}"
        )
