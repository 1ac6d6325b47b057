"""Failovers of the share coordinator: the next one reads every state that was acknowledged as written.

Leaders of a share partition write its state through the queue of calls. Meanwhile the log is copied and pruned, answers
get lost, brokers die and start, the coordinator moves, and other leaders take over. The order is drawn by Hypothesis,
which makes a failing one as short as it gets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.depth import DEPTH
from tests.unit.broker.coordinator.share_state.replicas import BROKERS, Node, ReplicatedTopic
from tidelog.broker.coordinator.share_state.calls import CALLS, build_write_data
from tidelog.broker.coordinator.share_state.coordinator import coordinator_key
from tidelog.broker.coordinator.share_state.persister import TIMEOUT_MS, CallBatch, ShareStatePersister
from tidelog.broker.coordinator.share_state.spans import ACKNOWLEDGED, AVAILABLE, Span
from tidelog.broker.coordinator.share_state.state import (
    COLD_AFTER_MS,
    PRUNE_INTERVAL_MS,
    ShareState,
    StateKey,
    StateUpdate,
    apply_update,
)
from tidelog.broker.loop.deferred import Deferred, deferred_error, error_of
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import FencedLeaderEpochError, KafkaError, NotCoordinatorError
from tidelog.protocol.messages.initialize_share_group_state import PartitionData as InitializePartition
from tidelog.protocol.messages.read_share_group_state import PartitionData as ReadPartition

KEY = StateKey("g", b"t" * 16, 0)
QUIET = StateKey("g", b"t" * 16, 1)
STATE_EPOCH = 4
LONG_MS = max(PRUNE_INTERVAL_MS, COLD_AFTER_MS) + 1

Content = tuple[int, tuple[Span, ...]]
"""Start offset and batches of a state."""


def content_of(state: ShareState) -> Content:
    return state.start_offset, state.batches


class Flight(NamedTuple):
    """A request that was sent; ``outcomes`` is None until the coordinator has taken it."""

    batch: CallBatch
    outcomes: dict[StateKey, Deferred[Any]] | None


class Caller:
    """A broker that calls the coordinator: one request at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.persister = ShareStatePersister(lambda _: None if world.topic.leader < 0 else world.topic.leader)
        self.flight: Flight | None = None
        self.late: list[CallBatch] = []
        """Requests that the coordinator has still to take, although their connections have closed."""


class GroupCoordinator(Caller):
    """The coordinator of the group, whose members' heartbeats ask for the state again."""

    def create(self) -> None:
        asked = InitializePartition(partition=KEY.partition, start_offset=-1, state_epoch=STATE_EPOCH)
        self.persister.ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, KEY, asked, self.world.now_ms)


class PartitionLeader(Caller):
    """A leader of the share partition: what it read, and what it asked for since."""

    def __init__(self, world: World, epoch: int) -> None:
        super().__init__(world)
        self.epoch = epoch
        self.states: list[ShareState] = []
        """The state that was read, and the states that each of its changes makes of it."""
        self.is_over = False
        self.begin()

    def begin(self) -> None:
        """Read the state, and go on from there. A change that was refused does not arrive any more."""
        self.states = []
        self.late = []
        asked = ReadPartition(partition=KEY.partition, leader_epoch=self.epoch)
        self.persister.ask(ApiKey.READ_SHARE_GROUP_STATE, KEY, asked, self.world.now_ms).on_done(self._take_read)

    def _take_read(self, done: Deferred[ShareState]) -> None:
        error = error_of(done)
        if isinstance(error, FencedLeaderEpochError):
            self.is_over = True
        elif error is not None:
            self.begin()
        else:
            self.states = [done.result()]
            self.world.note_read(self.epoch, content_of(done.result()))

    def write(self, number: int) -> None:
        """Change the state: a record is released or acknowledged, and sometimes the start offset moves."""
        if self.is_over or not self.states:
            return
        state, index = self.states[-1], len(self.states)
        offset = self.world.next_offset()
        kind = ACKNOWLEDGED if number % 3 else AVAILABLE
        start = max(state.start_offset, offset - 4) if number % 2 else state.start_offset
        change = StateUpdate(start, 0, self.epoch, [Span(offset, offset, kind, number + 1)], STATE_EPOCH)
        self.states.append(apply_update(state, change))
        self.world.possible.append(content_of(self.states[-1]))
        states = self.states
        asked = build_write_data(KEY, change)
        answer = self.persister.ask(ApiKey.WRITE_SHARE_GROUP_STATE, KEY, asked, self.world.now_ms)
        answer.on_done(lambda done: self._take_written(done, states, index))

    def _take_written(self, done: Deferred[None], states: list[ShareState], index: int) -> None:
        error = error_of(done)
        if states is not self.states:
            if error is None:
                self.world.faults.append("a change is written after one before it was refused")
        elif isinstance(error, FencedLeaderEpochError):
            self.is_over = True
        elif error is not None:
            self.begin()  # as a leader does that cannot store a change
        else:
            self.world.note_written(self.epoch, [content_of(state) for state in states[index:]])


