"""The transaction coordinator, as handlers call it, and the writing of markers.

    EndTxn, timeout or fence -> prepare record in the log -> markers to all partitions -> complete record

Each step waits until the one before is committed. Otherwise a power loss could leave a marker without its prepare
record, or a complete record without a marker: a transaction that never ends. If nothing has to wait, all steps for a
transaction of up to MARKERS_PER_TURN partitions are done in one turn of the loop. So clients seldom get
CONCURRENT_TRANSACTIONS. A marker that cannot be written now, such as on a full disk, is tried again. No marker is
needed if the topic was deleted, or the partition has a newer producer epoch or coordinator epoch. After a crash between
two steps the loaded shard has the prepare record, and all markers are written again: a second marker changes nothing.

Loop thread only. Source: KIP-98, KIP-890; WriteTxnMarkers v0-2.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tidelog.broker.coordinator.refused_batches import RefusedBatches
from tidelog.broker.coordinator.runtime.result import TimerResult
from tidelog.broker.coordinator.runtime.runtime import CoordinatorRuntime
from tidelog.broker.coordinator.transaction.shard import ProducerIdAndEpoch, TransactionShard
from tidelog.broker.coordinator.transaction.state import PREPARED, PartitionKey, Transaction
from tidelog.broker.loop.deferred import Deferred, deferred_value, error_of, when_all, when_all_done
from tidelog.protocol.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    KafkaError,
    KafkaStorageError,
    NotCoordinatorError,
    TransactionCoordinatorFencedError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from tidelog.protocol.messages.end_txn import EndTxnRequest
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from tidelog.broker.coordinator.config import TransactionConfig

logger = logging.getLogger(__name__)

MARKERS_PER_TURN = 100
"""Largest number of markers of one transaction that are written in one turn of the loop, in about 2 ms."""
RETRY_MS = 1_000
"""Pause before a step that failed is tried again."""

_NEEDLESS = (UnknownTopicOrPartitionError, InvalidProducerEpochError, TransactionCoordinatorFencedError)
"""Errors that show that a marker is not needed: the topic was deleted, or the partition has a newer producer epoch or
coordinator epoch."""


class MarkerWriter(Protocol):
    """Writes transaction markers to partitions."""

    def when_open(self, partition: PartitionKey) -> Deferred[None] | None:
        """Begin to open the log. Returns None if it is open, or this broker does not have the partition."""
        ...

    def write(
        self,
        partition: PartitionKey,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Deferred[None]:
        """Append the marker. The Deferred completes when the marker is committed. Raises KafkaError."""
        ...


class TransactionCoordinator:
    """Transactional ids in those partitions of ``__transaction_state`` that this broker leads.

    Methods that answer requests also raise what ``CoordinatorRuntime.shard_for`` and ``execute`` raise, and
    InvalidRequestError for an empty transactional id.
    """

    def __init__(
        self, runtime: CoordinatorRuntime[TransactionShard], *, markers: MarkerWriter, config: TransactionConfig
    ) -> None:
        self.runtime = runtime
        self._markers = markers
        self._config = config
        self.refused_batches = RefusedBatches()
        """Batches of Produce requests that wait until an earlier one is accepted."""

    # -- requests -----------------------------------------------------------------------------------------------

    def init_producer_id(self, request: InitProducerIdRequest) -> Deferred[InitProducerIdResponse]:
        """Answer InitProducerId v0-6 with a transactional id. If a transaction is open, it is aborted, and the
        client must retry.

        Raises InvalidRequestError, InvalidTransactionTimeoutError, ConcurrentTransactionsError, UnsupportedVersionError
        (two-phase commit is not supported), and what ``TransactionShard.init_producer_id`` raises.
        """
        shard = self._shard(request.transactional_id)
        if not 0 < request.transaction_timeout_ms <= self._config.transaction_max_timeout_ms:
            raise InvalidTransactionTimeoutError
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            raise InvalidRequestError("producer id and producer epoch must be given together")
        if request.enable2_pc or request.keep_prepared_txn:
            raise UnsupportedVersionError("two-phase commit is not supported")
        transactional_id = request.transactional_id or ""
        result = shard.init_producer_id(request)
        response = self.runtime.execute(transactional_id, result)
        if result.response.error_code == ConcurrentTransactionsError.code:
            raise ConcurrentTransactionsError  # the open transaction is being aborted; the client retries
        return response

    def is_here(self, transactional_id: str) -> bool:
        """Return whether this broker leads the partition of a transactional id."""
        return self.runtime.is_here(transactional_id)

    def add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[PartitionKey], version: int
    ) -> Deferred[None]:
        """Add partitions to the transaction. ``version`` is the client's transaction version. The Deferred completes
        when the record with the partitions is committed. Raises what ``TransactionShard.add_partitions`` raises, and
        NotCoordinatorError if the disk cannot store the record.
        """
        shard = self._shard(transactional_id)
        try:
            return self.runtime.execute(
                transactional_id, shard.add_partitions(transactional_id, producer, partitions, version)
            )
        except KafkaStorageError as error:
            raise NotCoordinatorError from error

    def verify_partition(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partition: PartitionKey
    ) -> Deferred[None]:
        """Check that the partition is part of the open transaction. The Deferred completes when the record that added
        the partition is committed. Raises what ``TransactionShard.verify_partition`` raises.
        """
        self._shard(transactional_id).verify_partition(transactional_id, producer, partition)
        return self.runtime.when_committed(transactional_id, None)

    def end(self, request: EndTxnRequest, version: int) -> Deferred[ProducerIdAndEpoch]:
        """Answer EndTxn v0-5 once the prepare record is committed, with the next producer id and epoch. Raises what
        ``TransactionShard.end`` raises, and NotCoordinatorError if the disk cannot store the record."""
        shard = self._shard(request.transactional_id)
        producer = (request.producer_id, request.producer_epoch)
        result = shard.end(request.transactional_id, producer, commit=request.committed, version=version)
        try:
            return self.runtime.execute(request.transactional_id, result)
        except KafkaStorageError as error:
            raise NotCoordinatorError from error

    def find(self, transactional_id: str) -> Transaction | None:
        """Return the transaction of an id, or None, for admin clients. Raises InvalidRequestError for an empty id."""
        return self._shard(transactional_id).transactions.get(transactional_id)

    def all_transactions(self) -> list[Transaction]:
        """Return all transactions of this coordinator. Raises CoordinatorLoadInProgressError."""
        return [found for shard in self.runtime.loaded_shards() for found in shard.transactions.values()]

    def _shard(self, transactional_id: str | None) -> TransactionShard:
        if not transactional_id:
            raise InvalidRequestError("the transactional id is empty")
        return self.runtime.shard_for(transactional_id)

    # -- markers ------------------------------------------------------------------------------------------------

    def finish(self, transaction: Transaction, marked: Sequence[Deferred[None]] = ()) -> None:
        """Write the missing markers of a prepared transaction, then the complete record. A step that fails is tried
        again.

        ``marked`` are Deferreds of the commits of markers that were appended before."""
        decided = self.runtime.when_committed(transaction.transactional_id, None)
        self._go_on_after(decided, transaction, partial(self._mark, transaction, marked))

    def _mark(self, transaction: Transaction, marked: Sequence[Deferred[None]], decided: Deferred[None]) -> None:
        """Write markers after the prepare record is committed, once the logs of the next partitions are open."""
        if not self._is_due(transaction, decided):
            return
        found = [self._markers.when_open(partition) for partition in next_unmarked(transaction)]
        openings = [opening for opening in found if opening is not None]
        opened = when_all_done(openings, lambda: None) or deferred_value(None)
        self._go_on_after(opened, transaction, lambda _: self._mark_open(transaction, marked, decided))

    def _mark_open(self, transaction: Transaction, marked: Sequence[Deferred[None]], decided: Deferred[None]) -> None:
        """Write the next markers. The logs of their partitions are open, or could not be opened."""
        if not self._is_due(transaction, decided):
            return
        delay_ms, written = self._write_markers(transaction)
        marked = [marker for marker in (*marked, *written) if not marker.done or error_of(marker) is not None]
        if transaction.unmarked:
            self._finish_later(transaction, delay_ms, marked)
        else:
            self._go_on_after(when_all(marked, None), transaction, partial(self._complete, transaction))

    def _complete(self, transaction: Transaction, marked: Deferred[None]) -> None:
        """Write the complete record, after all markers are committed."""
        if not self._is_due(transaction, marked):
            return
        shard = self.runtime.shard_for(transaction.transactional_id)
        try:
            self.runtime.execute(transaction.transactional_id, shard.complete(transaction))
        except KafkaError:
            self._finish_later(transaction, RETRY_MS, ())

    def _go_on_after(
        self, waited_for: Deferred[None], transaction: Transaction, step: Callable[[Deferred[None]], None]
    ) -> None:
        """Call ``step`` once ``waited_for`` has completed or failed. After an unexpected error all markers are written
        again later."""

        def run_step(done: Deferred[None]) -> None:
            try:
                step(done)
            except Exception:
                logger.exception("the transaction of %s is not ended; it is tried again", transaction.transactional_id)
                self._begin_again(transaction)

        waited_for.on_done(run_step)

    def _is_due(self, transaction: Transaction, committed: Deferred[None]) -> bool:
        """Return whether this coordinator must still end the transaction. If the step before failed, as ``committed``
        says, returns False, and all markers are written again later."""
        try:
            shard = self.runtime.shard_for(transaction.transactional_id)
        except KafkaError:
            return False  # unloaded meanwhile
        known = shard.transactions.get(transaction.transactional_id)
        if known is not transaction or transaction.state not in PREPARED:
            return False
        error = error_of(committed)
        if error is not None:
            logger.warning(
                "the transaction of %s cannot be ended yet, and is tried again: %s", transaction.transactional_id, error
            )
            self._begin_again(transaction)
        return error is None

    def _begin_again(self, transaction: Transaction) -> None:
        """Have all markers written again later, also those that were written: a second marker changes nothing."""
        transaction.unmarked = set(transaction.partitions)
        self._finish_later(transaction, RETRY_MS, ())

    def _write_markers(self, transaction: Transaction) -> tuple[float, list[Deferred[None]]]:
        """Append the next markers. Returns the delay before the remaining ones are written, in milliseconds, and the
        waits for the commits of those that were appended."""
        written = []
        producer = (transaction.producer_id, transaction.producer_epoch)
        epoch = self.runtime.leader_epoch(transaction.transactional_id)
        delay_ms = 0
        for partition in next_unmarked(transaction):
            try:
                marker = self._markers.write(
                    partition,
                    producer,
                    commit=transaction.is_commit,
                    coordinator_epoch=epoch,
                    transaction_version=transaction.client_version,
                )
                written.append(marker)
            except _NEEDLESS as error:
                logger.info(
                    "the transaction of %s needs no marker in %s-%d: %s",
                    transaction.transactional_id,
                    *partition,
                    error,
                )
            except KafkaError as error:
                logger.warning(
                    "the marker of the transaction of %s in %s-%d cannot be written, and is tried again: %s",
                    transaction.transactional_id,
                    *partition,
                    error,
                )
                delay_ms = RETRY_MS
                continue
            transaction.unmarked.discard(partition)
        return delay_ms, written

    def _finish_later(self, transaction: Transaction, delay_ms: float, marked: Sequence[Deferred[None]]) -> None:
        """Call ``finish`` after a delay, if the transaction is still prepared then."""
        try:
            shard = self.runtime.shard_for(transaction.transactional_id)
        except KafkaError:
            return  # the transaction is ended when its partition is loaded again

        def retry() -> TimerResult:
            if shard.transactions.get(transaction.transactional_id) is transaction and transaction.state in PREPARED:
                self.finish(transaction, marked)
            return None

        shard.timer.schedule(("markers", transaction.transactional_id), delay_ms, retry)


def next_unmarked(transaction: Transaction) -> list[PartitionKey]:
    """Return the partitions whose markers are written in the next turn."""
    return sorted(transaction.unmarked)[:MARKERS_PER_TURN]
