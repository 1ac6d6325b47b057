"""Records of ``__share_group_state``, in Kafka's own schemas (KIP-932): the state of each share partition.

    ShareSnapshot (type 0)   the full state: start offset, and batches from there on that are available or finished
    ShareUpdate   (type 1)   a change after the snapshot with the same snapshot epoch

A share partition is one partition of a topic, as one share group reads it. Its state is its last snapshot and the
updates after that. A tombstone with the key of its snapshots removes the state.
Source: share-coordinator ``common/message/*.json`` of Kafka 4.3.
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.coordinator.runtime.result import CoordinatorRecord
from tidelog.protocol.coordinator_records.share import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from tidelog.protocol.schema.fields import Message


class ShareStateSerde:
    """Encoder and decoder of the records of ``__share_group_state``."""

    @staticmethod
    def encode(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        """Encode key and value; the value is None for a tombstone."""
        key, value = record.key, record.value
        encoded_key = key.API_KEY.to_bytes(2, "big") + key.encode(0)
        return encoded_key, None if value is None else value.encode_prefixed(0)

    @staticmethod
    def decode(key: Any, value: Any) -> CoordinatorRecord | None:
        """Decode a record; None for a type that is not declared here. Raises InvalidRequestError,
        UnsupportedVersionError."""
        types = _STATE_TYPES.get(int.from_bytes(key[:2], "big", signed=True))
        if types is None:
            return None
        key_class, value_class = types
        decoded = None if value is None else value_class.decode_prefixed(memoryview(value))
        return CoordinatorRecord(key_class.decode(memoryview(key)[2:], 0), decoded)


_STATE_TYPES: dict[int, tuple[type[Message], type[Message]]] = {
    0: (ShareSnapshotKey, ShareSnapshotValue),
    1: (ShareUpdateKey, ShareUpdateValue),
}
