"""Queue of requests to share coordinators: order, merged requests, retries; coordinators that move, load, refuse or do
not answer."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tidelog.broker.coordinator.share_state.calls import CALLS, build_request, build_write_data, results_of, written_of
from tidelog.broker.coordinator.share_state.persister import (
    MAX_CALLS,
    MAX_READS,
    MAX_STATE_BATCHES_OF_ONE,
    TIMEOUT_MS,
    CallBatch,
    ShareStatePersister,
)
from tidelog.broker.coordinator.share_state.spans import ACKNOWLEDGED, AVAILABLE, Span
from tidelog.broker.coordinator.share_state.state import (
    NO_EPOCH,
    ShareState,
    StateKey,
    StateUpdate,
    apply_update,
)
from tidelog.broker.loop.deferred import Deferred, error_of
from tidelog.broker.requests.bounds import max_elements
from tidelog.broker.share.share_partition import UNINITIALIZED_OFFSET
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    FencedStateEpochError,
    KafkaError,
    NotCoordinatorError,
)
from tidelog.protocol.messages.initialize_share_group_state import PartitionData as InitializePartition
from tidelog.protocol.messages.read_share_group_state import PartitionData as ReadPartition
from tidelog.protocol.types import MAX_ELEMENTS

INITIALIZE = ApiKey.INITIALIZE_SHARE_GROUP_STATE
READ, WRITE = ApiKey.READ_SHARE_GROUP_STATE, ApiKey.WRITE_SHARE_GROUP_STATE
TOPIC = b"t" * 16
KEY, OTHER = StateKey("g", TOPIC, 0), StateKey("g", TOPIC, 1)
AGAIN = [NotCoordinatorError, CoordinatorLoadInProgressError, CoordinatorNotAvailableError]


class World:
    """Brokers 1 to 3, any of which may be the coordinator, and a clock that the test moves."""

    def __init__(self) -> None:
        self.leader: int | None = 1
        self.now_ms = 0.0
        self.persister = ShareStatePersister(lambda _: self.leader)

    def read(self, key: StateKey = KEY, leader_epoch: int = 1) -> Deferred[Any]:
        asked = ReadPartition(partition=key.partition, leader_epoch=leader_epoch)
        return self.persister.ask(READ, key, asked, self.now_ms)

    def write(self, offset: int, key: StateKey = KEY, leader_epoch: int = 1) -> Deferred[Any]:
        """Write a state whose start offset is ``offset``, with two acknowledged records from there on."""
        written = StateUpdate(offset, 0, leader_epoch, [Span(offset, offset + 1, ACKNOWLEDGED, 1)], 4)
        return self.persister.ask(WRITE, key, build_write_data(key, written), self.now_ms)

    def initialize(self, state_epoch: int, start_offset: int) -> Deferred[Any]:
        asked = InitializePartition(partition=0, state_epoch=state_epoch, start_offset=start_offset)
        return self.persister.ask(INITIALIZE, KEY, asked, self.now_ms)

    def batch(self) -> CallBatch:
        found = self.persister.next_batch(self.now_ms)
        assert found is not None
        return found

    def answer(self, batch: CallBatch, outcome: ShareState | KafkaError | None = None) -> None:
        self.persister.take_results(batch, dict.fromkeys(batch.calls, outcome), self.now_ms)

    def wait(self) -> None:
        """Let time pass until a call is repeated."""
        wake_ms = self.persister.wake_ms(self.now_ms)
        assert wake_ms is not None
        assert wake_ms > self.now_ms
        self.now_ms = wake_ms


def test_calls_about_one_share_partition_go_one_after_the_other() -> None:
    world = World()
    read, written, other = world.read(), world.write(5), world.read(OTHER)
    first = world.batch()
    assert (first.node_id, first.api, list(first.calls)) == (1, READ, [KEY, OTHER])
    assert world.persister.next_batch(0.0) is None, "one request at a time to each broker"
    world.answer(first, ShareState(3))
    assert (read.result().start_offset, other.result().start_offset) == (3, 3)
    second = world.batch()
    assert second.api is WRITE
    assert not written.done
    world.answer(second)
    assert written.result() is None
    assert world.persister.next_batch(0.0) is None


def test_a_read_comes_after_the_changes_before_it() -> None:
    """A leader that has dropped a share partition reads it again while its last change is being written."""
    world = World()
    world.write(5)
    read = world.read()
    batch = world.batch()
    assert batch.api is WRITE
    world.answer(batch)
    assert not read.done
    assert world.batch().api is READ


def test_changes_that_wait_become_one_but_not_over_another_call() -> None:
    world = World()
    under_way = world.write(1)
    first = world.batch()
    waiting = [world.write(offset) for offset in (2, 3)]
    later = [world.read(), world.write(9)]
    world.answer(first)
    assert under_way.done
    second = world.batch()
    (partition,) = second.request.topics[0].partitions  # type: ignore[attr-defined]
    assert (partition.start_offset, [one.first_offset for one in partition.state_batches]) == (3, [3])
    world.answer(second)
    assert all(one.done for one in waiting)
    assert not any(one.done for one in later)


def test_changes_of_another_leader_epoch_are_not_joined() -> None:
    world = World()
    world.write(1)
    newer = world.write(2, leader_epoch=2)
    world.answer(world.batch())
    assert not newer.done


@pytest.mark.parametrize("error", AGAIN)
def test_a_coordinator_that_moved_or_loads_is_asked_again_where_it_is_then(error: type[KafkaError]) -> None:
    world = World()
    read = world.read()
    world.answer(world.batch(), error())
    assert world.persister.next_batch(world.now_ms) is None, "not at once"
    world.leader = 2
    world.wait()
    batch = world.batch()
    assert batch.node_id == 2
    world.answer(batch, ShareState(8))
    assert read.result().start_offset == 8


def test_a_silent_coordinator_is_asked_until_the_time_is_over() -> None:
    world = World()
    written, asked = world.write(1), 0
    while not written.done:
        batch = world.persister.next_batch(world.now_ms)
        if batch is not None:
            asked += 1
            world.persister.take_failure(batch, "no answer", world.now_ms)
        if not written.done:
            world.wait()
    assert isinstance(error_of(written), CoordinatorNotAvailableError)
    assert TIMEOUT_MS <= world.now_ms <= TIMEOUT_MS + 1000
    assert 10 < asked < 40
    assert world.persister.wake_ms(world.now_ms) is None, "nothing is kept"


def test_without_a_coordinator_calls_wait_for_one() -> None:
    world = World()
    world.leader = None
    read = world.read()
    assert world.persister.next_batch(0.0) is None
    world.leader = 3
    world.wait()
    world.answer(world.batch(), ShareState(1))
    assert read.result().start_offset == 1


@pytest.mark.parametrize("error", [FencedLeaderEpochError, FencedStateEpochError])
def test_a_fenced_change_fails_the_changes_queued_after_it(error: type[KafkaError]) -> None:
    """They were worked out upon it. What is asked afterwards is asked of the coordinator."""
    world = World()
    first = world.write(1)
    batch = world.batch()
    behind, read = world.write(2), world.read(leader_epoch=2)
    world.answer(batch, error())
    assert [type(error_of(one)) for one in (first, behind)] == [error, error]
    assert not read.done
    assert world.batch().api is READ


def test_an_abandoned_call_does_not_delay_others() -> None:
    world = World()
    gone, there = world.write(1), world.write(2)
    gone.abandon()
    world.answer(world.batch())
    assert there.done


def test_a_request_is_of_one_group_and_bounded() -> None:
    world = World()
    keys = [StateKey(group, TOPIC, number) for number in range(MAX_CALLS) for group in ("a", "b")]
    waits = [world.read(key) for key in keys]
    batches = []
    while (batch := world.persister.next_batch(0.0)) is not None:
        assert {key.group_id for key in batch.calls} == {batch.group_id}
        batches.append(len(batch.calls))
        world.answer(batch, ShareState(0))
    assert batches == [MAX_READS] * (2 * MAX_CALLS // MAX_READS)
    assert all(one.done for one in waits)


@pytest.mark.parametrize("error", [None, FencedStateEpochError(), NotCoordinatorError()])
def test_a_call_made_while_an_answer_is_handled_repeats_no_other_call(error: KafkaError | None) -> None:
    """Calls whose answer came with it are not asked again, and those asked meanwhile wait for their own."""
    world = World()
    world.write(0)
    first, sent = world.batch(), []
    first_done, second_done = world.write(1), world.write(2, OTHER)

    def ask_more(_: Deferred[Any]) -> None:
        world.write(3, StateKey("g", TOPIC, 2))
        while (batch := world.persister.next_batch(world.now_ms)) is not None:
            sent.append(set(batch.calls))

    first_done.on_done(ask_more)
    world.answer(first)
    batch = world.batch()
    assert set(batch.calls) == {KEY, OTHER}
    results = {KEY: FencedStateEpochError(), OTHER: error}
    world.persister.take_results(batch, results, world.now_ms)
    assert sent == [{StateKey("g", TOPIC, 2)}]
    assert second_done.done is not isinstance(error, NotCoordinatorError)


def test_a_call_made_while_another_times_out_repeats_no_other_call() -> None:
    world = World()
    world.leader = None
    first, second = world.read(), world.read(OTHER)
    assert world.persister.next_batch(0.0) is None
    world.now_ms = TIMEOUT_MS

    def ask_more(_: Deferred[Any]) -> None:
        world.write(3)
        assert world.persister.next_batch(world.now_ms) is None

    first.on_done(ask_more)
    assert world.persister.next_batch(world.now_ms) is None
    assert isinstance(error_of(first), CoordinatorNotAvailableError)
    assert isinstance(error_of(second), CoordinatorNotAvailableError)


@pytest.mark.parametrize("start_offset", [UNINITIALIZED_OFFSET, 7])
def test_members_that_join_at_once_make_one_state(start_offset: int) -> None:
    """If the second member's call were repeated later, it would reset the acknowledgements of the first. A call that
    sets a group to an offset is made each time."""
    world = World()
    first, second = world.initialize(1, UNINITIALIZED_OFFSET), world.initialize(2, start_offset)
    read, third = world.read(), world.initialize(3, UNINITIALIZED_OFFSET)
    world.answer(world.batch())
    is_one = start_offset == UNINITIALIZED_OFFSET
    assert (first.done, second.done, read.done, third.done) == (True, is_one, False, False)
    assert world.batch().api is (READ if is_one else INITIALIZE)


def test_a_state_that_was_not_made_is_made_for_the_next_member() -> None:
    world = World()
    first, second = world.initialize(1, UNINITIALIZED_OFFSET), world.initialize(2, UNINITIALIZED_OFFSET)
    world.answer(world.batch(), FencedStateEpochError())
    assert isinstance(error_of(first), FencedStateEpochError)
    assert not second.done
    world.answer(world.batch())
    assert second.has_value


def test_a_request_has_no_more_batches_than_a_broker_takes() -> None:
    """A broker closes the connection of a longer request, and would do so again each time it is asked."""
    world = World()
    spans = [Span(2 * offset, 2 * offset, ACKNOWLEDGED, 1) for offset in range(2_000)]
    for number in range(60):
        key = StateKey("g", TOPIC, number)
        world.persister.ask(WRITE, key, build_write_data(key, StateUpdate(0, 0, 1, spans, 4)), 0.0)
    sizes = []
    while (batch := world.persister.next_batch(0.0)) is not None:
        sizes.append(len(batch.calls))
        topics = batch.request.topics  # type: ignore[attr-defined]
        elements = sum(1 + len(one.state_batches) for topic in topics for one in topic.partitions)
        assert len(topics) + elements <= max_elements(WRITE)
        world.answer(batch)
    assert sum(sizes) == 60
    assert max(sizes) > 10


def test_an_answer_has_no_more_batches_than_a_broker_reads() -> None:
    """An asker cannot decode a longer answer, and would ask for the same again until the time is over."""
    world = World()
    for number in range(MAX_CALLS):
        world.read(StateKey("g", TOPIC, number))
    sizes = []
    while (batch := world.persister.next_batch(0.0)) is not None:
        sizes.append(len(batch.calls))
        assert 1 + len(batch.calls) * (1 + MAX_STATE_BATCHES_OF_ONE) <= MAX_ELEMENTS
        world.answer(batch)
    assert sum(sizes) == MAX_CALLS
    assert max(sizes) > 50


@pytest.mark.parametrize("seed", range(50))
def test_the_store_ends_as_the_changes_in_their_order(seed: int) -> None:
    """Changes, joined or not, over a coordinator that loses requests and answers: each is stored, in its order."""
    rng = random.Random(seed)
    world, stored, expected, waits = World(), ShareState(0), ShareState(0), []
    for _ in range(200):
        if rng.random() < 0.4:
            first = expected.start_offset + rng.randrange(6)
            state = rng.choice([AVAILABLE, ACKNOWLEDGED])
            batches = [Span(first, first + rng.randrange(4), state, rng.randrange(1, 3))]
            start = expected.start_offset + rng.randrange(2)
            written = StateUpdate(start, rng.randrange(3), 1, batches, NO_EPOCH)
            expected = apply_update(expected, written)
            waits.append(world.persister.ask(WRITE, KEY, build_write_data(KEY, written), world.now_ms))
        world.now_ms += rng.randrange(100)
        batch = world.persister.next_batch(world.now_ms)
        if batch is None:
            continue
        is_lost, is_unanswered = rng.random() < 0.2, rng.random() < 0.2
        if not is_lost:
            stored = apply_update(stored, written_of(batch.calls[KEY].asked))  # type: ignore[arg-type]
        if is_lost or is_unanswered:
            world.persister.take_failure(batch, "lost", world.now_ms)
        else:
            world.answer(batch)
    while not all(one.done for one in waits):
        batch = world.persister.next_batch(world.now_ms)
        if batch is None:
            world.wait()
            continue
        stored = apply_update(stored, written_of(batch.calls[KEY].asked))  # type: ignore[arg-type]
        world.answer(batch)
    assert not any(error_of(one) for one in waits)
    assert (stored.start_offset, stored.batches) == (expected.start_offset, expected.batches)


def test_requests_and_answers_cross_the_wire() -> None:
    asked = [(key, ReadPartition(partition=key.partition, leader_epoch=3)) for key in (KEY, OTHER)]
    request = build_request(READ, "g", asked)
    assert type(request).decode(memoryview(request.encode(0)), 0) == request
    call = CALLS[READ]
    state = ShareState(5, (Span(6, 7, ACKNOWLEDGED, 2),), state_epoch=4)
    results = [
        call.result(partition=0, **call.fields_of(state)),
        call.result(partition=1, error_code=FencedLeaderEpochError.code, error_message="old"),
    ]
    answer = call.response(results=[call.topic_result(topic_id=TOPIC, partitions=results)])
    found = results_of(READ, "g", type(answer).decode(memoryview(answer.encode(0)), 0))
    assert found[KEY] == state
    assert isinstance(found[OTHER], FencedLeaderEpochError)
    assert str(found[OTHER]) == "old"