class World:
    """A replicated topic, and leaders of one share partition one after the other."""

    def __init__(self) -> None:
        self.topic = ReplicatedTopic()
        self.now_ms = 0.0
        self.possible: list[Content] = []
        """The states that the log may hold: the last acknowledged one and those written after it."""
        self.reads: list[tuple[int, Content]] = []
        """The states that leaders read, each with its leader epoch."""
        self.faults: list[str] = []
        """Mistakes found in callbacks of answers, which must not raise."""
        self._offset = 0
        node = self.topic.nodes[self.topic.leader]
        for key in (KEY, QUIET):
            node.share.initialize(key, 0, STATE_EPOCH)
        for follower in BROKERS[1:]:
            self.topic.copy(follower)
        self.possible = [(0, ())]
        self.group = GroupCoordinator(self)
        self.leaders = [PartitionLeader(self, 1)]
        self.serve(self.leaders[0])

    def next_offset(self) -> int:
        """Return the offset of the record for the next change; some offsets are repeated."""
        self._offset += 1
        return self._offset - self._offset % 3

    def check_read(self, found: Content) -> None:
        if found not in self.possible:
            self.faults.append(f"{found} is read, which is none of what may have been written: {self.possible}")

    def find_later_read(self, epoch: int) -> Content | None:
        """Return what the next leader after this epoch read first; None where there was none yet."""
        return next((content for reader, content in self.reads if reader > epoch), None)

    def note_read(self, epoch: int, found: Content) -> None:
        """Take a leader's answer to its read; that of a leader which another has replaced may come late."""
        if self.find_later_read(epoch) is None:
            self.check_read(found)
            self.possible = [found]
            self.reads.append((epoch, found))

    def note_written(self, epoch: int, contents: list[Content]) -> None:
        """Take the answer that the first of these is written; the others are what the leader made of it since.

        Where another leader has read meanwhile, that read had to find one of them.
        """
        read = self.find_later_read(epoch)
        if read is None and contents[0] in self.possible:
            self.possible = self.possible[self.possible.index(contents[0]) :]
        elif read not in contents:
            self.faults.append(f"{contents[0]} is answered as written, and a later leader did not read it")

    # -- steps ----------------------------------------------------------------------------------------------------

    def send(self, leader: Caller) -> None:
        """Send the next request, or have the coordinator take the one that is sent, or take its answer."""
        flight = leader.flight
        if flight is None:
            batch = leader.persister.next_batch(self.now_ms)
            leader.flight = None if batch is None else Flight(batch, None)
        elif flight.outcomes is None:
            node = self.topic.nodes.get(flight.batch.node_id)
            if node is None:
                self.lose(leader)
            else:
                leader.flight = flight._replace(outcomes=take(node, flight.batch))
        elif all(outcome.done for outcome in flight.outcomes.values()):
            leader.flight = None
            results = {key: error_of(one) or one.result() for key, one in flight.outcomes.items()}
            leader.persister.take_results(flight.batch, results, self.now_ms)

    def serve(self, leader: PartitionLeader) -> None:
        """Have a request sent, taken, committed and answered, as far as those live whom it needs."""
        for _ in range(3):
            self.send(leader)
            for broker in BROKERS:
                self.topic.copy(broker)

    def hurry(self, leader: PartitionLeader) -> None:
        """Have a request sent and taken, and its answer taken if it comes without any copy."""
        for _ in range(3):
            self.send(leader)

    def prune(self) -> None:
        """Advance the time so far that the states are at rest and the logs are pruned."""
        for node in list(self.topic.nodes.values()):
            node.loop.advance(LONG_MS)

    def lose(self, leader: Caller, *, is_late: bool = False) -> None:
        """Close the connection: the answer is lost. A request that was not taken is lost too, or taken later."""
        flight, leader.flight = leader.flight, None
        if flight is not None:
            if is_late and flight.outcomes is None:
                leader.late.append(flight.batch)
            leader.persister.take_failure(flight.batch, "no answer", self.now_ms)

    def arrive(self) -> None:
        """Have the coordinator take the late requests."""
        for caller in (self.group, *self.leaders):
            late, caller.late = caller.late, []
            for batch in late:
                if batch.node_id in self.topic.nodes:
                    take(self.topic.nodes[batch.node_id], batch)

    def step(self, what: str, number: int) -> None:
        """Take one step of a random order."""
        leader = self.leaders[-1 if number % 3 else -2 :][0]
        steps: dict[str, Callable[[], object]] = {
            "write": lambda: leader.write(number),
            "send": lambda: self.send(leader),
            "serve": lambda: self.serve(leader),
            "hurry": lambda: self.hurry(leader),
            "lose": lambda: self.lose(leader),
            "delay": lambda: self.lose(leader, is_late=True),
            "arrive": self.arrive,
            "create": self.group.create,
            "send creation": lambda: self.send(self.group),
            "delay creation": lambda: self.lose(self.group, is_late=True),
            "take over": lambda: self.leaders.append(PartitionLeader(self, self.leaders[-1].epoch + 1)),
            "prune": self.prune,
        }
        if what == "wait":
            self.now_ms += (100.0, 1_000.0, TIMEOUT_MS)[number % 3]
        elif what in steps:
            steps[what]()
        else:
            self.change_broker(what, BROKERS[number % len(BROKERS)])

    def change_broker(self, what: str, broker: int) -> None:
        """Take a step of one broker."""
        if what == "kill leader":
            what, broker = "kill", self.topic.leader
        changes = {
            "copy": self.topic.copy, "starve": self.topic.starve, "kill": self.topic.kill,
            "start": self.topic.start, "move": self.topic.move,
        }  # fmt: skip
        changes[what](broker)
        for leader in (self.group, *self.leaders) if what == "kill" else ():
            if leader.flight is not None and leader.flight.batch.node_id == broker:
                self.lose(leader)

    def settle(self) -> None:
        """Have everything run, and look at what the coordinator has then."""
        for broker in BROKERS:
            self.topic.start(broker)
        for _ in range(25):
            self.now_ms += 1_000.0
            for broker in BROKERS:
                self.topic.copy(broker)
            for leader in self.leaders[-2:]:
                self.send(leader)
        self.check_all()

    def check_all(self) -> None:
        """Read the states from the coordinator, and from the next one."""
        leader = self.topic.leader
        for node_id in (leader, *(one for one in BROKERS if one != leader)):
            for broker in BROKERS:
                self.topic.copy(broker)
            self.topic.move(node_id)
            share = self.topic.nodes[node_id].share
            assert share.read(QUIET) is not None
            state = share.read(KEY)
            assert state is not None
            self.check_read(content_of(state))
        assert self.faults == []


