"""State of share partitions: snapshots and updates, loading, and the offset up to which the log may be deleted."""

from __future__ import annotations

import pytest

from tests.support.coordinators import ManualLoop, MemoryTopicLog
from tests.unit.broker.stepping import response_of
from tidelog.broker.coordinator.runtime.replay import ReplayContext
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord, CoordinatorResult
from tidelog.broker.coordinator.runtime.runtime import CoordinatorRuntime
from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer
from tidelog.broker.coordinator.share_state.coordinator import ShareCoordinator, coordinator_key
from tidelog.broker.coordinator.share_state.records import ShareStateSerde
from tidelog.broker.coordinator.share_state.spans import ACKNOWLEDGED, ARCHIVED, AVAILABLE, Span
from tidelog.broker.coordinator.share_state.state import (
    COLD_AFTER_MS,
    PRUNE_INTERVAL_MS,
    ShareState,
    ShareStateShard,
    StateKey,
    StateUpdate,
    apply_update,
    join_equal,
)
from tidelog.log.system.time import ManualTime
from tidelog.protocol.coordinator_records.share import ShareSnapshotKey, ShareUpdateKey
from tidelog.protocol.errors import FencedLeaderEpochError, FencedStateEpochError, InvalidRequestError
from tidelog.protocol.record.batches import iter_batches

KEY = StateKey("g", b"t" * 16, 0)
OTHER = StateKey("g", b"t" * 16, 1)


class StateWorld:
    """A share coordinator over a topic in memory, of one partition."""

    def __init__(self, log: MemoryTopicLog | None = None) -> None:
        self.time = ManualTime()
        self.loop = ManualLoop(self.time)
        self.log = log or MemoryTopicLog(1)
        self.cut: list[int] = []
        self.runtime: CoordinatorRuntime[ShareStateShard] = CoordinatorRuntime(
            "__share_group_state",
            log=self.log,
            serde=ShareStateSerde(),
            new_shard=lambda _partition, timer: ShareStateShard(
                timer, time=self.time, updates_per_snapshot=3, delete_before=self.cut.append
            ),
            time=self.time,
            call_soon=self.loop.call_soon,
            call_later=self.loop.call_later,
        )
        self.share = ShareCoordinator(self.runtime)

    def write(self, start: int, *spans: Span, key: StateKey = KEY, complete: int = 0) -> None:
        self.share.write(key, StateUpdate(start, complete, 0, spans))

    def records(self) -> list[CoordinatorRecord]:
        found = []
        for data in self.log.batches.get(0, []):
            for batch in iter_batches(data):
                found += [ShareStateSerde.decode(record.key, record.value) for record in batch.records()]
        return [record for record in found if record is not None]

    def kinds(self) -> list[str]:
        names = {ShareSnapshotKey: "snapshot", ShareUpdateKey: "update"}
        return [names[record.key.__class__] if record.value else "tombstone" for record in self.records()]


def test_a_state_is_made_and_read() -> None:
    world = StateWorld()
    assert world.share.read(KEY) is None
    world.share.initialize(KEY, -1, 4)
    state = world.share.read(KEY)
    assert state is not None
    assert (state.start_offset, state.state_epoch, state.delivery_complete_count) == (-1, 4, -1)


def test_nothing_is_written_to_a_state_that_was_not_made() -> None:
    with pytest.raises(InvalidRequestError):
        StateWorld().write(5)


def test_updates_gather_until_a_snapshot_says_it_whole() -> None:
    world = StateWorld()
    world.share.initialize(KEY, 0, 1)
    for number in range(5):
        world.write(number, Span(10 + number, 10 + number, ACKNOWLEDGED, 1))
    assert world.kinds() == ["snapshot", "update", "update", "update", "snapshot", "update"]
    state = world.share.read(KEY)
    assert state is not None
    assert state.batches == (Span(10, 14, ACKNOWLEDGED, 1),)
    assert (state.start_offset, state.snapshot_epoch) == (4, 1)


def test_a_load_comes_to_the_same_state() -> None:
    world = StateWorld()
    world.share.initialize(KEY, 0, 1)
    for number in range(7):
        world.write(number, Span(10 + 2 * number, 10 + 2 * number, AVAILABLE, number + 1), complete=number)
    world.share.initialize(OTHER, 3, 1)
    again = StateWorld(world.log)
    assert again.share.read(KEY) == world.share.read(KEY)
    assert again.share.read(OTHER) == world.share.read(OTHER)


