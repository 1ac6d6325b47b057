"""Error codes in the words of old clients.

PRODUCER_FENCED came with version 2 of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn and version 4 of InitProducerId
(KIP-588); before, a fenced producer was told INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from tidelog.protocol.errors import InvalidProducerEpochError, KafkaError, ProducerFencedError


def for_old_producer(code: int) -> int:
    """Return the code that a client from before KIP-588 knows."""
    return InvalidProducerEpochError.code if code == ProducerFencedError.code else code


def error_for_old_producer(error: KafkaError) -> KafkaError:
    """Return the error that an old producer gets for an exception."""
    return InvalidProducerEpochError() if isinstance(error, ProducerFencedError) else error
