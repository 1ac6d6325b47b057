"""The state of a share partition: acquiring, acknowledging, locks, limits, and the state after a restart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import DEPTH
from tidelog.broker.coordinator.share_state.spans import ACKNOWLEDGED, ACQUIRED, ARCHIVED, AVAILABLE, Span
from tidelog.broker.share.share_partition import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    AcknowledgementBatch,
    AcquiredRun,
    AcquireRequest,
    BatchRange,
    Limits,
    SharePartition,
    divide_runs,
)
from tidelog.protocol.errors import InvalidRecordStateError, InvalidRequestError

LIMITS = Limits(lock_duration_ms=1_000, delivery_count=5, record_locks=200)
BATCH = 10


def batches_from(offset: int, end: int, size: int = BATCH) -> list[BatchRange]:
    """List the full batches of a log, from the one that holds the offset on."""
    return [BatchRange(base, base + size - 1) for base in range(offset // size * size, end, size)]


def acquire(
    partition: SharePartition,
    member: str = "m",
    *,
    end: int = 100,
    now: float = 0.0,
    limits: Limits = LIMITS,
    batches: Sequence[BatchRange] | None = None,
    **fields: Any,
) -> list[AcquiredRun]:
    offset = partition.next_fetch_offset
    values = {"max_records": 500, "batch_size": 500, "is_strict": False, **fields}
    found = batches_from(offset, end) if batches is None else batches
    return partition.acquire(AcquireRequest(member, offset, found, **values), limits, now)


def acknowledge(
    partition: SharePartition, first: int, last: int, *types: int, member: str = "m", now: float = 0.0
) -> list[Span]:
    """Acknowledge records, apply the change, and return the spans that a broker would store before that."""
    change = partition.acknowledge(member, [AcknowledgementBatch(first, last, types)], LIMITS, now)
    partition.commit(change)
    return change.batches


def test_fresh_records_are_acquired_once() -> None:
    partition = SharePartition(0)
    assert acquire(partition, end=30) == [AcquiredRun(0, 29, 1)]
    assert (partition.start_offset, partition.end_offset, partition.next_fetch_offset) == (0, 29, 30)
    assert acquire(partition, end=30) == []


def test_whole_batches_are_acquired_though_fewer_records_were_asked_for() -> None:
    assert acquire(SharePartition(0), max_records=15) == [AcquiredRun(0, 19, 1)]


def test_a_strict_request_gets_no_record_too_many() -> None:
    partition = SharePartition(0)
    assert acquire(partition, max_records=15, is_strict=True) == [AcquiredRun(0, 14, 1)]
    assert acquire(partition, max_records=15, is_strict=True) == [AcquiredRun(15, 29, 1)]


def test_acquired_runs_are_cut_at_the_batch_size() -> None:
    assert acquire(SharePartition(0), end=50, batch_size=20) == [
        AcquiredRun(0, 19, 1),
        AcquiredRun(20, 39, 1),
        AcquiredRun(40, 49, 1),
    ]


@pytest.mark.parametrize("batch_size", [-1, 0, 1])
def test_no_run_is_empty_whatever_the_batch_size(batch_size: int) -> None:
    runs = acquire(SharePartition(0), end=20, batch_size=batch_size)
    assert runs == [AcquiredRun(0, 9, 1), AcquiredRun(10, 19, 1)]


def test_a_batch_that_begins_before_the_start_offset_is_acquired_from_there() -> None:
    assert acquire(SharePartition(5), end=10) == [AcquiredRun(5, 9, 1)]


def test_no_more_than_the_lock_limit_is_in_flight() -> None:
    partition = SharePartition(0)
    limits = LIMITS._replace(record_locks=25)
    assert acquire(partition, limits=limits) == [AcquiredRun(0, 29, 1)]  # rounded up to a whole batch
    assert not partition.can_acquire(limits)
    assert acquire(partition, limits=limits) == []


def test_released_records_are_acquired_even_at_the_lock_limit() -> None:
    partition = SharePartition(0)
    limits = LIMITS._replace(record_locks=30)
    acquire(partition, limits=limits)
    acknowledge(partition, 10, 19, RELEASE)
    assert partition.can_acquire(limits)
    assert acquire(partition, "other", limits=limits) == [AcquiredRun(10, 19, 2)]
    assert partition.end_offset == 29


def test_accepted_records_move_the_start_offset() -> None:
    partition = SharePartition(0)
    acquire(partition, end=30)
    assert acknowledge(partition, 0, 9, ACCEPT) == []
    assert (partition.start_offset, partition.in_flight) == (10, 20)
    acknowledge(partition, 10, 29, ACCEPT)
    assert (partition.start_offset, partition.end_offset, partition.spans) == (30, 30, [])
    assert partition.next_fetch_offset == 30


def test_records_accepted_out_of_order_wait_for_those_before_them() -> None:
    partition = SharePartition(0)
    acquire(partition, end=30)
    assert acknowledge(partition, 20, 29, ACCEPT) == [Span(20, 29, ACKNOWLEDGED, 1)]
    assert partition.start_offset == 0
    change = partition.acknowledge("m", [AcknowledgementBatch(0, 9, [ACCEPT])], LIMITS, 0.0)
    assert (change.start_offset, change.delivery_complete_count) == (10, 10)


def test_each_record_may_have_its_own_acknowledgement() -> None:
    partition = SharePartition(0)
    acquire(partition, end=10)
    stored = acknowledge(partition, 1, 5, ACCEPT, RELEASE, RELEASE, REJECT, GAP)
    assert stored == [
        Span(1, 1, ACKNOWLEDGED, 1),
        Span(2, 3, AVAILABLE, 1),
        Span(4, 4, ARCHIVED, 1),
        Span(5, 5, ARCHIVED, 1),
    ]
    assert partition.next_fetch_offset == 2
    assert acquire(partition, "other", end=10) == [AcquiredRun(2, 3, 2)]


def test_a_renewed_record_is_held_for_longer_and_nothing_is_stored() -> None:
    partition = SharePartition(0)
    acquire(partition, end=10)
    change = partition.acknowledge("m", [AcknowledgementBatch(0, 4, [RENEW])], LIMITS, 600.0)
    assert (change.needs_storing, change.batches) == (False, [])
    partition.commit(change)
    assert partition.next_deadline_ms == 1_000
    partition.commit(partition.expire(LIMITS, 1_000.0))
    assert [(span.first, span.last, span.state) for span in partition.spans] == [(0, 4, ACQUIRED), (5, 9, AVAILABLE)]
    assert partition.next_deadline_ms == 1_600


def test_renewal_can_be_switched_off() -> None:
    partition = SharePartition(0)
    acquire(partition, end=10)
    with pytest.raises(InvalidRecordStateError):
        partition.acknowledge("m", [AcknowledgementBatch(0, 4, [RENEW])], LIMITS._replace(allows_renewal=False), 0.0)


@pytest.mark.parametrize(
    ("member", "first", "last", "error"),
    [
        ("other", 0, 9, InvalidRecordStateError),
        ("m", 0, 30, InvalidRequestError),
        ("m", 40, 49, InvalidRequestError),
    ],
)
def test_a_refused_acknowledgement_changes_nothing(member: str, first: int, last: int, error: type[Exception]) -> None:
    partition = SharePartition(0)
    acquire(partition, end=30)
    before = list(partition.spans)
    with pytest.raises(error):
        partition.acknowledge(member, [AcknowledgementBatch(first, last, [ACCEPT])], LIMITS, 0.0)
    assert partition.spans == before


def test_one_bad_batch_refuses_all_of_them() -> None:
    partition = SharePartition(0)
    acquire(partition, end=30)
    batches = [AcknowledgementBatch(0, 9, [ACCEPT]), AcknowledgementBatch(9, 12, [ACCEPT])]
    with pytest.raises(InvalidRecordStateError):
        partition.acknowledge("m", batches, LIMITS, 0.0)
    assert partition.start_offset == 0


def test_records_that_were_never_acquired_cannot_be_acknowledged() -> None:
    with pytest.raises(InvalidRecordStateError):
        acknowledge(SharePartition(0), 0, 9, ACCEPT)


def test_a_record_is_acknowledged_once() -> None:
    partition = SharePartition(0)
    acquire(partition, end=30)
    acknowledge(partition, 10, 19, ACCEPT)
    with pytest.raises(InvalidRecordStateError):
        acknowledge(partition, 10, 19, ACCEPT)


def test_acknowledgements_below_the_start_offset_do_nothing() -> None:
    partition = SharePartition(0)
    acquire(partition, end=30)
    acknowledge(partition, 0, 9, ACCEPT)
    assert acknowledge(partition, 0, 9, ACCEPT) == []
    assert partition.start_offset == 10


def test_records_of_an_expired_lock_are_available_again() -> None:
    partition = SharePartition(0)
    acquire(partition, end=10)
    early = partition.expire(LIMITS, 999.0)
    assert not early.needs_storing
    late = partition.expire(LIMITS, 1_000.0)
    assert late.batches == [Span(0, 9, AVAILABLE, 1)]
    partition.commit(late)
    assert acquire(partition, "other", end=10) == [AcquiredRun(0, 9, 2)]
    with pytest.raises(InvalidRecordStateError):
        acknowledge(partition, 0, 9, ACCEPT)


def test_a_release_makes_all_records_of_a_member_available() -> None:
    partition = SharePartition(0)
    acquire(partition, end=10)
    acquire(partition, "other", end=20)
    partition.commit(partition.release("m", LIMITS))
    assert [(span.first, span.state) for span in partition.spans] == [(0, AVAILABLE), (10, ACQUIRED)]


def test_a_record_is_archived_at_the_delivery_count_limit() -> None:
    partition = SharePartition(0)
    limits = LIMITS._replace(delivery_count=2)
    one = [BatchRange(0, 0)]
    for count in (1, 2):
        assert acquire(partition, batches=one, limits=limits) == [AcquiredRun(0, 0, count)]
        partition.commit(partition.acknowledge("m", [AcknowledgementBatch(0, 0, [RELEASE])], limits, 0.0))
    assert (partition.start_offset, partition.spans) == (1, [])


def test_records_that_were_released_often_are_delivered_in_ever_smaller_runs() -> None:
    partition = SharePartition(0)
    sizes = []
    for _ in range(7):
        acquired = acquire(partition, end=8, batches=[BatchRange(0, 7)])
        assert len({run.delivery_count for run in acquired}) == 1
        sizes.append((acquired[0].first, acquired[-1].last, acquired[0].delivery_count))
        partition.commit(partition.release("m", LIMITS))
    # all, all, all, then halves, then one at a time on the last delivery, which archives it
    assert sizes == [(0, 7, 1), (0, 7, 2), (0, 7, 3), (0, 3, 4), (0, 0, 5), (1, 1, 5), (2, 2, 5)]
    assert partition.start_offset == 3


def test_records_that_the_log_no_longer_has_are_archived() -> None:
    partition = SharePartition(0)
    acquire(partition, end=30)
    partition.commit(partition.release("m", LIMITS))
    assert acquire(partition, batches=[BatchRange(20, 29)]) == [AcquiredRun(20, 29, 2)]
    assert partition.start_offset == 20


def test_offsets_between_batches_are_never_acquired() -> None:
    partition = SharePartition(0)
    acquire(partition, batches=[BatchRange(0, 9)])
    assert acquire(partition, batches=[BatchRange(50, 59)]) == [AcquiredRun(50, 59, 1)]
    acknowledge(partition, 0, 9, ACCEPT)
    assert partition.start_offset == 50


def test_records_of_aborted_transactions_are_archived() -> None:
    partition = SharePartition(0)
    acquired = acquire(partition, end=30)
    left = partition.drop_aborted([BatchRange(0, 9), BatchRange(15, 16)], acquired)
    assert left == [AcquiredRun(10, 14, 1), AcquiredRun(17, 29, 1)]
    assert partition.start_offset == 10
    acknowledge(partition, 10, 14, ACCEPT)
    assert partition.start_offset == 17


@given(st.lists(st.integers(0, 5), max_size=12), st.lists(st.integers(0, 5), max_size=12))
def test_aborted_batches_divide_acquired_runs(runs: list[int], aborted: list[int]) -> None:
    """Each list has the sizes of parts and of the gaps between them, in turn."""
    acquired = [AcquiredRun(*bounds, 1) for bounds in parts_of(runs)]
    ranges = [BatchRange(*bounds) for bounds in parts_of(aborted)]
    hidden, left = divide_runs(acquired, ranges)
    offsets = {offset for run in acquired for offset in range(run.first, run.last + 1)}
    gone = {offset for batch in ranges for offset in range(batch.base_offset, batch.last_offset + 1)}
    assert [offset for first, last in hidden for offset in range(first, last + 1)] == sorted(offsets & gone)
    assert [offset for run in left for offset in range(run.first, run.last + 1)] == sorted(offsets - gone)


def parts_of(sizes: list[int]) -> list[tuple[int, int]]:
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return [(end - size, end - 1) for end, size in list(zip(ends, sizes, strict=True))[::2] if size]


def test_a_thousand_aborted_batches_are_dropped_in_a_short_turn() -> None:
    limits = LIMITS._replace(record_locks=10_000)
    partition = SharePartition(0)
    batches = batches_from(0, 1_000, 1)
    acquired = acquire(partition, batches=batches, max_records=1_000, batch_size=1, limits=limits)
    began = time.process_time()
    left = partition.drop_aborted(batches[::2], acquired)
    assert time.process_time() - began < 0.1
    assert left == acquired[1::2]


def test_records_released_one_by_one_are_acquired_in_a_short_turn() -> None:
    limits = LIMITS._replace(record_locks=10_000)
    partition = SharePartition(0)
    batches = batches_from(0, 1_000, 1)
    acquire(partition, batches=batches, max_records=1_000, limits=limits)
    for offset in range(1_000):
        acknowledge(partition, offset, offset, RELEASE)
    began = time.process_time()
    assert acquire(partition, batches=batches, max_records=1_000, limits=limits) == [AcquiredRun(0, 999, 2)]
    assert time.process_time() - began < 0.03


def test_the_start_offset_moves_with_the_log_start_offset() -> None:
    partition = SharePartition(0)
    acquire(partition, end=30)
    partition.log_start_moved(15)
    assert (partition.start_offset, partition.end_offset) == (15, 29)
    assert acknowledge(partition, 0, 9, ACCEPT) == []
    acknowledge(partition, 10, 19, ACCEPT)
    assert partition.start_offset == 20
    partition.log_start_moved(100)
    assert (partition.start_offset, partition.end_offset, partition.next_fetch_offset) == (100, 100, 100)


def test_records_whose_state_was_not_stored_are_available_after_a_restart() -> None:
    partition = SharePartition(
        10, [Span(0, 12, ACKNOWLEDGED, 1), Span(20, 24, AVAILABLE, 3), Span(30, 39, ARCHIVED, 5)]
    )
    assert partition.start_offset == 10
    assert [(span.first, span.last, span.state, span.delivery_count) for span in partition.spans] == [
        (10, 12, ACKNOWLEDGED, 1),
        (13, 19, AVAILABLE, 0),
        (20, 24, AVAILABLE, 3),
        (25, 29, AVAILABLE, 0),
        (30, 39, ARCHIVED, 5),
    ]
    assert (partition.next_fetch_offset, partition.end_offset) == (13, 39)
    assert acquire(partition, end=40)[0] == AcquiredRun(13, 19, 1)


class Model:
    """A model of a share partition that has a state for each single offset."""

    def __init__(self) -> None:
        self.states: dict[int, tuple[str, int, str, float]] = {}
        self.start = 0

    def trim(self) -> None:
        while self.states.get(self.start, ("",))[0] == "done":
            del self.states[self.start]
            self.start += 1


STEPS = st.one_of(
    st.tuples(st.just("acquire"), st.sampled_from("ab"), st.integers(1, 25), st.booleans()),
    st.tuples(
        st.just("acknowledge"),
        st.sampled_from("ab"),
        st.integers(0, 60),
        st.integers(0, 8),
        st.sampled_from((ACCEPT, RELEASE, REJECT)),
    ),
    st.tuples(st.just("release"), st.sampled_from("ab")),
    st.tuples(st.just("expire"), st.integers(0, 800)),
)


@pytest.mark.parametrize("part", range(2))
@settings(max_examples=150 * DEPTH)
@given(steps=st.lists(STEPS, max_size=40))
def test_spans_agree_with_a_model_that_has_a_state_for_each_offset(steps: list[tuple[Any, ...]], part: int) -> None:
    partition, model, now = SharePartition(0), Model(), 0.0
    for step in steps:
        if step[0] == "acquire":
            for run in acquire(partition, step[1], end=60, now=now, max_records=step[2], is_strict=step[3]):
                for offset in range(run.first, run.last + 1):
                    state, count, _, _ = model.states.get(offset, ("free", 0, "", 0.0))
                    assert (state, run.delivery_count) == ("free", count + 1)
                    model.states[offset] = ("held", count + 1, step[1], now + LIMITS.lock_duration_ms)
        elif step[0] == "acknowledge":
            model_acknowledge(partition, model, step)
        else:
            if step[0] == "expire":
                now += step[1]
                partition.commit(partition.expire(LIMITS, now))
            else:
                partition.commit(partition.release(step[1], LIMITS))
            for offset, (state, count, member, deadline) in list(model.states.items()):
                over = deadline <= now if step[0] == "expire" else member == step[1]
                if state == "held" and over:
                    model.states[offset] = state_after_release(count)
        model.trim()
        check(partition, model)


def model_acknowledge(partition: SharePartition, model: Model, step: tuple[Any, ...]) -> None:
    _, member, first, size, kind = step
    last = first + size
    offsets = range(max(first, model.start), last + 1)
    mine = last >= model.start and all(
        model.states.get(offset, ("",) * 3)[0:3:2] == ("held", member) for offset in offsets
    )
    if last < model.start or mine:
        acknowledge(partition, first, last, kind, member=member)
        for offset in offsets:
            count = model.states[offset][1]
            model.states[offset] = state_after_release(count) if kind == RELEASE else ("done", count, "", 0.0)
    else:
        with pytest.raises((InvalidRecordStateError, InvalidRequestError)):
            acknowledge(partition, first, last, kind, member=member)


def state_after_release(count: int) -> tuple[str, int, str, float]:
    return ("free" if count < LIMITS.delivery_count else "done", count, "", 0.0)


def check(partition: SharePartition, model: Model) -> None:
    names = {AVAILABLE: "free", ACQUIRED: "held", ACKNOWLEDGED: "done", ARCHIVED: "done"}
    found = {
        offset: (names[span.state], span.delivery_count, span.member_id)
        for span in partition.spans
        for offset in range(span.first, span.last + 1)
    }
    expected = {offset: values[:3] for offset, values in model.states.items()}
    done = {offset for offset, values in expected.items() if values[0] == "done"}
    assert {offset: found[offset] for offset in found if offset not in done} == {
        offset: expected[offset] for offset in expected if offset not in done
    }
    assert {offset for offset, values in found.items() if values[0] == "done"} == done
    assert partition.start_offset == model.start
    free = [offset for offset, values in sorted(expected.items()) if values[0] == "free"]
    end = max(expected, default=model.start - 1) + 1
    assert partition.next_fetch_offset == (free[0] if free else end)


def test_take_back_undoes_an_acquisition_and_its_delivery_count() -> None:
    partition = SharePartition(0)
    first = acquire(partition, max_records=10)
    partition.take_back("m", first)
    assert acquire(partition, "n", max_records=10) == first
    acknowledge(partition, 0, 4, RELEASE, member="n")
    again = acquire(partition, "n", max_records=5)
    assert again == [AcquiredRun(0, 4, 2)]
    partition.take_back("m", again)
    partition.take_back("n", [AcquiredRun(0, 4, 1)])
    assert [span.state for span in partition.spans] == [ACQUIRED, ACQUIRED], (
        "m does not hold them any more; n has them in their second delivery"
    )
    partition.take_back("n", again)
    assert acquire(partition, "o", max_records=5) == again