def test_a_reset_replaces_the_whole_state() -> None:
    world = StateWorld()
    world.share.initialize(KEY, 0, 1)
    world.write(3, Span(5, 6, ARCHIVED, 1))
    world.share.initialize(KEY, 20, 2)
    state = StateWorld(world.log).share.read(KEY)
    assert state is not None
    assert (state.start_offset, state.batches, state.state_epoch) == (20, (), 2)


@pytest.mark.parametrize("state_epoch", [1, 2])
def test_a_state_that_exists_is_not_created_again(state_epoch: int) -> None:
    """The heartbeats of two members asked for it: records may have been finished between their calls."""
    world = StateWorld()
    world.share.initialize(KEY, -1, 1)
    world.write(3, Span(5, 6, ACKNOWLEDGED, 1))
    before = world.share.read(KEY)
    world.share.initialize(KEY, -1, state_epoch)
    assert world.share.read(KEY) == StateWorld(world.log).share.read(KEY) == before


@pytest.mark.parametrize("updates", [1, 4])
def test_a_change_that_arrives_again_undoes_no_later_one(updates: int) -> None:
    """Its leader got no answer in time and sent it again, but the coordinator was only slow."""
    world = StateWorld()
    world.share.initialize(KEY, 0, 1)
    late = (0, Span(4, 4, AVAILABLE, 1), Span(5, 6, ACKNOWLEDGED, 1))
    world.write(*late)
    for _ in range(updates):
        world.write(2, Span(4, 4, ACKNOWLEDGED, 2), Span(5, 6, ACKNOWLEDGED, 1))
    before = world.share.read(KEY)
    world.write(*late)
    state = world.share.read(KEY)
    assert before is not None
    assert state is not None
    assert (state.start_offset, state.batches) == (2, before.batches)


def test_deleted_states_are_gone() -> None:
    world = StateWorld()
    world.share.initialize(KEY, 0, 1)
    world.share.initialize(OTHER, 0, 1)
    response_of(world.share.delete([KEY, StateKey("none", b"x" * 16, 0)]))
    assert world.share.read(KEY) is None
    world.share.topic_deleted(OTHER.topic_id)
    assert StateWorld(world.log).share.read(OTHER) is None
    assert world.kinds() == ["snapshot", "snapshot", "tombstone", "tombstone"]


def test_an_update_of_another_snapshot_is_ignored() -> None:
    world = StateWorld()
    world.share.initialize(KEY, 0, 1)
    world.write(3)
    record = world.records()[-1]
    shard = world.runtime.shard(0)
    assert record.value is not None
    record.value.snapshot_epoch, record.value.start_offset = 9, 100
    shard.replay(record, ReplayContext(7))
    state = world.share.read(KEY)
    assert state is not None
    assert state.start_offset == 3


def test_the_log_is_cut_below_the_oldest_snapshot() -> None:
    world = StateWorld()
    world.share.initialize(KEY, 0, 1)
    world.share.initialize(OTHER, 0, 1)
    for number in range(5):
        world.write(number)
    world.loop.advance(PRUNE_INTERVAL_MS - 1)
    world.write(7, key=OTHER)
    world.loop.advance(1)
    assert world.cut == [1], "the other state's snapshot stands at offset 1"
    world.loop.advance(COLD_AFTER_MS + PRUNE_INTERVAL_MS)
    assert world.kinds()[-2:] == ["snapshot", "snapshot"], "quiet states were written again whole"
    assert world.cut[-1] == 8
    again = StateWorld(world.log)
    assert again.share.read(OTHER) == world.share.read(OTHER)


def test_without_states_everything_is_cut() -> None:
    world = StateWorld()
    world.share.initialize(KEY, 0, 1)
    response_of(world.share.delete([KEY]))
    world.loop.advance(PRUNE_INTERVAL_MS)
    assert world.cut == [2]


