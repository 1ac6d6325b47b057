"""The state machine of the transactional ids in one partition of ``__transaction_state``.

Each request's method checks the producer against the transaction and returns the next record; ``replay`` applies the
record. Errors:

    unknown transactional id ........................... INVALID_PRODUCER_ID_MAPPING; InitProducerId adds the id
    another producer id ................................ INVALID_PRODUCER_ID_MAPPING (InitProducerId: PRODUCER_FENCED)
    another epoch, or MAX_EPOCH ........................ PRODUCER_FENCED (INVALID_PRODUCER_EPOCH for old clients)
    markers are being written .......................... CONCURRENT_TRANSACTIONS, which clients retry
    a partition to verify that was not added ........... TRANSACTION_ABORTABLE
    a transition that the state does not allow ......... INVALID_TXN_STATE, such as a commit while aborting

Once a prepare record is in the log, the transaction will be committed or aborted: the coordinator's ``finish`` writes
the markers, now or after a restart. Timers: ("timeout", id) aborts an open transaction, ("expire-ids",) removes unused
ids. The coordinator sets ("markers", id), which goes on with the markers of a prepared transaction.

Loop thread only. Source: KIP-98, KIP-360, KIP-890; InitProducerId v0-6, AddPartitionsToTxn v0-5, EndTxn v0-5.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tidelog.broker.coordinator.runtime.replay import ReplayContext
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord, CoordinatorResult, Parts, TimerResult
from tidelog.broker.coordinator.transaction.state import (
    AT_REST,
    COMPLETE_COMMIT,
    EMPTY,
    MAX_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ONGOING,
    PREPARE_COMMIT,
    PREPARED,
    PartitionKey,
    Transaction,
)
from tidelog.log.system.retention_clock import RetentionClock
from tidelog.protocol.coordinator_records.transaction import TransactionLogKey, TransactionLogValue
from tidelog.protocol.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
)
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from tidelog.broker.coordinator.config import TransactionConfig
    from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer
    from tidelog.log.system.time import Time

logger = logging.getLogger(__name__)

ProducerIdAndEpoch = tuple[int, int]

EXPIRY_PART = 128
"""Largest number of ids in one step of expiry, and of tombstones in one batch."""
_EXPIRY_KEY = ("expire-ids",)


class TransactionShard:
    """State machine of the transactional ids of one partition of ``__transaction_state``."""

    def __init__(
        self,
        timer: CoordinatorTimer,
        *,
        time: Time,
        config: TransactionConfig,
        next_producer_id: Callable[[], int],
        finish: Callable[[Transaction], None],
    ) -> None:
        """``next_producer_id()`` returns a new producer id. ``finish`` ends a prepared transaction."""
        self.timer = timer
        self.transactions: dict[str, Transaction] = {}
        self._time = time
        self._config = config
        self._next_producer_id = next_producer_id
        self._finish = finish
        self._expiry_clock = RetentionClock(time)

    def _find(self, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        """Find the transaction of this producer. Raises InvalidProducerIdMappingError, ProducerFencedError."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.producer_id != producer_id:
            raise InvalidProducerIdMappingError
        check_epoch(transaction, epoch)
        return transaction

    # -- InitProducerId -----------------------------------------------------------------------------------------

    def init_producer_id(self, request: InitProducerIdRequest) -> CoordinatorResult[InitProducerIdResponse]:
        """Assign the producer's id and epoch. If a transaction is open, it is aborted, nothing is assigned, and the
        response has the error CONCURRENT_TRANSACTIONS. Raises ConcurrentTransactionsError while markers are being
        written, ProducerFencedError, and what ``next_producer_id`` raises.
        """
        transactional_id = request.transactional_id or ""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return self._first_init(transactional_id, request)
        if request.producer_id != NO_PRODUCER_ID and not _may_continue(transaction, request):
            raise ProducerFencedError
        if transaction.state in PREPARED:
            raise ConcurrentTransactionsError
        if transaction.state is ONGOING:
            return self._fence(transaction, InitProducerIdResponse(error_code=ConcurrentTransactionsError.code))
        producer_id, epoch, last_epoch = self._next_identity(transaction, request)
        value = transaction.initialize(
            producer_id, epoch, timeout_ms=request.transaction_timeout_ms, now_ms=self._time.milliseconds()
        )
        return self._answer_init(transactional_id, value, last_epoch)

    def _first_init(
        self, transactional_id: str, request: InitProducerIdRequest
    ) -> CoordinatorResult[InitProducerIdResponse]:
        value = TransactionLogValue(
            producer_id=self._next_producer_id(),
            producer_epoch=0,
            transaction_timeout_ms=request.transaction_timeout_ms,
            transaction_status=EMPTY,
            transaction_partitions=None,
            transaction_last_update_timestamp_ms=self._time.milliseconds(),
            transaction_start_timestamp_ms=-1,
        )
        return self._answer_init(transactional_id, value, NO_PRODUCER_EPOCH)

    def _answer_init(
        self, transactional_id: str, value: TransactionLogValue, last_epoch: int
    ) -> CoordinatorResult[InitProducerIdResponse]:
        response = InitProducerIdResponse(producer_id=value.producer_id, producer_epoch=value.producer_epoch)

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                raise error
            self.transactions[transactional_id].last_producer_epoch = last_epoch

        return CoordinatorResult(response, [_record(transactional_id, value)], on_append)

    def _next_identity(self, transaction: Transaction, request: InitProducerIdRequest) -> tuple[int, int, int]:
        """Choose the producer id and epoch, and return with them the transaction's next ``last_producer_epoch``
        (KIP-360). Raises ProducerFencedError, and what ``next_producer_id`` raises."""
        expected = request.producer_epoch if request.producer_id != NO_PRODUCER_ID else None
        current = transaction.producer_epoch
        if transaction.is_epoch_exhausted and expected in (None, current):
            return self._next_producer_id(), 0, NO_PRODUCER_EPOCH if expected is None else current
        if expected is None:
            return transaction.producer_id, current + 1, NO_PRODUCER_EPOCH
        if expected == current:
            return transaction.producer_id, current + 1, current
        if expected == transaction.last_producer_epoch:
            return transaction.producer_id, current, expected  # a retry of a successful request: the same response
        raise ProducerFencedError

    def _fence(
        self, transaction: Transaction, response: InitProducerIdResponse
    ) -> CoordinatorResult[InitProducerIdResponse]:
        value = transaction.fence(self._time.milliseconds())
        finish = self._build_finish(transaction.transactional_id, NO_PRODUCER_EPOCH)
        return CoordinatorResult(response, [_record(transaction.transactional_id, value)], finish)

    # -- partitions ---------------------------------------------------------------------------------------------

    def add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[PartitionKey], version: int
    ) -> CoordinatorResult[None]:
        """Add partitions to a transaction, for AddPartitionsToTxn, AddOffsetsToTxn, and in transactions v2 for Produce
        and TxnOffsetCommit. ``version`` is the client's transaction version. Raises what ``_find`` raises,
        ConcurrentTransactionsError.
        """
        transaction = self._find(transactional_id, *producer)
        if transaction.state in PREPARED:
            raise ConcurrentTransactionsError
        added = transaction.partitions.union(partitions)
        if transaction.state is ONGOING and len(added) == len(transaction.partitions):
            return CoordinatorResult(None)
        value = transaction.add_partitions(added, client_version=version, now_ms=self._time.milliseconds())
        return CoordinatorResult(None, [_record(transactional_id, value)])

    def verify_partition(self, transactional_id: str, producer: ProducerIdAndEpoch, partition: PartitionKey) -> None:
        """Check that the partition is part of the open transaction (KIP-890, part 1).

        Raises what ``add_partitions`` raises, and TransactionAbortableError.
        """
        transaction = self._find(transactional_id, *producer)
        if transaction.state in PREPARED:
            raise ConcurrentTransactionsError
        if partition not in transaction.partitions:
            raise TransactionAbortableError

    # -- EndTxn -------------------------------------------------------------------------------------------------

    def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, version: int
    ) -> CoordinatorResult[ProducerIdAndEpoch]:
        """Decide EndTxn v0-5. The response has the producer id and epoch of the producer's next transaction: in
        transactions v2 the epoch, or the producer id, is a new one.

        Raises InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError, InvalidTxnStateError,
        and what ``next_producer_id`` raises.
        """
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise InvalidProducerIdMappingError
        if _is_retry(transaction, producer):
            return _answer_repeat(transaction, commit=commit)
        if transaction.producer_id != producer[0]:
            raise InvalidProducerIdMappingError
        check_epoch(transaction, producer[1])
        if transaction.state is ONGOING or (version >= 2 and not commit and transaction.state in AT_REST):
            return self._decide(transaction, commit=commit, version=version)
        if version >= 2 or transaction.state is EMPTY:
            raise InvalidTxnStateError
        return _answer_repeat(transaction, commit=commit)

    def _decide(self, transaction: Transaction, *, commit: bool, version: int) -> CoordinatorResult[ProducerIdAndEpoch]:
        next_producer_id = NO_PRODUCER_ID
        if version >= 2 and transaction.is_epoch_exhausted:
            next_producer_id = self._next_producer_id()
        value = transaction.prepare(
            commit=commit,
            client_version=version,
            next_producer_id=next_producer_id,
            now_ms=self._time.milliseconds(),
        )
        answer = (value.producer_id, value.producer_epoch)
        if next_producer_id != NO_PRODUCER_ID:
            answer = (next_producer_id, 0)
        last_epoch = transaction.producer_epoch if version >= 2 else transaction.last_producer_epoch
        finish = self._build_finish(transaction.transactional_id, last_epoch)
        return CoordinatorResult(answer, [_record(transaction.transactional_id, value)], finish)

    def _build_finish(self, transactional_id: str, last_epoch: int) -> Callable[[KafkaError | None], None]:
        """Build the callback that ends a prepared transaction after the append of its record. ``last_epoch`` is the
        transaction's ``last_producer_epoch`` from then on."""

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                raise error
            transaction = self.transactions[transactional_id]
            transaction.last_producer_epoch = last_epoch
            self._finish(transaction)

        return on_append

    def complete(self, transaction: Transaction) -> CoordinatorResult[None]:
        """Build the result with the complete record of a transaction whose markers are all written."""
        assert transaction.state in PREPARED
        value = transaction.complete(self._time.milliseconds())
        return CoordinatorResult(None, [_record(transaction.transactional_id, value)])

    # -- timers -------------------------------------------------------------------------------------------------

    def _schedule_timeout(self, transaction: Transaction, delay_ms: float) -> None:
        transactional_id = transaction.transactional_id
        self.timer.schedule(("timeout", transactional_id), delay_ms, lambda: self._abort_timed_out(transactional_id))

    def _abort_timed_out(self, transactional_id: str) -> TimerResult:
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.state is not ONGOING:
            return None
        logger.info(
            "the transaction of %s is aborted after its timeout of %d ms", transactional_id, transaction.timeout_ms
        )
        # If the append fails, the transaction stays open: the timer tries again.
        self._schedule_timeout(transaction, self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms)
        value = transaction.fence(self._time.milliseconds())
        finish = self._build_finish(transactional_id, NO_PRODUCER_EPOCH)
        return CoordinatorResult(None, [_record(transactional_id, value)], finish)

    def _schedule_expiry(self) -> None:
        interval_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._expiry_clock.now()  # so that a jump of the clock before the first expiry is noticed too
        self.timer.schedule(_EXPIRY_KEY, interval_ms, self._expire_ids)

    def _expire_ids(self) -> TimerResult:
        self._schedule_expiry()
        return expire(self.transactions, self._expiry_clock.now() - self._config.transactional_id_expiration_ms)

    # -- replay -------------------------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, context: ReplayContext) -> None:
        """Apply one record, when serving and when loading."""
        transactional_id: str = record.key.transactional_id
        if record.value is None:
            self.transactions.pop(transactional_id, None)
            self.timer.cancel(("timeout", transactional_id))
            return
        transaction = self.transactions.get(transactional_id)
        was_ongoing = transaction is not None and transaction.state is ONGOING
        if transaction is None:
            transaction = self.transactions[transactional_id] = Transaction(transactional_id, record.value)
        else:
            transaction.apply(record.value)
        if transaction.state is not ONGOING:
            self.timer.cancel(("timeout", transactional_id))
        elif not was_ongoing:
            self._schedule_timeout(transaction, transaction.timeout_ms)

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, *, committed: bool) -> None:
        """Do nothing: this topic has no transactional records."""

    def on_loaded(self) -> list[CoordinatorResult[None]]:
        """Return results that end the prepared transactions. Start the timers of open transactions, with the remaining
        time of their timeouts."""
        self._schedule_expiry()
        now_ms = self._time.milliseconds()
        for transaction in list(self.transactions.values()):
            if transaction.state is ONGOING:
                # The wall clock may have jumped: wait at most for the full timeout.
                left_ms = transaction.start_ms + transaction.timeout_ms - now_ms
                self._schedule_timeout(transaction, min(max(left_ms, 0), transaction.timeout_ms))
        return [
            CoordinatorResult(None, on_append=self._build_finish(transaction.transactional_id, NO_PRODUCER_EPOCH))
            for transaction in self.transactions.values()
            if transaction.state in PREPARED
        ]


