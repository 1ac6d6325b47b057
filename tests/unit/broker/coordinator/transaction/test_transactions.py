"""The transaction coordinator: producer ids and fencing, decisions and retries, markers, timeouts, restarts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.coordinators import MemoryTopicLog, TransactionWorld
from tidelog.broker.coordinator.transaction.coordinator import MARKERS_PER_TURN, RETRY_MS
from tidelog.broker.coordinator.transaction.shard import EXPIRY_PART
from tidelog.broker.coordinator.transaction.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    MAX_EPOCH,
    ONGOING,
    PREPARE_COMMIT,
    TransactionState,
)
from tidelog.protocol.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    KafkaError,
    KafkaStorageError,
    NotCoordinatorError,
    ProducerFencedError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from tidelog.protocol.record.record_batch import RecordBatch

T0 = ("t", 0)
T1 = ("t", 1)


def test_labels_are_kafkas() -> None:
    assert [state.label for state in TransactionState] == [
        *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead"),
        "PrepareEpochFence",
    ]


# -- InitProducerId -------------------------------------------------------------------------------------------------


def test_a_new_id_begins_with_epoch_0() -> None:
    assert TransactionWorld().init() == (1001, 0)


def test_each_init_raises_the_epoch() -> None:
    world = TransactionWorld()
    assert [world.init()[1] for _ in range(3)] == [0, 1, 2]


def test_an_older_incarnation_is_fenced() -> None:
    world = TransactionWorld()
    old = world.init()
    world.init()
    with pytest.raises(ProducerFencedError):
        world.add(old)


def test_init_over_an_open_transaction_aborts_it_and_has_the_client_come_again() -> None:
    world = TransactionWorld()
    old = world.init()
    world.add(old)
    with pytest.raises(ConcurrentTransactionsError):
        world.init()
    assert world.markers.written == [(T0, (1001, 1), False)]
    new = world.init()
    assert new == (1001, 2)
    with pytest.raises(ProducerFencedError):
        world.end(old)


def test_init_waits_while_markers_cannot_be_written() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer)
    world.markers.failures[T0] = KafkaStorageError()
    for _ in range(2):
        with pytest.raises(ConcurrentTransactionsError):
            world.init()
    world.markers.failures.clear()
    world.advance(RETRY_MS)
    assert world.init() == (1001, 2)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"transactional_id": ""}, InvalidRequestError),
        ({"transaction_timeout_ms": 0}, InvalidTransactionTimeoutError),
        ({"transaction_timeout_ms": 900_001}, InvalidTransactionTimeoutError),
        ({"producer": (5, -1)}, InvalidRequestError),
        ({"producer": (-1, 5)}, InvalidRequestError),
        ({"enable2_pc": True}, UnsupportedVersionError),
        ({"keep_prepared_txn": True}, UnsupportedVersionError),
    ],
)
def test_init_refuses_wrong_requests(fields: dict[str, Any], error: type[KafkaError]) -> None:
    with pytest.raises(error):
        TransactionWorld().init(**fields)


def test_a_producer_that_names_itself_continues_and_may_retry() -> None:
    world = TransactionWorld()
    first = world.init()
    second = world.init(first)
    assert second == (1001, 1)
    assert world.init(first) == second  # the answer was lost
    assert world.init(second) == (1001, 2)


def test_a_retry_of_before_a_fence_is_fenced() -> None:
    world = TransactionWorld()
    first = world.init()
    second = world.init(first)
    world.add(second)
    world.advance(70_000)
    assert world.transaction().state is COMPLETE_ABORT
    with pytest.raises(ProducerFencedError):
        world.init(first)


@pytest.mark.parametrize("producer", [(999, 0), (1001, 7)])
def test_a_producer_that_names_another_is_fenced(producer: tuple[int, int]) -> None:
    world = TransactionWorld()
    world.init()
    with pytest.raises(ProducerFencedError):
        world.init(producer)


def test_a_producer_that_names_itself_over_its_open_transaction_fences_itself() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer)
    for error in (ConcurrentTransactionsError, ProducerFencedError):
        with pytest.raises(error):
            world.init(producer)


def exhausted(world: TransactionWorld) -> tuple[int, int]:
    """Make a producer with the last epoch that a client may have."""
    world.init()
    world.transaction().producer_epoch = MAX_EPOCH - 1
    return 1001, MAX_EPOCH - 1


def test_an_exhausted_epoch_gets_a_new_producer_id() -> None:
    world = TransactionWorld()
    exhausted(world)
    assert world.init() == (1002, 0)


def test_a_retry_after_a_change_of_producer_id_gets_the_same_id() -> None:
    world = TransactionWorld()
    old = exhausted(world)
    new = world.init(old)
    assert new == (1002, 0)
    assert world.init(old) == new


@pytest.mark.parametrize("state", [EMPTY, ONGOING, COMPLETE_ABORT])
def test_no_client_has_the_largest_epoch(state: TransactionState) -> None:
    """The next one would not fit into the record: each request or timeout would unload the shard."""
    world = TransactionWorld()
    exhausted(world)
    world.transaction().producer_epoch = MAX_EPOCH
    world.transaction().state = state
    producer = 1001, MAX_EPOCH
    for call in (
        lambda: world.add(producer),
        lambda: world.end(producer, commit=False, version=2),
        lambda: world.coordinator.verify_partition("x", producer, T0),
    ):
        with pytest.raises(ProducerFencedError):
            call()


def test_a_transaction_with_the_largest_epoch_is_aborted() -> None:
    """Apache Kafka's log may have one: it ends it with the same epoch, and the next producer has another id."""
    world = TransactionWorld()
    producer = world.init(transaction_timeout_ms=5_000)
    world.add(producer)
    world.transaction().producer_epoch = MAX_EPOCH
    world.advance(6_000)
    assert world.transaction().state is COMPLETE_ABORT
    assert world.markers.written == [(T0, (1001, MAX_EPOCH), False)]
    assert world.init() == (1002, 0)


