"""Schedules of a simulation: faults and writes at given times, drawn from a seed; their run and their shrinking."""

from __future__ import annotations

import gc
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import NamedTuple

from tests.simulation.broker import NOT_IDEMPOTENT, Environment, SimulatedBroker
from tests.simulation.clock import Clock
from tests.simulation.disk import Disk
from tests.simulation.network import Network
from tests.simulation.producer import IdempotentProducer, Settled
from tests.simulation.quorum import Quorum
from tests.simulation.settings import TOPIC, TOPIC_ID, Settings
from tests.simulation.truth import Acknowledged, Truth, ViolationError
from tests.support.model_controller import MIN_ISR, UNCLEAN, ModelController
from tidelog.broker.replica.group_flush import NEVER
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.record.record_batch import BatchOptions

CHAOS_MS = 6000.0
START_MS = 1500.0
HEALING_MS = 30_000.0
MEMORY = "/dev/shm"
SWING_MS = 200
REPLACED_DISKS = 0.2
"""Share of the schedules in which a broker returns with an empty disk."""
FAILED_LOGS = 0.2
"""Share of the schedules in which a log of a broker fails."""
IDEMPOTENT = 0.5
"""Share of the schedules in which records with acks=all are sent by idempotent producers."""
PRODUCERS = 2
"""Number of idempotent producers of each partition."""
RUNS_PER_COLLECTION = 8
_RUNS = count(1)
LAGS_MS = (600.0, 3000.0, 3000.0)
"""Values of replica.lag.time.max.ms: shorter than a broker's session, or about three sessions, as by Kafka's defaults.
With the longer one a broker may end, return and be unfenced while a leader still counts its last process as in sync."""


class Action(NamedTuple):
    """Something that is done to the cluster at a time."""

    at_ms: float
    kind: str
    arguments: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.at_ms:8.1f} {self.kind}{self.arguments}"


@dataclass(frozen=True)
class Schedule:
    """Everything that determines a run: equal schedules have equal events."""

    seed: int
    settings: Settings
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.settings}", *map(str, self.actions)]
        return "\n".join(lines)


