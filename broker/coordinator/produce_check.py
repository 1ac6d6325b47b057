"""Check that a produce request may write in its transaction, before its records are appended (KIP-890).

    transactions v1 (Produce up to v11) ... each partition must have been added by AddPartitionsToTxn
    transactions v2 (Produce v12+) ........ partitions are added here, with their first records

If ``transaction.partition.verification.enable`` is false, transactions v1 are not checked.

Without the check a late batch of a completed transaction would begin another transaction that never ends, and
read_committed consumers would wait at its offset forever. Once the partition is in the transaction, the check costs one
look-up for each partition of a request. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.refused_batches import ProducerInPartition
from tidelog.broker.coordinator.transaction.state import PartitionKey
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.protocol.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    ProducerFencedError,
    TransactionAbortableError,
)
from tidelog.protocol.record.record_batch import RecordBatch

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

FIRST_VERSION_THAT_ADDS = 12
"""First version of Produce in whose transactions the broker adds the partitions (transactions v2)."""
_FIRST_VERSION_WITH_ABORTABLE = 11
"""First version of Produce that knows TRANSACTION_ABORTABLE."""
_RETRIABLE = (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError)


def check_transactional_batch(
    broker: Broker, version: int, transactional_id: str, partition: PartitionKey, records: memoryview
) -> Deferred[None]:
    """Check that the partition is in the transaction of this batch's producer; in transactions v2, add the partition.
    The Deferred completes when the record that adds the partition is committed. If the record cannot be committed, the
    Deferred fails with NotEnoughReplicasError. In transactions v2 a batch is refused as long as an earlier one of the
    producer is refused (`RefusedBatches`).

    Raises InvalidRequestError for an empty id, InvalidTxnStateError, TransactionAbortableError,
    InvalidProducerEpochError, InvalidProducerIdMappingError, ConcurrentTransactionsError, NotLeaderOrFollowerError,
    OutOfOrderSequenceNumberError, or NotEnoughReplicasError if the client should try again.
    """
    batch = RecordBatch(records)
    if not batch.is_transactional:
        return deferred_value(None)
    if version < FIRST_VERSION_THAT_ADDS:
        return _check_producer(broker, version, transactional_id, partition, batch)
    refused = coordinators_of(broker).transactions.refused_batches
    producer, sequence = ProducerInPartition(*partition, batch.producer_id, batch.producer_epoch), batch.base_sequence
    refused.check(producer, sequence)
    try:
        checked = _check_producer(broker, version, transactional_id, partition, batch)
    except (ConcurrentTransactionsError, NotEnoughReplicasError):  # the producer repeats the batch
        refused.note(producer, sequence)
        raise

    def settle(checked: Deferred[None]) -> None:
        if checked.has_value:
            refused.forget(producer)
        else:
            refused.note(producer, sequence)

    checked.on_done(settle)
    return checked


def _check_producer(
    broker: Broker, version: int, transactional_id: str, partition: PartitionKey, batch: RecordBatch
) -> Deferred[None]:
    """Ask the coordinator, on this broker or another one, about a batch. Completes, fails and raises as
    ``check_transactional_batch``."""
    transactions = coordinators_of(broker).transactions
    producer = (batch.producer_id, batch.producer_epoch)
    try:
        if version >= FIRST_VERSION_THAT_ADDS:
            checked = transactions.add_partitions(transactional_id, producer, (partition,), 2)
        elif broker.config.get_bool("transaction.partition.verification.enable"):
            checked = transactions.verify_partition(transactional_id, producer, partition)
        else:
            return deferred_value(None)
        return checked.recover(refuse_for_now)
    except NotCoordinatorError as error:
        return _check_by_peers(broker, version, partition, producer, error)
    except KafkaError as error:
        raise _convert_for_producer(version, error) from error


def _check_by_peers(
    broker: Broker, version: int, partition: PartitionKey, producer: tuple[int, int], error: KafkaError
) -> Deferred[None]:
    """Check by the answer that the coordinator, on another broker, gave before (``Peers.ask_coordinator``). Raises what
    ``check_transactional_batch`` raises."""
    try:
        if broker.peers is None:
            raise error
        broker.peers.check_batch(partition, producer)
    except KafkaError as refused:
        raise _convert_for_producer(version, refused) from error
    return deferred_value(None)


def refuse_for_now(_error: KafkaError) -> NoReturn:
    """Raise NotEnoughReplicasError, which clients retry: the record that adds the partition may be
    lost."""
    raise NotEnoughReplicasError("the record of the transaction's partitions is not committed")


def _convert_for_producer(version: int, error: KafkaError) -> KafkaError:
    """Return the error of a Produce response for the coordinator's error: one that this version of Produce knows."""
    if isinstance(error, ProducerFencedError):
        return InvalidProducerEpochError()
    if isinstance(error, TransactionAbortableError) and version < _FIRST_VERSION_WITH_ABORTABLE:
        return InvalidTxnStateError("the partition was not added to the transaction")
    if isinstance(error, ConcurrentTransactionsError) and version < FIRST_VERSION_THAT_ADDS:
        return NotEnoughReplicasError("the previous transaction is not complete yet")
    if isinstance(error, _RETRIABLE):
        return NotEnoughReplicasError("the transaction coordinator is not ready")
    return error