def take(node: Node, batch: CallBatch) -> dict[StateKey, Deferred[Any]]:
    """Make the calls of a request at a broker."""

    def begin(key: StateKey, asked: Any) -> Deferred[Any]:
        try:
            if not node.runtime.is_here(coordinator_key(key)):
                raise NotCoordinatorError
            answer: Deferred[Any] = CALLS[batch.api].apply(node.share, key, asked)
        except KafkaError as error:
            return deferred_error(error)
        return answer

    return {key: begin(key, call.asked) for key, call in batch.calls.items()}


OFTEN = ["write"] * 4 + ["serve"] * 4 + ["hurry", "hurry", "send", "start", "start"]
LATE = ["delay", "arrive", "create", "send creation", "send creation", "delay creation"]
KINDS = [*OFTEN, "kill leader", "kill", "copy", "starve", "move", "lose", "take over", "wait", "prune", *LATE]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 11)), min_size=20, max_size=60)


@given(STEPS)
@example([("write", 1), ("hurry", 1), ("kill leader", 0), ("take over", 0)])
@example([("write", 1), ("send", 1), ("take over", 0), ("serve", 1), ("hurry", 0)])
@example([("write", 0)] * 3 + [("hurry", 0), ("take over", 0), ("serve", 1)])
@example([step for number in range(12) for step in [("write", number), ("serve", 1)]])
@example([("write", 1), ("serve", 1), ("create", 0), ("send creation", 0), ("send creation", 0), ("take over", 0)])
@example(
    [
        *[("write", 1), ("send", 1), ("delay", 1), ("wait", 0)],
        *[step for _ in range(6) for step in [("write", 7), ("serve", 1)]],
        *[("arrive", 0), ("take over", 0)],
    ]
)
@settings(max_examples=25 * DEPTH)
def test_acknowledged_states_are_read_after_a_failover(steps: list[tuple[str, int]]) -> None:
    world = World()
    for what, number in steps:
        world.step(what, number)
    world.settle()


def test_no_record_is_pruned_before_its_replacement_is_committed() -> None:
    """Otherwise a leader that dies takes the states along that were quiet and have been written again."""
    world = World()
    for number in range(5):
        world.leaders[0].write(number)
        world.serve(world.leaders[0])
    world.step("prune", 0)
    for broker in BROKERS:
        world.topic.starve(broker)
    world.topic.kill(world.topic.leader)
    world.settle()


def test_pruning_during_an_uncommitted_change_gives_no_shard_up() -> None:
    world = World()
    node = world.topic.nodes[world.topic.leader]
    shard = node.runtime.shard(0)
    for number in range(5):
        node.share.write(KEY, StateUpdate(number, 0, 1, [Span(number, number, ACKNOWLEDGED, 1)], STATE_EPOCH))
    world.step("prune", 0)
    assert node.runtime.shard(0) is shard
    start = node.log.start
    for broker in BROKERS:
        world.topic.copy(broker)
    assert node.log.start > start, "cut off once it is committed"
    state = node.share.read(KEY)
    assert state is not None
    assert content_of(state) == (4, (Span(4, 4, ACKNOWLEDGED, 1),))
