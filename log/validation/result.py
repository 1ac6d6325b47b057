"""Result of a validation: records as they will be stored, and what producer state and indices need of them."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.protocol.record.record_batch import Buffer


class BatchSummary(NamedTuple):
    """One batch as it will be stored, at byte ``position`` of the result's records."""

    position: int
    size_in_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    is_transactional: bool
    is_control: bool


class ValidationResult(NamedTuple):
    """Records ready to append. ``records`` is the producer's buffer if offsets and timestamps could be set in it, else
    new bytes.

    ``offset_of_max_timestamp`` is the last offset of the first batch that holds the largest timestamp, as in Kafka's
    time index; -1 when no record has a timestamp. ``log_append_time_ms`` is -1 under create time.
    ``shallow_count`` is the number of batches, or of outer messages of magic 0 and 1. ``sizes_changed`` says that the
    batches were rebuilt, so their sizes may differ from the producer's.
    """

    records: Buffer
    first_offset: int
    last_offset: int
    max_timestamp: int
    offset_of_max_timestamp: int
    shallow_count: int
    batches: tuple[BatchSummary, ...]
    sizes_changed: bool
    log_append_time_ms: int
