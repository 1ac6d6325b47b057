"""Records of ``__transaction_state``: one value per transactional id, the latest counts.

Written in version 1, the first with tagged fields, as Kafka 4 does with transaction version 2; version 0 is read.
Source: transaction-coordinator ``common/message/*.json`` of Kafka 4.3; KIP-98, KIP-890.
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.coordinator.runtime.result import CoordinatorRecord
from tidelog.protocol.schema.fields import Message, Struct, array, int8, int16, int32, int64, string


class TransactionLogKey(Message, api_key=0, versions="0"):
    transactional_id: str = string()


class PartitionsSchema(Struct):
    topic: str = string()
    partition_ids: list[int] = array(int32)


class TransactionLogValue(Message, api_key=0, versions="0-1", flexible="1+"):
    producer_id: int = int64()
    previous_producer_id: int = int64("1+", default=-1, tag=0)
    next_producer_id: int = int64("1+", default=-1, tag=1)
    producer_epoch: int = int16()
    next_producer_epoch: int = int16("1+", default=-1, tag=3)
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable="0+")
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16("1+", default=0, tag=2)


_KEY_PREFIX = b"\0\0"
_WRITTEN_VERSION = 1


class TransactionRecordSerde:
    """Bytes of the records of ``__transaction_state``."""

    @staticmethod
    def encode(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        """Key and value as they stand in the log."""
        value = record.value
        return _KEY_PREFIX + record.key.encode(0), None if value is None else value.encode_prefixed(_WRITTEN_VERSION)

    @staticmethod
    def decode(key: Any, value: Any) -> CoordinatorRecord | None:
        """The record of these bytes; None for a key of a newer kind. Raises InvalidRequestError."""
        if bytes(key[:2]) != _KEY_PREFIX:
            return None
        decoded = None if value is None else TransactionLogValue.decode_prefixed(memoryview(value))
        return CoordinatorRecord(TransactionLogKey.decode(memoryview(key)[2:], 0), decoded)
