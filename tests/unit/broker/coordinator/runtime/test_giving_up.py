"""A defect during any write of a coordinator: afterwards the coordinator serves the state that the log has."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.support.collected import no_garbage_collection
from tests.support.coordinators import GroupWorld, ManualLoop, MemoryTopicLog, TransactionWorld
from tests.unit.broker.coordinator.group.consumer.test_heartbeat import join as join_consumers
from tests.unit.broker.coordinator.group.test_offset_commits import commit, txn_commit
from tests.unit.broker.coordinator.share_state.test_state import KEY, StateWorld
from tests.unit.broker.coordinator.streams_world import Member, StreamsWorld
from tests.unit.broker.data_broker import InlineLoop
from tests.unit.broker.share.share_world import ShareWorld
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.group.shard import GroupShard
from tidelog.broker.coordinator.runtime import runtime as runtime_module
from tidelog.broker.coordinator.runtime.loading import MAX_RETRY_MS, RETRY_MS
from tidelog.broker.coordinator.runtime.result import CoordinatorResult
from tidelog.broker.coordinator.runtime.runtime import CoordinatorRuntime
from tidelog.broker.coordinator.share_state.spans import ACKNOWLEDGED, Span
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import apply_each
from tidelog.protocol.errors import KafkaError, NotCoordinatorError
from tidelog.protocol.record.record_batch import EndTransactionMarker, end_transaction_marker

SOURCES = str(Path(runtime_module.__file__).parents[3])
SEEDS = range(40)
MAX_CALLS = 60
"""About as many as one write makes."""

Operation = Callable[[], object]


class Fault:
    """A RuntimeError at one call during one write of a runtime."""

    def __init__(self, runtime: CoordinatorRuntime[Any], write: int, call: int) -> None:
        self._write = runtime._write
        self._writes_left = write
        self._calls_left = call
        self.has_struck = False
        runtime._write = self.write  # type: ignore[method-assign]

    def write(self, partition: int, shard: Any, result: CoordinatorResult[Any]) -> KafkaError | None:
        self._writes_left -= 1
        if self._writes_left:
            return self._write(partition, shard, result)
        with no_garbage_collection():  # a generator or file that another test left would be closed with a fault
            sys.setprofile(self._strike)
            try:
                return self._write(partition, shard, result)
            finally:
                sys.setprofile(None)

    def _strike(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(SOURCES):
            self._calls_left -= 1
            if not self._calls_left:
                sys.setprofile(None)
                self.has_struck = True
                raise RuntimeError("a fault of the broker")


class Kind:
    """A coordinator, what clients ask of it in turn, and what it keeps."""

    def __init__(
        self, runtime: CoordinatorRuntime[Any], loop: ManualLoop | InlineLoop, operations: list[Operation]
    ) -> None:
        self.runtime = runtime
        self.loop = loop
        self.operations = operations

    def settle(self) -> None:
        for _ in range(20):
            self.loop.run_soon()

    def kept(self) -> dict[int, str]:
        return {partition: repr(durable(shard)) for partition, shard in self.runtime.loaded}

    def load(self) -> None:
        """Load everything again."""
        self.runtime.unload()
        self.runtime.load_all()
        self.settle()


def durable(shard: Any) -> object:
    """Return the state of a shard according to the log."""
    if hasattr(shard, "transactions"):
        return sorted((name, one.state, one.producer_id, one.producer_epoch, sorted(one.partitions))
                      for name, one in shard.transactions.items())  # fmt: skip
    if hasattr(shard, "groups"):
        offsets = {name: shard.offsets.of_group(name) for name in sorted(shard.groups)}
        pending = {name: shard.offsets.has_open_transactions(name) for name in sorted(shard.groups)}
        return offsets, pending, sorted(map(durable_group, shard.groups.values()), key=repr)
    return shard.read(KEY)


def durable_group(group: Any) -> tuple[object, ...]:
    epoch = getattr(group, "generation_id", None) if hasattr(group, "generation_id") else group.epoch
    return type(group).__name__, group.group_id, epoch, sorted(group.members)


# -- what clients ask for ---------------------------------------------------------------------------------------------


def classic(_: Path) -> Kind:
    world = GroupWorld()
    operations: list[Operation] = [
        lambda: world.stable(2), lambda: commit(world, 5, group_id="h"), lambda: world.join("", version=3),
        lambda: world.join("", version=3), lambda: world.advance(70_000), lambda: world.stable(1),
    ]  # fmt: skip
    return Kind(world.runtime, world.loop, operations)


def offsets(_: Path) -> Kind:
    world = GroupWorld()

    def end() -> Deferred[None]:
        marker = end_transaction_marker(EndTransactionMarker(True, 0), timestamp=0, producer_id=7, producer_epoch=0)
        return world.runtime.append_end_transaction(world.runtime.partition_for("g"), marker)

    operations: list[Operation] = [
        lambda: commit(world, 5), lambda: txn_commit(world, 9), end, lambda: commit(world, 11),
        lambda: txn_commit(world, 12),
    ]  # fmt: skip
    return Kind(world.runtime, world.loop, operations)


def consumer(_: Path) -> Kind:
    world = GroupWorld()
    names = iter("abcdef")
    return Kind(world.runtime, world.loop, [lambda: join_consumers(world, next(names), "t")] * 4)


def transactions(_: Path) -> Kind:
    world = TransactionWorld()

    def add() -> None:
        world.add(world.init(), ("t", 0), ("t", 1))

    def end() -> object:
        found = world.transaction()
        return world.end((found.producer_id, found.producer_epoch))

    return Kind(world.runtime, world.loop, [world.init, add, end, add, add, end])


def share_states(_: Path) -> Kind:
    world = StateWorld()
    operations: list[Operation] = [lambda: world.share.initialize(KEY, 0, 1)]
    operations += [lambda at=at: world.write(at, Span(10 + at, 10 + at, ACKNOWLEDGED, 1)) for at in range(5)]  # type: ignore[misc]
    return Kind(world.runtime, world.loop, operations)


def share(directory: Path) -> Kind:
    world = ShareWorld(directory)
    world.configure("g")
    world.topic("t", 3)
    operations: list[Operation] = [lambda name=name: world.member(member_id=name) for name in "abc"]  # type: ignore[misc]
    return Kind(world.coordinators.groups.runtime, world.loop, operations)


def streams(directory: Path) -> Kind:
    world = StreamsWorld(directory)
    members = [Member(world, name) for name in "abc"]
    return Kind(coordinators_of(world.broker).groups.runtime, world.loop, [member.join for member in members])


IN_MEMORY = [classic, offsets, consumer, transactions, share_states]
ON_DISK = [share, streams]


def serve(kind: Kind, fault: Fault) -> list[Deferred[Any]]:
    """Do the operations; those after the one that met the fault are left out. Returns answers that clients wait for."""
    waiting = []
    for operation in kind.operations:
        try:
            answer = operation()
        except (KafkaError, AssertionError):
            if not fault.has_struck:
                raise
        else:
            waiting += [answer] if isinstance(answer, Deferred) else []
        if fault.has_struck:
            break
    return waiting


def check(build: Callable[[Path], Kind], directory: Path, seed: int) -> bool:
    """Let one call of one write fail; return whether it was made."""
    chance = random.Random(seed)
    kind = build(directory)
    fault = Fault(kind.runtime, chance.randrange(1, 5), chance.randrange(1, MAX_CALLS))
    waiting = serve(kind, fault)
    kind.settle()
    if fault.has_struck:
        assert all(answer.done for answer in waiting), "a client waits for what does not come"
        kind.loop.advance(RETRY_MS + 10)
        kind.settle()
    assert not kind.runtime._failed
    served = kind.kept()
    kind.load()
    assert served == kind.kept()
    return fault.has_struck


def test_a_fault_strikes_the_write_and_no_garbage_of_other_tests() -> None:
    """Python would report the error of a generator that it closes, and the test would fail for that."""
    world = GroupWorld()
    fault = Fault(world.runtime, 1, 1)
    write = fault._write
    thresholds = gc.get_threshold()
    cycle: list[Any] = [apply_each(range(2), str)]
    next(cycle[0])
    cycle.append(cycle)
    del cycle

    def collect_and_write(*arguments: Any) -> Any:
        gc.set_threshold(1)
        assert [[] for _ in range(10)]  # enough objects for a collection
        return write(*arguments)

    fault._write = collect_and_write  # type: ignore[assignment]
    try:
        with pytest.raises(NotCoordinatorError):
            commit(world, 5)
    finally:
        gc.set_threshold(*thresholds)
    assert fault.has_struck


@pytest.mark.parametrize("build", IN_MEMORY)
def test_the_state_after_a_fault_is_that_of_the_log(build: Callable[[Path], Kind], tmp_path: Path) -> None:
    struck = [check(build, tmp_path, seed) for seed in SEEDS]
    assert any(struck)


@pytest.mark.parametrize("build", ON_DISK)
def test_the_state_after_a_fault_is_that_of_a_log_on_disk(build: Callable[[Path], Kind], tmp_path: Path) -> None:
    struck = [check(build, tmp_path / str(seed), seed) for seed in SEEDS[:8]]
    assert any(struck)


def test_a_client_is_told_to_look_for_its_coordinator_until_the_log_is_loaded_again() -> None:
    world = GroupWorld()
    commit(world, 5)
    fault = Fault(world.runtime, 1, 1)
    for _ in range(2):
        with pytest.raises(NotCoordinatorError):
            commit(world, 6)
    assert fault.has_struck
    world.advance(RETRY_MS)
    commit(world, 7)
    found = world.runtime.shard_for("g").offsets.get("g", "t", 0)
    assert found is not None
    assert found.offset == 7


def test_a_load_that_ends_with_a_fault_is_tried_again_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    world = GroupWorld()
    commit(world, 5)
    loads = []

    def poison(*_: object) -> int:
        loads.append(world.time.monotonic_ms())
        raise RuntimeError("a record that no version of this broker should have written")

    again = GroupWorld(world.log, world.time)
    with monkeypatch.context() as patch:
        patch.setattr(runtime_module, "replay_chunk", poison)
        again.runtime.load_all()
        again.advance(10 * MAX_RETRY_MS)
        with pytest.raises(NotCoordinatorError):
            again.runtime.shard_for("g")
    pauses = [later - earlier for earlier, later in pairwise(loads)]
    assert pauses[:3] == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS]
    assert max(pauses) == MAX_RETRY_MS
    again.advance(MAX_RETRY_MS)
    assert again.group() is not None


def test_a_timer_that_meets_a_fault_does_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    world = GroupWorld()
    world.stable(1)
    shard = world.runtime.shard_for("g")

    def fail() -> None:
        raise RuntimeError

    shard.timer.schedule(("a", "fault"), 100, fail)
    world.advance(100)
    assert not world.runtime.loaded
    world.advance(RETRY_MS + 20_000)
    assert not world.group().members, "its session has ended"


def test_a_partition_that_meets_a_fault_keeps_no_other_from_being_loaded() -> None:
    world = GroupWorld()
    for number in range(20):
        commit(world, number, group_id=f"group-{number}")
    again = GroupWorld(world.log, world.time)
    build, faults = again.runtime._new_shard, [RuntimeError()]

    def fail_once(partition: int, timer: Any) -> Any:
        if faults:
            raise faults.pop()
        return build(partition, timer)

    again.runtime._new_shard = fail_once
    again.runtime.load_all()
    again.loop.run_soon()
    assert len(again.runtime.loaded) == len(world.log.batches) - 1
    again.advance(RETRY_MS)
    assert len(again.runtime.loaded) == len(world.log.batches)


def test_a_load_whose_last_step_meets_a_fault_is_tried_again_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = GroupWorld()
    commit(world, 5)
    loads = []

    def fail(_: object) -> list[CoordinatorResult[None]]:
        loads.append(world.time.monotonic_ms())
        raise RuntimeError

    monkeypatch.setattr(GroupShard, "on_loaded", fail)
    again = GroupWorld(world.log, world.time)
    again.runtime.load_all()
    again.advance(10 * MAX_RETRY_MS)
    pauses = [later - earlier for earlier, later in pairwise(loads)]
    assert pauses[:3] == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS]
    assert max(pauses) == MAX_RETRY_MS


def test_a_partition_whose_log_no_thread_could_open_is_loaded_later() -> None:
    """There was no memory, or no thread could be started: the log itself may be valid."""
    world = GroupWorld()
    commit(world, 5)
    again = GroupWorld(world.log, world.time)
    opening = world.log.openings[world.runtime.partition_for("g")] = Deferred()
    again.runtime.load_all()
    again.loop.run_soon()
    world.log.openings.clear()
    opening.fail(RuntimeError("can't start new thread"))
    with pytest.raises(NotCoordinatorError):
        again.runtime.shard_for("g")
    again.advance(RETRY_MS)
    assert again.group() is not None


def test_members_that_wait_are_answered_when_everything_is_forgotten() -> None:
    """Their topic was deleted: no clock of theirs runs any more."""
    world = GroupWorld(group_initial_rebalance_delay_ms=3000)
    _, waiting = world.join_twice()
    assert not waiting.done
    world.runtime.unload()
    assert waiting.result().error_code == NotCoordinatorError.code


class LedLog(MemoryTopicLog):
    """A topic of which this broker leads the partitions in ``led``."""

    def __init__(self) -> None:
        super().__init__()
        self.led = set(range(self.partitions))

    def is_led(self, partition: int) -> bool:
        return partition in self.led


def test_a_partition_that_was_empty_once_is_asked_when_another_broker_has_filled_it() -> None:
    """It executes what all shards do, also where it is not loaded yet."""
    log = LedLog()
    world = GroupWorld(log)
    commit(world, 1)
    partition = world.runtime.partition_for("h")
    assert partition != world.runtime.partition_for("g")
    world.runtime.load_all()
    world.loop.run_soon()
    log.led.remove(partition)
    world.runtime.resign_lost()
    elsewhere = GroupWorld(MemoryTopicLog(), world.time)
    elsewhere.log.batches, elsewhere.log.ends = log.batches, log.ends
    commit(elsewhere, 5, group_id="h")
    log.led.add(partition)
    asked: list[str] = []

    def decide(shard: GroupShard, _: int) -> Iterator[CoordinatorResult[None]]:
        asked.extend(shard.groups)
        return iter(())

    world.runtime.load_all()
    world.runtime.execute_in_all(decide)
    world.loop.run_soon()
    assert sorted(asked) == ["g", "h"]


@pytest.mark.parametrize("call", range(1, MAX_CALLS, 6))
def test_a_change_of_all_shards_is_completed_after_a_fault_in_one_of_them(call: int) -> None:
    """Offsets of a deleted topic must not greet the next one of its name."""
    world = GroupWorld()
    names = [f"group-{number}" for number in range(5)]
    for name in names:
        commit(world, 5, group_id=name)
    fault = Fault(world.runtime, 2, call)
    done = world.coordinator.topic_deleted("t", bytes(16))
    world.loop.run_soon()
    world.advance(RETRY_MS)
    assert done.done
    if fault.has_struck:
        assert done.has_value
    left = [name for name in names if world.runtime.shard_for(name).offsets.get(name, "t", 0) is not None]
    assert not left