def test_a_failed_append_gives_no_identity() -> None:
    world = TransactionWorld()
    world.log.failure = KafkaStorageError()
    with pytest.raises(KafkaStorageError):
        world.init()
    assert world.coordinator.find("x") is None


# -- partitions -----------------------------------------------------------------------------------------------------


def test_partitions_gather_in_the_transaction() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, T0)
    world.time.advance(5)
    world.add(producer, T1)
    transaction = world.transaction()
    assert transaction.partitions == {T0, T1}
    assert transaction.state is ONGOING
    assert transaction.start_ms == world.time.milliseconds() - 5


def test_known_partitions_cost_no_record() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, T0, T1)
    appends = world.log.appends
    world.add(producer, T1)
    assert world.log.appends == appends


@pytest.mark.parametrize(
    ("producer", "error"),
    [((999, 0), InvalidProducerIdMappingError), ((1001, 1), ProducerFencedError)],
)
def test_only_the_producer_itself_adds(producer: tuple[int, int], error: type[KafkaError]) -> None:
    world = TransactionWorld()
    world.init()
    with pytest.raises(error):
        world.add(producer)
    with pytest.raises(error):
        world.coordinator.verify_partition("x", producer, T0)
    with pytest.raises(error):
        world.end(producer)


def test_an_unknown_transactional_id_has_no_transaction() -> None:
    world = TransactionWorld()
    with pytest.raises(InvalidProducerIdMappingError):
        world.add((1, 0))
    with pytest.raises(InvalidProducerIdMappingError):
        world.end((1, 0))


def test_a_partition_is_verified_while_the_transaction_is_open() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, T0)
    world.coordinator.verify_partition("x", producer, T0)
    with pytest.raises(TransactionAbortableError):
        world.coordinator.verify_partition("x", producer, T1)
    world.end(producer)
    with pytest.raises(TransactionAbortableError):
        world.coordinator.verify_partition("x", producer, T0)


def test_while_markers_are_due_the_next_transaction_waits() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer)
    world.markers.failures[T0] = KafkaStorageError()
    world.end(producer)
    with pytest.raises(ConcurrentTransactionsError):
        world.add(producer)
    with pytest.raises(ConcurrentTransactionsError):
        world.coordinator.verify_partition("x", producer, T0)
    with pytest.raises(ConcurrentTransactionsError):
        world.end(producer)


@pytest.mark.parametrize("call", ["add", "end"])
def test_a_full_directory_sends_clients_to_look_for_the_coordinator(call: str) -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer)
    world.log.failure = KafkaStorageError()
    with pytest.raises(NotCoordinatorError):
        world.add(producer, T1) if call == "add" else world.end(producer)
    assert world.transaction().state is ONGOING


# -- EndTxn, version 1 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("commit", "state"), [(True, COMPLETE_COMMIT), (False, COMPLETE_ABORT)])
def test_ending_writes_markers_everywhere(commit: bool, state: TransactionState) -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, T0, T1)
    assert world.end(producer, commit=commit) == producer
    assert world.markers.written == [(T0, producer, commit), (T1, producer, commit)]
    assert world.transaction().state is state
    assert not world.transaction().partitions


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_gets_the_same_answer_and_the_opposite_end_is_refused(commit: bool) -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer)
    world.end(producer, commit=commit)
    assert world.end(producer, commit=commit) == producer
    with pytest.raises(InvalidTxnStateError):
        world.end(producer, commit=not commit)
    assert len(world.markers.written) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_without_partitions_cannot_be_committed(version: int) -> None:
    world = TransactionWorld()
    producer = world.init()
    with pytest.raises(InvalidTxnStateError):
        world.end(producer, version=version)


