"""EndTxn (key 26): commit or abort a transaction (KIP-98).

v3 is flexible; v4 adds TRANSACTION_ABORTABLE; from v5 on the epoch rises with every transaction and is returned
(KIP-890).
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, boolean, int16, int32, int64, string


class EndTxnRequest(Message, api_key=26, versions="0-5", flexible="3+"):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Message, api_key=26, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64("5+", default=-1)
    producer_epoch: int = int16("5+", default=-1)
