"""State of one transactional id: its producer, its transaction, and the records of its transitions.

    Empty            <- Empty, CompleteCommit, CompleteAbort        InitProducerId
    Ongoing          <- Ongoing, Empty, CompleteCommit, CompleteAbort   partitions are added
    PrepareCommit    <- Ongoing                                     EndTxn; the transaction will be committed
    PrepareAbort     <- Ongoing (v2: also Empty, Complete*)         EndTxn, timeout, or a new producer fences the old
    CompleteCommit   <- PrepareCommit                               all markers are written
    CompleteAbort    <- PrepareAbort

(v2 is transactions v2, KIP-890.) The record of every transition has a ``TransactionLogValue``; ``Transaction.apply``
sets the state from it, when serving and when loading.

Epochs. InitProducerId raises the epoch; a retry of it does not. A fence (timeout, or InitProducerId during an open
transaction) also raises it. Its markers have the raised epoch, so the old producer can append nothing after the abort.
In transactions v2 (KIP-890) each EndTxn raises it: the marker has the raised epoch, and the client continues with it.
No client gets 32767: after 32766 the producer id changes.

Source: KIP-98, KIP-360 (retries of InitProducerId), KIP-890.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from tidelog.protocol.coordinator_records.transaction import PartitionsSchema, TransactionLogValue

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
MAX_EPOCH = 32_767

PartitionKey = tuple[str, int]


class TransactionState(IntEnum):
    """State of a transaction; the values are those in the log, ``label`` is the name in the admin APIs."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Kafka's name of the state."""
        return "".join(word.capitalize() for word in self.name.split("_"))


EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT

PREPARED = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
"""States in which the decision is in the log, and markers are being written."""
AT_REST = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""States in which no transaction is open or being ended."""


class Transaction:
    """State of a transactional id by its last record. Loop thread only.

    Only ``apply`` changes what is in the log. Two attributes are not in the log. ``last_producer_epoch`` is the
    producer's epoch before its last InitProducerId, or before its last EndTxn of transactions v2: if the answer was
    lost, InitProducerId comes with this epoch. It is -1 after a fence, and after an InitProducerId without a producer
    id. After a restart it is unknown, so a repeated InitProducerId is fenced, as in Kafka. ``unmarked`` are the
    partitions of a prepared transaction whose marker is not written yet.
    """

    __slots__ = (
        "client_version",
        "last_producer_epoch",
        "last_update_ms",
        "next_producer_id",
        "partitions",
        "previous_producer_id",
        "producer_epoch",
        "producer_id",
        "start_ms",
        "state",
        "timeout_ms",
        "transactional_id",
        "unmarked",
    )

    def __init__(self, transactional_id: str, value: TransactionLogValue) -> None:
        self.transactional_id = transactional_id
        self.last_producer_epoch = NO_PRODUCER_EPOCH
        self.apply(value)

    def apply(self, value: TransactionLogValue) -> None:
        """Set the attributes that a record has. All partitions of a prepared transaction are unmarked then."""
        self.producer_id = value.producer_id
        self.previous_producer_id = value.previous_producer_id
        self.next_producer_id = value.next_producer_id
        self.producer_epoch = value.producer_epoch
        self.timeout_ms = value.transaction_timeout_ms
        self.state = TransactionState(value.transaction_status)
        self.partitions: frozenset[PartitionKey] = frozenset(
            (topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        )
        self.unmarked: set[PartitionKey] = set(self.partitions) if self.state in PREPARED else set()
        self.last_update_ms = value.transaction_last_update_timestamp_ms
        self.start_ms = value.transaction_start_timestamp_ms
        self.client_version = value.client_transaction_version

    @property
    def is_epoch_exhausted(self) -> bool:
        """True if no client may get a further epoch of this producer id."""
        return self.producer_epoch >= MAX_EPOCH - 1

    @property
    def is_commit(self) -> bool:
        """True if a prepared transaction writes COMMIT markers, False if it writes ABORT markers."""
        return self.state is PREPARE_COMMIT

    # -- the next record ----------------------------------------------------------------------------------------

    def _build_next(
        self, state: TransactionState, now_ms: int, partitions: Iterable[PartitionKey]
    ) -> TransactionLogValue:
        """Build the value of the next state. As in Kafka, the current producer id becomes the previous one."""
        return TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=state,
            transaction_partitions=None if state is EMPTY else group_by_topic(partitions),
            transaction_last_update_timestamp_ms=now_ms,
            transaction_start_timestamp_ms=self.start_ms,
        )

    def initialize(self, producer_id: int, epoch: int, *, timeout_ms: int, now_ms: int) -> TransactionLogValue:
        """Build the value after InitProducerId assigned this id and epoch."""
        value = self._build_next(EMPTY, now_ms, ())
        value.producer_id = producer_id
        value.producer_epoch = epoch
        value.transaction_timeout_ms = timeout_ms
        value.transaction_start_timestamp_ms = -1
        return value

    def add_partitions(self, added: Iterable[PartitionKey], *, client_version: int, now_ms: int) -> TransactionLogValue:
        """Build the value of an ongoing transaction with these partitions added."""
        value = self._build_next(ONGOING, now_ms, self.partitions.union(added))
        value.client_transaction_version = client_version
        if self.state is not ONGOING:
            value.transaction_start_timestamp_ms = now_ms
        return value

    def fence(self, now_ms: int) -> TransactionLogValue:
        """Build the value of PrepareAbort with a raised epoch: a producer with the old one is fenced. MAX_EPOCH is not
        raised: an open transaction has it only in a log of Apache Kafka."""
        value = self._build_next(PREPARE_ABORT, now_ms, self.partitions)
        value.producer_epoch = min(self.producer_epoch + 1, MAX_EPOCH)
        return value

    def prepare(self, *, commit: bool, client_version: int, next_producer_id: int, now_ms: int) -> TransactionLogValue:
        """Build the value of PrepareCommit or PrepareAbort. Transactions v2 raise the epoch; ``next_producer_id`` is -1
        unless the epoch is exhausted.
        """
        value = self._build_next(PREPARE_COMMIT if commit else PREPARE_ABORT, now_ms, self.partitions)
        value.client_transaction_version = client_version
        if client_version >= 2:
            value.producer_epoch = self.producer_epoch + 1
            value.next_producer_id = next_producer_id
            if self.state is not ONGOING:
                value.transaction_start_timestamp_ms = now_ms  # v2 may abort a transaction that has not begun
        return value

    def complete(self, now_ms: int) -> TransactionLogValue:
        """Build the value after all markers are written, with the next producer id if there is one."""
        value = self._build_next(COMPLETE_COMMIT if self.is_commit else COMPLETE_ABORT, now_ms, ())
        value.client_transaction_version = self.client_version
        if self.next_producer_id != NO_PRODUCER_ID:
            value.producer_id = self.next_producer_id
            value.producer_epoch = 0
        return value


def group_by_topic(partitions: Iterable[PartitionKey]) -> list[PartitionsSchema]:
    """Group partitions by topic, for records."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in topics.items()]