def test_transactions_follow_each_other() -> None:
    world = TransactionWorld()
    producer = world.init()
    for commit in (True, False, True):
        world.add(producer)
        world.end(producer, commit=commit)
    assert [written[2] for written in world.markers.written] == [True, False, True]


# -- EndTxn, version 2 ----------------------------------------------------------------------------------------------


def test_version_2_raises_the_epoch_with_each_transaction() -> None:
    world = TransactionWorld()
    producer = world.init()
    for epoch in (1, 2, 3):
        world.add(producer, version=2)
        producer = world.end(producer, version=2)
        assert producer == (1001, epoch)
        assert world.markers.written[-1] == (T0, producer, True)


def test_in_version_2_a_retry_with_the_previous_epoch_gets_the_same_answer() -> None:
    world = TransactionWorld()
    first = world.init()
    world.add(first, version=2)
    second = world.end(first, version=2)
    assert world.end(first, version=2) == second
    with pytest.raises(InvalidTxnStateError):
        world.end(first, commit=False, version=2)


def test_in_version_2_a_retry_while_markers_are_due_is_refused_as_concurrent() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, version=2)
    world.markers.failures[T0] = KafkaStorageError()
    world.end(producer, version=2)
    with pytest.raises(ConcurrentTransactionsError):
        world.end(producer, version=2)


def test_version_2_may_abort_a_transaction_that_never_began() -> None:
    world = TransactionWorld()
    producer = world.init()
    producer = world.end(producer, commit=False, version=2)
    assert producer == (1001, 1)
    assert world.end(producer, commit=False, version=2) == (1001, 2)
    with pytest.raises(InvalidTxnStateError):
        world.end((1001, 2), commit=True, version=2)


def test_version_2_changes_the_producer_id_when_the_epoch_is_exhausted() -> None:
    world = TransactionWorld()
    old = exhausted(world)
    world.add(old, version=2)
    new = world.end(old, version=2)
    assert new == (1002, 0)
    assert world.markers.written == [(T0, (1001, MAX_EPOCH), True)]
    assert world.end(old, version=2) == new
    world.add(new, version=2)


def test_in_version_2_a_producer_that_has_lost_the_answer_may_begin_with_the_previous_epoch() -> None:
    world = TransactionWorld()
    old = world.init()
    world.add(old, version=2)
    new = world.end(old, version=2)
    assert world.init(old) == new


def test_in_version_2_a_producer_that_has_lost_the_answer_with_its_new_id_may_begin() -> None:
    world = TransactionWorld()
    old = exhausted(world)
    world.add(old, version=2)
    new = world.end(old, version=2)
    assert world.init(old) == new


def test_in_version_2_the_previous_epoch_cannot_add_partitions() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, version=2)
    world.end(producer, version=2)
    with pytest.raises(ProducerFencedError):
        world.add(producer, version=2)


# -- markers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2])
def test_markers_have_the_version_of_their_transaction(version: int) -> None:
    """A leader compares epochs by the version: only in version 2 they distinguish the transactions of a producer
    (KIP-1228)."""
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, version=version)
    world.markers.failures[T0] = KafkaStorageError()
    world.end(producer, version=version)
    again = world.restarted()
    assert again.markers.versions == [version]


@pytest.mark.parametrize("error", [UnknownTopicOrPartitionError(), InvalidProducerEpochError()])
def test_a_transaction_completes_without_markers_of_missing_or_fenced_partitions(error: KafkaError) -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, T0, T1)
    world.markers.failures[T0] = error
    world.end(producer)
    assert world.transaction().state is COMPLETE_COMMIT


def test_only_failed_markers_are_written_again() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, T0, T1)
    world.markers.failures[T0] = KafkaStorageError()
    world.end(producer)
    assert world.transaction().state is PREPARE_COMMIT
    world.advance(3 * RETRY_MS)
    assert world.markers.written == [(T1, producer, True)]
    world.markers.failures.clear()
    world.advance(RETRY_MS)
    assert world.markers.written == [(T1, producer, True), (T0, producer, True)]
    assert world.transaction().state is COMPLETE_COMMIT


def test_a_complete_record_that_fails_is_tried_again() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer)
    world.markers.failures[T0] = KafkaStorageError()
    world.end(producer)
    world.markers.failures.clear()
    world.log.failure = KafkaStorageError()
    world.advance(RETRY_MS)
    assert world.transaction().state is PREPARE_COMMIT
    world.log.failure = None
    world.advance(RETRY_MS)
    assert world.transaction().state is COMPLETE_COMMIT


