"""Records of ``__transaction_state``: the last record of a transactional id has the id's state.

The records are written in version 1, the first with tagged fields, as by Kafka 4 with transaction version 2. Version 0
can be read.
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
        """Encode key and value; the value is None for a tombstone."""
        value = record.value
        return _KEY_PREFIX + record.key.encode(0), None if value is None else value.encode_prefixed(_WRITTEN_VERSION)

    @staticmethod
    def decode(key: Any, value: Any) -> CoordinatorRecord | None:
        """Decode a record; None for an unknown type of key. Raises InvalidRequestError, UnsupportedVersionError."""
        if bytes(key[:2]) != _KEY_PREFIX:
            return None
        decoded = None if value is None else TransactionLogValue.decode_prefixed(memoryview(value))
        return CoordinatorRecord(TransactionLogKey.decode(memoryview(key)[2:], 0), decoded)
