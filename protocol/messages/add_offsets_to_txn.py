"""AddOffsetsToTxn (key 25): the partition of ``__consumer_offsets`` for a group joins a transaction (KIP-98).

v3 is flexible; v4 adds TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, int16, int32, int64, string


class AddOffsetsToTxnRequest(Message, api_key=25, versions="0-4", flexible="3+"):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Message, api_key=25, versions="0-4", flexible="3+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
