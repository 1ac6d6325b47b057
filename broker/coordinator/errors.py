"""Error codes for clients that do not know PRODUCER_FENCED.

PRODUCER_FENCED was added by version 2 of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn and version 4 of InitProducerId
(KIP-588). In older versions a fenced producer gets INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from tidelog.protocol.errors import InvalidProducerEpochError, KafkaError, ProducerFencedError


def code_for_old_producer(code: int) -> int:
    """Return the code for a client without KIP-588: INVALID_PRODUCER_EPOCH in place of PRODUCER_FENCED."""
    return InvalidProducerEpochError.code if code == ProducerFencedError.code else code


def error_for_old_producer(error: KafkaError) -> KafkaError:
    """Return the error for a client without KIP-588: INVALID_PRODUCER_EPOCH in place of PRODUCER_FENCED."""
    return InvalidProducerEpochError() if isinstance(error, ProducerFencedError) else error
