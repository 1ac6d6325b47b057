"""TxnOffsetCommit: store how far a group has read, as part of a transaction.

v2 leader epochs; v3 member, instance and generation (KIP-447), flexible; v4 TRANSACTION_ABORTABLE; v5 adds the group's
partition to the transaction by itself (KIP-890), before that AddOffsetsToTxn must have done so.
"""

from __future__ import annotations

from broker.broker import Broker, RequestContext
from broker.coordinator.coordinators import Coordinators, coordinators_of
from broker.coordinator.durability import durably
from broker.metadata import GROUP_METADATA_TOPIC
from protocol.api_keys import ApiKey
from protocol.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
)
from protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

API_KEY = ApiKey.TXN_OFFSET_COMMIT
MIN_VERSION, MAX_VERSION = 0, 5
Request = TxnOffsetCommitRequest

_FIRST_VERSION_THAT_ADDS = 5
_FIRST_VERSION_WITH_ABORTABLE = 4


@durably
def handle(broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    """Check the transaction, then the member, then append. Raises what either coordinator raises."""
    coordinators = coordinators_of(broker)
    if broker.config.get_bool("transaction.partition.verification.enable"):
        _check_transaction(coordinators, context.api_version, request)
    return coordinators.groups.commit_offsets_in_transaction(request)


def _check_transaction(coordinators: Coordinators, version: int, request: TxnOffsetCommitRequest) -> None:
    partition = (GROUP_METADATA_TOPIC, coordinators.groups.runtime.partition_for(request.group_id))
    producer = (request.producer_id, request.producer_epoch)
    try:
        if version >= _FIRST_VERSION_THAT_ADDS:
            coordinators.transactions.add_partitions(request.transactional_id, producer, (partition,), 2)
        else:
            coordinators.transactions.verify_partition(request.transactional_id, producer, partition)
    except ProducerFencedError as error:
        raise InvalidProducerEpochError from error
    except TransactionAbortableError as error:
        raise error if version >= _FIRST_VERSION_WITH_ABORTABLE else InvalidTxnStateError() from error


def error_response(request: TxnOffsetCommitRequest, error: KafkaError) -> TxnOffsetCommitResponse:
    """The same error for every partition."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error.code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