def draw(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    chance = random.Random(seed)
    settings = Settings(
        partitions=chance.choice((1, 1, 2)),
        min_isr=chance.choice((1, 2, 2, 2, 3)),
        allows_unclean=chance.random() < 0.1,
    )
    kinds = chance.sample(FAULTS, chance.randrange(1, len(FAULTS)))
    count = chance.randrange(3, 16)
    actions = [_draw_fault(chance, chance.choice(kinds)) for _ in range(count)]
    last_write_ms = START_MS + CHAOS_MS * chance.choice((0.5, 1.0))  # epochs without a record are a case of their own
    for _ in range(chance.randrange(10, 60)):
        number = chance.randrange(settings.partitions)
        acks = chance.choice((-1, -1, 1))
        actions.append(Action(chance.uniform(START_MS, last_write_ms), "produce", (number, acks)))
    settings = settings._replace(lag_ms=chance.choice(LAGS_MS), flush_messages=chance.choice((NEVER, NEVER, NEVER, 1)))
    for kind, share in (("replace_disk", REPLACED_DISKS), ("fail_log", FAILED_LOGS)):
        if chance.random() < share:
            actions.append(_draw_fault(chance, kind))
    settings = settings._replace(is_idempotent=chance.random() < IDEMPOTENT)
    return Schedule(seed, settings, tuple(sorted(actions)))


FAULTS = (
    "kill", "power", "freeze", "cut", "cut_one_way", "cut_controller", "stop", "fail_over", "lose_messages", "slow",
    "flush", "elect_preferred", "bounce", "swing",
)  # fmt: skip


def _draw_fault(chance: random.Random, kind: str) -> Action:
    at_ms = chance.uniform(START_MS, START_MS + CHAOS_MS)
    nodes = chance.sample((1, 2, 3), 2)
    duration = int(chance.expovariate(1 / 800)) + 20
    return Action(at_ms, kind, (*nodes, duration))


class Simulation:
    """One run of a schedule: the cluster, its clock and its network."""

    def __init__(self, schedule: Schedule, root: str) -> None:
        self.schedule = schedule
        self.settings = settings = schedule.settings
        self.clock = Clock()
        self.listing: list[str] = []
        chance = random.Random(schedule.seed)
        self.random = chance
        self.network = Network(self.clock, chance)
        self.controller = ModelController(session_ms=settings.session_ms, offset=-1)
        self.brokers: dict[int, SimulatedBroker] = {}
        self.truth = Truth(settings, self.controller, self.brokers, lambda: self.clock.touched.update(self.brokers))
        self.quorum = Quorum(self.clock, self.controller, self.truth.note_decision)
        environment = Environment(
            self.clock, self.network, self.quorum, settings, chance, self.brokers, self.note,
            self.truth.note_unclean_stop,
        )  # fmt: skip
        for node_id in settings.nodes:
            self.brokers[node_id] = SimulatedBroker(
                node_id, environment, Disk(f"{root}/{node_id}", self.clock, chance, settings.log_configs)
            )
        self.written = 0
        ids = count(1)
        self._producers = [
            [self._make_producer(number, ids) for _ in range(PRODUCERS)] for number in range(settings.partitions)
        ]

    def _make_producer(self, number: int, ids: Iterator[int]) -> IdempotentProducer:
        send = partial(self._send, number, -1)
        return IdempotentProducer(self.clock, ids, send, lambda: self.truth.may_have_lost(number))

    def note(self, line: str) -> None:
        """Add a line to the listing."""
        self.listing.append(f"{self.clock.now_ms:8.1f} {line}")

    # ---- the run

    def run(self) -> None:
        """Start the cluster, execute the schedule, end all faults, and check that the cluster recovers.

        Raises ViolationError.
        """
        self._start_all()
        self._run_until(lambda: len(self._live()) == self.settings.brokers, "the brokers did not start")
        self._create_topic()
        for action in self.schedule.actions:
            self.clock.after(action.at_ms - self.clock.now_ms, lambda action=action: self._act(action))  # type: ignore[misc]
        end_ms = START_MS + CHAOS_MS
        while self.clock.next_ms < end_ms:
            self._step()
        self._heal()
        self._run_until(lambda: not self.truth.explain_unserved(), "liveness without failed logs")
        self._restart_failed()
        self._run_until(lambda: not self.truth.explain_unhealed(), "liveness")
        self.truth.acknowledged_again.clear()
        self._write_until_acknowledged()
        everything = set(range(self.settings.partitions))
        self._run_until(lambda: self.truth.acknowledged_again == everything, "liveness of writes")
        producers = [producer for listed in self._producers for producer in listed]
        self._run_until(lambda: not any(producer.waiting for producer in producers), "liveness of producers")
        self.truth.check_acknowledged()

    def _write_until_acknowledged(self) -> None:
        for number in set(range(self.settings.partitions)) - self.truth.acknowledged_again:
            self._produce(number, -1)
        self.clock.after(300, self._write_until_acknowledged)

    def _step(self) -> None:
        self.clock.step()
        if self.clock.touched:
            self.truth.check(self.clock.touched)
            self.clock.touched.clear()

    def _run_until(self, condition: Callable[[], bool], what: str) -> None:
        limit_ms = self.clock.now_ms + HEALING_MS
        while not condition():
            if self.clock.now_ms > limit_ms:
                raise ViolationError(f"{what}: {self.truth.explain_unserved() or self.truth.explain_unhealed()}")
            self._step()

    def _start_all(self) -> None:
        for broker in self.brokers.values():
            broker.start()

    def _live(self) -> list[int]:
        return [node_id for node_id in self.brokers if self.controller.is_active(node_id)]

    def _create_topic(self) -> None:
        nodes = list(self.settings.nodes)
        replicas = [nodes[number:] + nodes[:number] for number in range(self.settings.partitions)]
        configs = {MIN_ISR: str(self.settings.min_isr), UNCLEAN: str(self.settings.allows_unclean).lower()}
        self.quorum.decide(lambda: self.controller.create_topic(TOPIC, TOPIC_ID, replicas, configs))

    def _heal(self) -> None:
        self.note("heal")
        self.network.cuts.clear()
        self.network.loss, self.network.slow_ms = 0.0, 2.0
        for broker in self.brokers.values():
            if not broker.is_alive:
                broker.start()
            elif broker.process.is_frozen:
                broker.process.thaw()
        self.clock.after(500, self._revive)

    def _restart_failed(self) -> None:
        """End processes with failed logs from now on; ``_revive`` starts them again."""
        for broker in self.brokers.values():
            if broker.has_failed_logs:
                broker.kill(power=False)
        self.clock.after(500, self._restart_failed)

    def _revive(self) -> None:
        """Start brokers that have ended since the faults did, every 500 ms."""
        for broker in self.brokers.values():
            if not broker.is_alive:
                broker.start()
        self.quorum.decide(self.controller.elect_uncleanly)
        self.clock.after(500, self._revive)

    # ---- actions

    def _act(self, action: Action) -> None:
        self.note(f"{action.kind}{action.arguments}")
        getattr(self, f"_{action.kind}")(*action.arguments)

    def _restart_later(self, node_id: int, delay_ms: float) -> None:
        broker = self.brokers[node_id]
        incarnation = broker.incarnation

        def restart() -> None:
            if not broker.is_alive and broker.incarnation == incarnation:
                self.note(f"broker {node_id} starts")
                broker.start()

        self.clock.after(delay_ms, restart)

    def _kill(self, node_id: int, _: int, duration: int) -> None:
        broker = self.brokers[node_id]
        if broker.is_alive:
            broker.kill(power=False)
        self._restart_later(node_id, duration)

    def _power(self, node_id: int, _: int, duration: int) -> None:
        broker = self.brokers[node_id]
        if broker.is_alive:
            broker.kill(power=self.truth.may_lose_power(node_id))
        self._restart_later(node_id, duration)

    def _bounce(self, node_id: int, _: int, duration: int) -> None:
        self._power(node_id, _, duration % 30)

    def _replace_disk(self, node_id: int, _: int, duration: int) -> None:
        broker = self.brokers[node_id]
        if self.truth.may_lose_power(node_id):
            broker.lose_disk()
        self._restart_later(node_id, duration)

    def _fail_log(self, node_id: int, other: int, _: int) -> None:
        broker = self.brokers[node_id]
        broker.process.run(lambda: broker.fail_log(other % self.settings.partitions))

    def _freeze(self, node_id: int, _: int, duration: int) -> None:
        process = self.brokers[node_id].process
        if process.is_alive and not process.is_frozen:
            process.freeze()
            self.clock.after(duration, process.thaw)

    def _stop(self, node_id: int, _: int, duration: int) -> None:
        broker = self.brokers[node_id]
        if broker.is_alive:
            broker.process.run(broker.begin_stop)
        self._restart_later(node_id, duration + 300)

    def _cut(self, source: int, target: int, duration: int) -> None:
        self._cut_ways({(source, target), (target, source)}, duration)

    def _cut_one_way(self, source: int, target: int, duration: int) -> None:
        self._cut_ways({(source, target)}, duration)

    def _cut_controller(self, node_id: int, other: int, duration: int) -> None:
        ways = ({(node_id, 0), (0, node_id)}, {(node_id, 0)}, {(0, node_id)})
        self._cut_ways(ways[other % 3], duration)

    def _cut_ways(self, ways: set[tuple[int, int]], duration: int) -> None:
        self.network.cuts |= ways
        self.clock.after(duration, lambda: self.network.cuts.difference_update(ways))

    def _lose_messages(self, *arguments: int) -> None:
        self.network.loss = 0.2
        self.clock.after(arguments[-1], lambda: setattr(self.network, "loss", 0.0))

    def _slow(self, *arguments: int) -> None:
        self.network.slow_ms = 60.0
        self.clock.after(arguments[-1], lambda: setattr(self.network, "slow_ms", 2.0))

    def _fail_over(self, *arguments: int) -> None:
        self.quorum.fail_over(arguments[-1])

    def _flush(self, node_id: int, *_: int) -> None:
        if self.brokers[node_id].is_alive:
            self.brokers[node_id].disk.flush()

    def _elect_preferred(self, *_: int) -> None:
        if self.quorum.is_active:
            for number in range(self.settings.partitions):
                self.quorum.decide(lambda number=number: self.controller.elect(TOPIC_ID, number))  # type: ignore[misc]

    def _swing(self, node_id: int, _: int, duration: int) -> None:
        """Change the first partition's leader twice, the second time while followers still apply the first change."""
        self._elect_preferred()
        self.clock.after(duration % SWING_MS, lambda: self._stop_leader(duration))

    def _stop_leader(self, duration: int) -> None:
        leader = self.controller.image.topics[TOPIC_ID].partitions[0].leader
        if leader in self.brokers:
            self._stop(leader, 0, duration)

    # ---- writes

    def _produce(self, number: int, acks: int) -> None:
        """Write a new record."""
        self.written += 1
        value = b"%d" % self.written
        if self.settings.is_idempotent and acks == -1:
            self._producers[number][self.written % PRODUCERS].write(value)
        else:
            self._send(number, acks, value, NOT_IDEMPOTENT, bool)

    def _send(self, number: int, acks: int, value: bytes, options: BatchOptions, settled: Settled) -> None:
        """Send a record to the leader that a random running broker's metadata image names."""
        asked = self.random.choice(list(self.settings.nodes))
        if not self.brokers[asked].is_alive or TOPIC_ID not in self.brokers[asked].image.topics:
            return
        leader = self.brokers[asked].image.topics[TOPIC_ID].partitions[number].leader
        if leader not in self.brokers:
            return
        broker = self.brokers[leader]

        def take(answer: int | KafkaError) -> None:
            if acks != 1 and isinstance(answer, int):
                self.truth.acknowledge(Acknowledged(number, answer, value), leader)
            settled(answer)

        broker.process.run(lambda: broker.produce(number, value, acks, take, options))


def collect_garbage() -> None:
    """Collect garbage after every RUNS_PER_COLLECTION runs.

    Tasks of ended processes are in reference cycles, which keep files of indices open.
    """
    if next(_RUNS) % RUNS_PER_COLLECTION == 0:
        gc.collect()


def run(schedule: Schedule) -> Simulation:
    """Run a schedule, whose events are then in ``listing``. Raises ViolationError, with the listing as its note."""
    root = tempfile.mkdtemp(dir=MEMORY, prefix="tidelog-simulation-")
    try:
        simulation = Simulation(schedule, root)
        try:
            simulation.run()
        except ViolationError as violation:
            violation.add_note("\n".join(simulation.listing))
            raise
        finally:
            for broker in simulation.brokers.values():
                broker.end_with_the_simulation()
        return simulation
    finally:
        shutil.rmtree(root)
        collect_garbage()


def violation_of(schedule: Schedule) -> ViolationError | None:
    """Return the violation that a schedule causes, None if all invariants hold."""
    try:
        run(schedule)
    except ViolationError as violation:
        return violation
    return None


def shrink(schedule: Schedule, is_failing: Callable[[Schedule], bool] | None = None) -> Schedule:
    """Remove actions from a failing schedule, as long as it still fails."""
    fails = is_failing or (lambda tried: violation_of(tried) is not None)
    actions = list(schedule.actions)
    size = max(len(actions) // 2, 1)
    while size:
        start = 0
        while start < len(actions):
            tried = replace(schedule, actions=tuple(actions[:start] + actions[start + size :]))
            if fails(tried):
                actions = list(tried.actions)
            else:
                start += size
        size //= 2
    return replace(schedule, actions=tuple(actions))


def explain(schedule: Schedule) -> str:
    """Describe the violation that a schedule causes, with its shrunk schedule and events; empty if there is none."""
    violation = violation_of(schedule)
    if violation is None:
        return ""
    name = str(violation).partition(":")[0]
    shrunk = shrink(schedule, lambda tried: str(violation_of(tried)).startswith(name))
    final = violation_of(shrunk) or violation
    return f"{final}\n{shrunk}\n" + "\n".join(final.__notes__)