def test_an_update_replaces_the_spans_that_it_covers() -> None:
    state = ShareState(5, (Span(5, 9, AVAILABLE, 1), Span(20, 29, ACKNOWLEDGED, 1)), 10)
    changed = apply_update(state, StateUpdate(8, 12, -1, [Span(8, 8, ARCHIVED, 2), Span(10, 12, ACKNOWLEDGED, 1)]))
    assert changed.batches == (
        Span(8, 8, ARCHIVED, 2),
        Span(9, 9, AVAILABLE, 1),
        Span(10, 12, ACKNOWLEDGED, 1),
        Span(20, 29, ACKNOWLEDGED, 1),
    )
    assert (changed.start_offset, changed.delivery_complete_count, changed.leader_epoch) == (8, 12, 0)
    assert apply_update(state, StateUpdate(-1, 10, 3, ())).start_offset == 5


def test_adjacent_spans_of_equal_state_are_joined() -> None:
    spans = [Span(0, 1, AVAILABLE, 1), Span(2, 2, AVAILABLE, 1), Span(3, 3, AVAILABLE, 2), Span(5, 5, AVAILABLE, 2)]
    assert join_equal(spans) == [Span(0, 2, AVAILABLE, 1), Span(3, 3, AVAILABLE, 2), Span(5, 5, AVAILABLE, 2)]


def test_keys_are_hashed_to_kafkas_partitions() -> None:
    assert coordinator_key(KEY) == "g:dHR0dHR0dHR0dHR0dHR0dA:0"


def test_records_of_a_newer_kind_are_left_alone() -> None:
    assert ShareStateSerde.decode(b"\x00\x09rest", b"") is None


def test_a_failed_append_cuts_nothing() -> None:
    time = ManualTime()
    cut: list[int] = []
    shard = ShareStateShard(CoordinatorTimer(time), time=time, delete_before=cut.append)
    result = shard.prune()
    assert isinstance(result, CoordinatorResult)
    assert result.on_append is not None
    result.on_append(InvalidRequestError())
    assert cut == []


# -- leaders on other brokers ----------------------------------------------------------------------------------------


def test_a_leader_that_reads_fences_those_before_it() -> None:
    world = StateWorld()
    world.share.initialize(KEY, 5, 1)
    assert world.share.read_as_leader(KEY, 4).result().start_offset == 5
    assert world.share.read_as_leader(KEY, 4).result().leader_epoch == 4
    assert world.kinds() == ["snapshot", "update"], "an epoch is written once"
    with pytest.raises(FencedLeaderEpochError):
        world.share.write(KEY, StateUpdate(6, 0, 3, (), 1))
    with pytest.raises(FencedLeaderEpochError):
        world.share.read_as_leader(KEY, 3)
    world.share.write(KEY, StateUpdate(6, 0, 4, (), 1))
    loaded = StateWorld(world.log)
    assert loaded.share.summary(KEY).result() == world.share.read(KEY)
    with pytest.raises(FencedLeaderEpochError):
        loaded.share.write(KEY, StateUpdate(7, 0, 3, (), 1))


def test_a_leader_is_fenced_when_the_group_was_reset() -> None:
    world = StateWorld()
    world.share.initialize(KEY, 5, 2)
    with pytest.raises(FencedStateEpochError):
        world.share.initialize(KEY, 5, 1)
    world.share.initialize(KEY, 9, 3)
    with pytest.raises(FencedStateEpochError):
        world.share.write(KEY, StateUpdate(6, 0, 0, (), 2))
    world.share.write(KEY, StateUpdate(10, 0, 0, (), 3))
    found = world.share.read(KEY)
    assert found is not None
    assert (found.start_offset, found.state_epoch) == (10, 3)


def test_a_read_without_a_leader_epoch_is_not_fenced() -> None:
    world = StateWorld()
    world.share.initialize(KEY, 0, 3)
    world.share.read_as_leader(KEY, 7)
    world.share.write(KEY, StateUpdate(1, 0, -1, ()))
    assert world.share.read_as_leader(KEY, -1).result().leader_epoch == 7


def test_a_missing_state_is_refused_to_leaders_and_is_neither_summarized_nor_deleted() -> None:
    world = StateWorld()
    with pytest.raises(InvalidRequestError, match="uninitialized"):
        world.share.read_as_leader(KEY, 0)
    assert world.share.summary(KEY).result() is None
    assert world.share.delete_one(KEY).result() is None
    assert world.kinds() == []