def _record(transactional_id: str, value: TransactionLogValue) -> CoordinatorRecord:
    return CoordinatorRecord(TransactionLogKey(transactional_id=transactional_id), value)


def check_epoch(transaction: Transaction, epoch: int) -> None:
    """Raise ProducerFencedError for another epoch than the transaction's, and for MAX_EPOCH, which no client gets."""
    if transaction.producer_epoch != epoch or epoch == MAX_EPOCH:
        raise ProducerFencedError


def _may_continue(transaction: Transaction, request: InitProducerIdRequest) -> bool:
    """Return whether a producer that sends its id may continue: the id is the current one, or the previous one, which
    was replaced because its epoch was exhausted.
    """
    if request.producer_id == transaction.producer_id:
        return True
    return request.producer_id == transaction.previous_producer_id and request.producer_epoch >= MAX_EPOCH - 1


def _is_retry(transaction: Transaction, producer: ProducerIdAndEpoch) -> bool:
    """Return whether this EndTxn of transactions v2 is a retry: the first EndTxn has raised the epoch that the producer
    sends."""
    if transaction.client_version < 2 or transaction.state is ONGOING or transaction.state is EMPTY:
        return False
    producer_id, epoch = producer
    if transaction.producer_id == producer_id:
        return transaction.producer_epoch == epoch + 1
    return (
        transaction.previous_producer_id == producer_id and epoch == MAX_EPOCH - 1 and transaction.producer_epoch == 0
    )


