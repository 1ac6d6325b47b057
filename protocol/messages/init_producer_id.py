"""InitProducerId (key 22): a producer id and epoch, for idempotence or for a transactional id (KIP-98).

A producer without a transactional id gets a new id each time. v2 is flexible; v3 adds the producer's current id and
epoch, so that it can continue after an error (KIP-360); v4 adds PRODUCER_FENCED; v5 adds TRANSACTION_ABORTABLE
(KIP-890); v6 adds two-phase commit and keeping a prepared transaction (KIP-939), which Kafka 4.3 declares unstable and
does not serve.
"""

from __future__ import annotations

from tidelog.protocol.schema.fields import Message, boolean, int16, int32, int64, string


class InitProducerIdRequest(Message, api_key=22, versions="0-6", flexible="2+"):
    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable2_pc: bool = boolean("6+")
    keep_prepared_txn: bool = boolean("6+")


class InitProducerIdResponse(Message, api_key=22, versions="0-6", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)
