"""Records of ``__transaction_state``: one value per transactional id, the latest counts.

Written in version 1, the first with tagged fields, as Kafka 4 does with transaction version 2; version 0 is read.
Source: transaction-coordinator ``common/message/*.json`` of Kafka 4.3; KIP-98, KIP-890.
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.coordinator.runtime.result import CoordinatorRecord
from tidelog.protocol.coordinator_records.transaction import TransactionLogKey, TransactionLogValue

_KEY_PREFIX = b"\0\0"
_WRITTEN_VERSION = 1


class TransactionRecordSerde:
    """Encoder and decoder of the records of ``__transaction_state``."""

    @staticmethod
    def encode(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        """Encode key and value as they stand in the log."""
        value = record.value
        return _KEY_PREFIX + record.key.encode(0), None if value is None else value.encode_prefixed(_WRITTEN_VERSION)

    @staticmethod
    def decode(key: Any, value: Any) -> CoordinatorRecord | None:
        """Decode the record of these bytes; None for a key of a newer kind. Raises InvalidRequestError."""
        if bytes(key[:2]) != _KEY_PREFIX:
            return None
        decoded = None if value is None else TransactionLogValue.decode_prefixed(memoryview(value))
        return CoordinatorRecord(TransactionLogKey.decode(memoryview(key)[2:], 0), decoded)