def _answer_repeat(transaction: Transaction, *, commit: bool) -> CoordinatorResult[ProducerIdAndEpoch]:
    """Answer an EndTxn whose transaction is decided already. Raises InvalidTxnStateError if the decision was the other
    one, ConcurrentTransactionsError while markers are being written."""
    decided_commit = transaction.state in (PREPARE_COMMIT, COMPLETE_COMMIT)
    if decided_commit is not commit:
        raise InvalidTxnStateError
    if transaction.state in PREPARED:
        raise ConcurrentTransactionsError
    return CoordinatorResult((transaction.producer_id, transaction.producer_epoch))


def expire(transactions: dict[str, Transaction], oldest_ms: int) -> Parts:
    """Yield results with the tombstones of ids that were last used at ``oldest_ms`` or before, and have no open or
    prepared transaction. The ids are checked in parts: there may be a million."""
    known = list(transactions)
    for begin in range(0, len(known), EXPIRY_PART):
        found = [transactions.get(transactional_id) for transactional_id in known[begin : begin + EXPIRY_PART]]
        expired = [
            CoordinatorRecord(TransactionLogKey(transactional_id=transaction.transactional_id), None)
            for transaction in found
            if transaction is not None and transaction.state in AT_REST and transaction.last_update_ms <= oldest_ms
        ]
        yield CoordinatorResult(None, expired)
