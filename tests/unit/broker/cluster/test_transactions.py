"""Transactions over brokers: guards of what may be written, and the requests and answers of markers."""

from __future__ import annotations

import os
import random
from itertools import product

import pytest

from tidelog.broker.cluster.txn_markers import Marker, find_finished, request_of
from tidelog.broker.cluster.txn_verification import MAX_GUARDS, Guard, GuardKey, Verifications
from tidelog.protocol import errors
from tidelog.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

SEEDS = int(os.environ.get("TIDELOG_VERIFICATION_SEEDS", "200"))
KEY = GuardKey("orders", 2, 7, 4)


def is_allowed(known: Verifications, epoch: int = 1, key: GuardKey = KEY) -> bool:
    try:
        known.check(key, epoch)
    except errors.KafkaError:
        return False
    return True


def test_nothing_is_written_before_the_coordinator_allows_it() -> None:
    known = Verifications()
    assert known.is_wanted(KEY, 1)
    with pytest.raises(errors.CoordinatorLoadInProgressError):
        known.check(KEY, 1)
    guard = known.ask(KEY, 1)
    assert not known.is_wanted(KEY, 1), "it is asked once"
    assert not is_allowed(known)
    known.settle(guard, None)
    assert is_allowed(known)
    assert is_allowed(known), "until the marker"
    assert not is_allowed(known, epoch=2)
    assert known.is_wanted(KEY, 2)


def test_a_marker_ends_the_permission_to_write() -> None:
    known = Verifications()
    known.settle(known.ask(KEY, 1), None)
    known.note_marker(KEY._replace(partition=3))
    assert is_allowed(known)
    known.note_marker(KEY)
    assert not is_allowed(known)
    assert known.is_wanted(KEY, 1)


def test_an_answer_that_a_marker_overtook_counts_for_nothing() -> None:
    """Else a late batch would begin a transaction that no coordinator knows, and read_committed readers would stop."""
    known = Verifications()
    guard = known.ask(KEY, 1)
    known.note_marker(KEY)
    known.settle(guard, None)
    assert not is_allowed(known)


def test_a_refusal_is_raised_once_and_the_request_repeated() -> None:
    known = Verifications()
    known.settle(known.ask(KEY, 1), errors.TransactionAbortableError())
    with pytest.raises(errors.TransactionAbortableError):
        known.check(KEY, 1)
    assert known.is_wanted(KEY, 1)
    with pytest.raises(errors.CoordinatorLoadInProgressError):
        known.check(KEY, 1)


def test_guards_are_bounded() -> None:
    known = Verifications()
    for producer_id in range(MAX_GUARDS + 1):
        known.settle(known.ask(KEY._replace(producer_id=producer_id), 1), None)
    assert not is_allowed(known, key=KEY._replace(producer_id=0)), "the oldest is asked for again"
    assert is_allowed(known, key=KEY._replace(producer_id=MAX_GUARDS))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_schedule_allows_a_batch_after_the_marker_of_its_transaction(seed: int) -> None:
    """A coordinator with one transaction open or not; questions, answers and markers in any order."""
    chance = random.Random(seed)
    known = Verifications()
    is_open = False
    has_asked: list[tuple[Guard, bool]] = []
    for _ in range(60):
        act = chance.choice(("begin", "end", "ask", "answer", "write"))
        if act == "begin":
            is_open = True
        elif act == "end" and is_open:
            is_open = False
            known.note_marker(KEY)
        elif act == "ask" and known.is_wanted(KEY, 1):
            has_asked.append((known.ask(KEY, 1), is_open))
        elif act == "answer" and has_asked:
            guard, was_open = has_asked.pop(chance.randrange(len(has_asked)))
            known.settle(guard, None if was_open else errors.InvalidTxnStateError())
        elif act == "write" and is_allowed(known):
            assert is_open, "written into no transaction"


def markers() -> list[Marker]:
    ends = [(7, 1, True, 4, 2), (8, 0, False, 4, 0)]
    return [Marker(topic, partition, *end) for end in ends for topic, partition in product(("a", "b"), (0, 3))]


def answer(codes: dict[tuple[int, str, int], int]) -> WriteTxnMarkersResponse:
    results: dict[int, WritableTxnMarkerResult] = {}
    for (producer_id, topic, partition), code in codes.items():
        entry = results.setdefault(producer_id, WritableTxnMarkerResult(producer_id=producer_id))
        one = WritableTxnMarkerPartitionResult(partition_index=partition, error_code=code)
        entry.topics.append(WritableTxnMarkerTopicResult(name=topic, partitions=[one]))
    return WriteTxnMarkersResponse(markers=list(results.values()))


def test_one_request_has_an_entry_for_each_end() -> None:
    request = request_of(markers())
    assert [
        (one.producer_id, one.producer_epoch, one.transaction_result, one.coordinator_epoch, one.transaction_version)
        for one in request.markers
    ] == [(7, 1, True, 4, 2), (8, 0, False, 4, 0)]
    for entry in request.markers:
        assert [(topic.name, topic.partition_indexes) for topic in entry.topics] == [("a", [0, 3]), ("b", [0, 3])]


@pytest.mark.parametrize(
    ("code", "is_done"),
    [
        (errors.NONE, True),
        (errors.InvalidProducerEpochError.code, True),
        (errors.TransactionCoordinatorFencedError.code, True),
        (errors.NotLeaderOrFollowerError.code, False),
        (errors.UnknownTopicOrPartitionError.code, False),
        (errors.KafkaStorageError.code, False),
        (errors.UnknownServerError.code, False),
    ],
)
def test_a_marker_is_sent_until_it_is_written_or_needless(code: int, is_done: bool) -> None:
    sent = markers()
    codes = {(one.producer_id, one.topic, one.partition): errors.NONE for one in sent}
    codes[8, "b", 3] = code
    assert (sent[-1] in find_finished(sent, answer(codes))) is is_done
    del codes[8, "b", 3]
    assert find_finished(sent, answer(codes)) == set(sent[:-1]), "what is not answered is not written"


def test_brokers_before_4_2_get_no_version() -> None:
    request = request_of(markers())
    older = WriteTxnMarkersRequest.decode(memoryview(request.encode(1)), 1)
    assert {one.transaction_version for one in older.markers} == {0}
    newer = WriteTxnMarkersRequest.decode(memoryview(request.encode(2)), 2)
    assert [one.transaction_version for one in newer.markers] == [2, 0]