def test_many_partitions_take_several_turns() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, *(("t", index) for index in range(MARKERS_PER_TURN + 1)))
    world.end(producer)
    assert len(world.markers.written) == MARKERS_PER_TURN
    world.advance(1)
    assert world.transaction().state is COMPLETE_COMMIT


# -- clocks and restarts --------------------------------------------------------------------------------------------


def test_an_open_transaction_times_out_and_its_producer_is_fenced() -> None:
    world = TransactionWorld()
    producer = world.init(transaction_timeout_ms=5_000)
    world.add(producer)
    world.advance(4_999)
    assert world.transaction().state is ONGOING
    world.advance(2)
    assert world.transaction().state is COMPLETE_ABORT
    assert world.markers.written == [(T0, (1001, 1), False)]
    with pytest.raises(ProducerFencedError):
        world.end(producer)


def test_the_timeout_counts_from_the_begin() -> None:
    world = TransactionWorld()
    producer = world.init(transaction_timeout_ms=5_000)
    world.add(producer)
    world.advance(3_000)
    world.add(producer, T1)
    world.advance(2_001)
    assert world.transaction().state is COMPLETE_ABORT


def test_an_ended_transaction_does_not_time_out() -> None:
    world = TransactionWorld()
    producer = world.init(transaction_timeout_ms=5_000)
    world.add(producer)
    world.end(producer)
    world.advance(100_000)
    assert world.transaction().state is COMPLETE_COMMIT


def test_a_timeout_that_cannot_be_stored_is_tried_again() -> None:
    world = TransactionWorld()
    producer = world.init(transaction_timeout_ms=5_000)
    world.add(producer)
    world.log.failure = KafkaStorageError()
    world.advance(6_000)
    assert world.transaction().state is ONGOING
    world.log.failure = None
    world.advance(10_000)
    assert world.transaction().state is COMPLETE_ABORT


def test_many_ids_expire_in_parts() -> None:
    world = TransactionWorld(MemoryTopicLog(partitions=1), transactional_id_expiration_ms=1_000)
    for number in range(3 * EXPIRY_PART):
        world.init(transactional_id=f"tx-{number}")
    before = len(world.log.batches[0])
    world.advance(2 * 3_600_000)
    sizes = [RecordBatch(bytearray(data)).record_count for data in world.log.batches[0][before:]]
    assert sizes == [EXPIRY_PART] * 3
    assert not world.runtime.shard(0).transactions


def test_unused_ids_are_forgotten() -> None:
    world = TransactionWorld(transactional_id_expiration_ms=1_000)
    world.init()
    world.advance(3_600_001)
    assert world.coordinator.find("x") is None
    assert world.restarted().coordinator.find("x") is None


def test_open_transactions_are_not_forgotten() -> None:
    world = TransactionWorld(transactional_id_expiration_ms=1_000, transaction_max_timeout_ms=2**31)
    world.add(world.init(transaction_timeout_ms=2**31 - 1))
    world.advance(3_600_001)
    assert world.transaction().state is ONGOING


@pytest.mark.parametrize("commit", [True, False])
def test_a_decided_transaction_is_ended_after_a_restart(commit: bool) -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, T0, T1)
    world.markers.failures = {T0: KafkaStorageError(), T1: KafkaStorageError()}
    world.end(producer, commit=commit)
    again = world.restarted()
    assert again.markers.written == [(T0, producer, commit), (T1, producer, commit)]
    assert again.transaction().state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)


def test_an_open_transaction_continues_after_a_restart() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer)
    again = world.restarted()
    again.add(producer, T1)
    again.end(producer)
    assert len(again.markers.written) == 2


def test_an_open_transaction_keeps_the_rest_of_its_timeout_after_a_restart() -> None:
    world = TransactionWorld()
    world.add(world.init(transaction_timeout_ms=5_000))
    world.time.advance(3_000)
    again = world.restarted()
    again.advance(1_999)
    assert again.transaction().state is ONGOING
    again.advance(2)
    assert again.transaction().state is COMPLETE_ABORT


def test_a_wall_clock_that_jumped_back_does_not_prolong_a_timeout() -> None:
    world = TransactionWorld()
    world.add(world.init(transaction_timeout_ms=5_000))
    world.time.jump_wall(-86_400_000)
    again = world.restarted()
    again.advance(5_001)
    assert again.transaction().state is COMPLETE_ABORT


def test_identities_survive_a_restart() -> None:
    world = TransactionWorld()
    world.init()
    assert world.restarted().init() == (1001, 1)
    assert world.restarted().transaction().state is EMPTY


def test_in_version_2_a_retry_after_a_restart_gets_the_same_answer() -> None:
    world = TransactionWorld()
    first = world.init()
    world.add(first, version=2)
    second = world.end(first, version=2)
    assert world.restarted().end(first, version=2) == second
