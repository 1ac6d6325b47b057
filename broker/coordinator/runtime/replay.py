"""Encoding of a coordinator's records to batches, and their replay to a shard: after an append, and from the log.

A shard is the state machine of one partition of an internal topic. Its ``replay`` gets each record with its offset, and
with the producer if the batch belongs to a transaction. Its ``replay_end_transaction`` gets the transaction markers. A
record of an unknown type is skipped, and one that cannot be decoded (a newer Kafka wrote it) is logged and skipped.
Both stay in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from tidelog.broker.coordinator.runtime.result import CoordinatorRecord, CoordinatorResult, ProducerStamp
from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer
from tidelog.protocol.errors import InvalidRequestError, UnsupportedVersionError
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import (
    BatchOptions,
    Record,
    RecordBatch,
    build_batch,
    parse_end_transaction_marker,
)

logger = logging.getLogger(__name__)


class Serde(Protocol):
    """Encoder and decoder of an internal topic's records."""

    def encode(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        """Encode key and value; the value is None for a tombstone."""
        ...

    def decode(self, key: Any, value: Any) -> CoordinatorRecord | None:
        """Decode a record. Returns None for an unknown type. Raises InvalidRequestError, UnsupportedVersionError."""
        ...


class ReplayContext:
    """Context of a replayed record: its offset, and its producer if its batch belongs to a transaction (else -1)."""

    __slots__ = ("offset", "producer_epoch", "producer_id")

    def __init__(self, offset: int, producer_id: int = -1, producer_epoch: int = -1) -> None:
        self.offset = offset
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


class Shard(Protocol):
    """State machine of one partition of an internal topic: of the groups, transactional ids or share partitions whose
    records are in that partition.
    """

    timer: CoordinatorTimer

    def replay(self, record: CoordinatorRecord, context: ReplayContext) -> None:
        """Apply one record. State that is in the log changes only here and in ``replay_end_transaction``; classic
        groups are the exception."""
        ...

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, *, committed: bool) -> None:
        """Apply a transaction marker."""
        ...

    def on_loaded(self) -> Sequence[CoordinatorResult[None]]:
        """Start the timers, after the log was replayed. Returns results that the runtime executes at once."""
        ...


def encode_batch(
    serde: Serde, records: Sequence[CoordinatorRecord], stamp: ProducerStamp | None, now_ms: int
) -> bytearray:
    """Encode the records as one batch, which belongs to the transaction of ``stamp`` if there is one."""
    encode = serde.encode
    batch = [Record(offset, now_ms, *encode(record)) for offset, record in enumerate(records)]
    if stamp is None:
        return build_batch(batch)
    options = BatchOptions(producer_id=stamp.producer_id, producer_epoch=stamp.producer_epoch, is_transactional=True)
    return build_batch(batch, options)


def replay_result(shard: Shard, result: CoordinatorResult[Any], first_offset: int) -> None:
    """Replay the records of a result, which were just appended at this offset."""
    stamp = result.stamp
    context = ReplayContext(first_offset)
    if stamp is not None:
        context = ReplayContext(first_offset, stamp.producer_id, stamp.producer_epoch)
    for record in result.records:
        shard.replay(record, context)
        context.offset += 1


def replay_chunk(shard: Shard, serde: Serde, chunk: bytes | memoryview, from_offset: int, partition: str) -> int:
    """Replay the records from ``from_offset`` on of complete batches of a log. Returns the offset after these batches.
    ``partition`` is the log's topic and partition, for log lines. Raises KafkaError for damaged batches.
    """
    next_offset = from_offset
    for batch in iter_batches(chunk):
        next_offset = batch.next_offset
        context = ReplayContext(0)
        if isinstance(batch, RecordBatch):
            if batch.is_control:
                replay_control(shard, batch)
                continue
            if batch.is_transactional:
                context = ReplayContext(0, batch.producer_id, batch.producer_epoch)
        for record in batch.records():
            if record.offset < from_offset:
                continue
            context.offset = record.offset
            _replay_record(shard, serde, record, context, partition)
    return next_offset


def _replay_record(shard: Shard, serde: Serde, record: Record, context: ReplayContext, partition: str) -> None:
    if record.key is None:
        return
    try:
        decoded = serde.decode(record.key, record.value)
    except (InvalidRequestError, UnsupportedVersionError) as error:
        offset = record.offset
        logger.error("%s: the record at offset %d cannot be decoded and is skipped: %s", partition, offset, error)
        return
    if decoded is not None:
        shard.replay(decoded, context)


def replay_control(shard: Shard, batch: RecordBatch) -> None:
    """Replay a control batch, if it is a transaction marker."""
    for record in batch.records():
        marker = parse_end_transaction_marker(record)
        if marker is not None:
            shard.replay_end_transaction(batch.producer_id, batch.producer_epoch, committed=marker.commit)
