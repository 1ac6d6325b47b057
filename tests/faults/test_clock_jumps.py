"""Jumps of the wall clock (fault F11 of docs/internals/faults.md): after any jump the state machines decide as with a
correct clock.

Each test runs two worlds through the same random steps. The wall clock of one is wrong now and then, by seconds to
three days, forward and backward, and is set right within the hour. Durations must come out equal in both. What expires
by stored timestamps may expire later in the wrong world, never earlier, and not later once the clock is right for good.
What the broker itself stamps while its clock is behind counts as that old, as in Apache Kafka.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from tests.support.coordinators import GroupWorld, MemoryTopicLog, TransactionWorld
from tests.support.logs import append, batch, producer_batch
from tests.unit.broker.coordinator.group.consumer.test_heartbeat import beat, join
from tests.unit.broker.coordinator.group.test_offset_commits import commit, fetch_all
from tidelog.broker.coordinator.transaction.state import ONGOING
from tidelog.cleaner.cleaner_manager import LogCleanerManager
from tidelog.log.config import LogConfig
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.retention_clock import BELIEVED_AFTER_MS, RetentionClock
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaError

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
SEEDS = range(8)
#: Clients' clocks are right: a broker that is behind must not take their records for ones from the future.
ANY_TIME = {"message.timestamp.after.max.ms": 2**63 - 1}
ROOT = Path(__file__).resolve().parents[2]


class WrongClock:
    """A clock whose wall time is wrong at times: ahead for less than an hour, or behind for any time."""

    def __init__(self, random: Random, *, is_never_behind: bool = False) -> None:
        self.time = ManualTime()
        self._random = random
        self._is_never_behind = is_never_behind
        self._error_ms = 0
        self._wrong_for_ms = self._right_for_ms = 0.0

    def draw(self, next_step_ms: float) -> None:
        """Change the error, or not, before time moves on by ``next_step_ms``."""
        draw = self._random.random()
        is_ahead = self._error_ms > 0
        if is_ahead and self._wrong_for_ms + next_step_ms > BELIEVED_AFTER_MS - 10 * MINUTE_MS:
            self._set(0)
        elif not is_ahead and draw < 0.2 and not self._is_never_behind:
            self._set(-self._random.choice((1000, HOUR_MS, DAY_MS, 3 * DAY_MS)))
        elif not is_ahead and draw < 0.3:
            self._set(0)
        elif draw < 0.6 and (is_ahead or self._right_for_ms > 2 * HOUR_MS):
            self._set(self._random.choice((1000, HOUR_MS, DAY_MS, 3 * DAY_MS)))
        if self._error_ms > 0:
            self._wrong_for_ms += next_step_ms
        else:
            self._wrong_for_ms = 0.0
            self._right_for_ms += next_step_ms

    def _set(self, error_ms: int) -> None:
        if error_ms > 0:
            self._right_for_ms = 0.0
        self.time.jump_wall(error_ms - self._error_ms)
        self._error_ms = error_ms

    def set_right(self) -> None:
        self._set(0)


def step_ms(random: Random) -> float:
    """Draw a step: mostly seconds, sometimes long enough for expiry."""
    return random.choice((500.0, 3000.0, 7000.0, 20_000.0, 5 * MINUTE_MS, 20 * MINUTE_MS))


class Answers:
    """Results of calls as text, so that two worlds can be compared: a value, or the name of an error."""

    @staticmethod
    def of(call: object) -> str:
        assert callable(call)
        try:
            return repr(call())
        except KafkaError as error:
            return type(error).__name__


# ---- groups


def _classic_step(world: GroupWorld, random: Random, known: list[str]) -> str:
    draw = random.random()
    if draw < 0.3 or not known:
        timeout = random.choice((6000, 10_000, 30_000))
        member_id, joined = world.join_twice(session_timeout_ms=timeout, rebalance_timeout_ms=20_000)
        known.append(member_id)
        return f"{joined.done}"
    member_id = random.choice(known)
    if draw < 0.6:
        return repr(world.join(member_id).done)
    generation = getattr(world.group(), "generation_id", 0)
    return repr(world.sync(member_id, generation, dict.fromkeys(known, b"x")).done)


def _consumer_step(world: GroupWorld, random: Random, known: list[str]) -> str:
    draw = random.random()
    if draw < 0.3 or not known:
        known.append(f"m{len(known)}")
        return repr(join(world, known[-1]))
    member_id = random.choice(known)
    members = getattr(world.group(), "members", {})
    epoch = members[member_id].current.epoch if member_id in members else 0
    return repr(beat(world, member_id, -1 if draw < 0.4 else epoch, owned={}))


def _members(world: GroupWorld) -> object:
    group = world.group()
    if group is None:
        return None
    return type(group).__name__, sorted(group.members), getattr(group, "generation_id", None), str(group.state)


@pytest.mark.parametrize("kind", ["classic", "consumer"])
@pytest.mark.parametrize("seed", SEEDS)
def test_groups_time_out_and_assign_as_with_a_correct_clock(kind: str, seed: int) -> None:
    take_step = _classic_step if kind == "classic" else _consumer_step
    wrong = WrongClock(Random(seed))
    worlds = [GroupWorld(MemoryTopicLog(1), time) for time in (ManualTime(), wrong.time)]
    randoms, known = [Random(seed) for _ in worlds], [list[str](), list[str]()]
    steps = Random(seed)
    for number in range(120):
        passes = step_ms(steps)
        wrong.draw(passes)
        for world in worlds:
            world.advance(passes)
        states = [_members(world) for world in worlds]
        assert states[0] == states[1], f"step {number}"
        answers = [
            Answers.of(lambda w=w, r=r, k=k: take_step(w, r, k)) for w, r, k in zip(worlds, randoms, known, strict=True)
        ]
        assert answers[0] == answers[1], f"step {number}"


@pytest.mark.parametrize("seed", SEEDS)
def test_committed_offsets_expire_no_earlier_and_in_the_end(seed: int) -> None:
    wrong, steps = WrongClock(Random(seed), is_never_behind=True), Random(seed)
    times = [ManualTime(), wrong.time]
    worlds = [GroupWorld(MemoryTopicLog(1), time, offsets_retention_minutes=600) for time in times]
    for number in range(200):
        passes = step_ms(steps)
        wrong.draw(passes)
        name = steps.choice(["t", "u", "v"]) if steps.random() < 0.1 else None
        for world in worlds:
            world.advance(passes)
            if name is not None:
                commit(world, number, name=name)
        right, jumped = (fetch_all(world) for world in worlds)
        assert right.items() <= jumped.items(), f"step {number}: expired early"
    wrong.set_right()
    for world in worlds:
        world.advance(4 * DAY_MS)
    assert [fetch_all(world) for world in worlds] == [{}, {}]


# ---- transactions


def _transaction_step(world: TransactionWorld, random: Random) -> str:
    transaction = world.coordinator.find("x")
    producer = (-1, -1) if transaction is None else (transaction.producer_id, transaction.producer_epoch)
    draw = random.random()
    if transaction is None or draw < 0.2:
        return repr(world.init(transaction_timeout_ms=random.choice((5000, 60_000))))
    if draw < 0.7:
        world.add(producer)
        return "added"
    return repr(world.end(producer, commit=draw < 0.85))


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_time_out_as_with_a_correct_clock(seed: int) -> None:
    wrong, steps = WrongClock(Random(seed)), Random(seed)
    worlds = [TransactionWorld(MemoryTopicLog(1), time) for time in (ManualTime(), wrong.time)]
    randoms = [Random(seed), Random(seed)]
    for number in range(200):
        passes = step_ms(steps)
        wrong.draw(passes)
        for world in worlds:
            world.advance(passes)
        answers = [Answers.of(lambda w=w, r=r: _transaction_step(w, r)) for w, r in zip(worlds, randoms, strict=True)]
        assert answers[0] == answers[1], f"step {number}"
        found = [world.coordinator.find("x") for world in worlds]
        assert len({(t.state, t.producer_epoch) for t in found if t is not None}) == 1, f"step {number}"


@pytest.mark.parametrize("seed", SEEDS)
def test_transactional_ids_expire_no_earlier_and_in_the_end(seed: int) -> None:
    wrong, steps = WrongClock(Random(seed), is_never_behind=True), Random(seed)
    kept = {"transactional_id_expiration_ms": 10 * HOUR_MS}
    worlds = [TransactionWorld(MemoryTopicLog(1), time, **kept) for time in (ManualTime(), wrong.time)]
    for number in range(200):
        passes = step_ms(steps)
        wrong.draw(passes)
        used = f"id{steps.randrange(5)}" if steps.random() < 0.1 else None
        for world in worlds:
            world.advance(passes)
            if used is not None:
                world.init(transactional_id=used)
        for name in (f"id{n}" for n in range(5)):
            right, jumped = (world.coordinator.find(name) for world in worlds)
            assert right is None or jumped is not None, f"step {number}: {name} expired early"
            assert right is None or right.state is not ONGOING
    wrong.set_right()
    for world in worlds:
        world.advance(4 * DAY_MS)
        assert all(world.coordinator.find(f"id{n}") is None for n in range(5))


# ---- logs


class LogWorld:
    """Two logs, one compacted and one with retention, and the jobs on them."""

    def __init__(self, root: Path, time: ManualTime) -> None:
        self.time = time
        self.random = Random(0)
        configs = {
            "kept": LogConfig({"retention.ms": 10 * HOUR_MS, "segment.bytes": 400, **ANY_TIME}),
            "timeless": LogConfig({"segment.ms": 2 * HOUR_MS, "retention.ms": -1, **ANY_TIME}),
            "compacted": LogConfig(
                {"cleanup.policy": "compact", "min.compaction.lag.ms": 5 * HOUR_MS,
                 "max.compaction.lag.ms": 20 * HOUR_MS, "segment.bytes": 400, **ANY_TIME}
            ),
        }  # fmt: skip
        root.mkdir()
        self.manager = LogManager([str(root)], OsFileSystem(), time, configs["kept"])
        self.manager.environment.producer_id_expiration_ms = 10 * HOUR_MS
        self.manager.startup()
        self.logs = {
            name: self.manager.get_or_create_log(TopicPartition(name, 0), None, config)
            for name, config in configs.items()
        }
        self.cleaner = LogCleanerManager(lambda: [self.logs["compacted"]], OsFileSystem(), time)

    def write(self, truth_ms: int, producer_id: int, sequence: int) -> None:
        """Write one record with the time of the client's clock, which is correct, into each log."""
        data = producer_batch(sequence, producer_id=producer_id, timestamp=truth_ms)
        append(self.logs["kept"], data)
        append(self.logs["compacted"], batch(timestamp=truth_ms))
        append(self.logs["timeless"], batch(timestamp=-1))

    def run_jobs(self) -> tuple[int, int]:
        """Run retention and the cleaner's choice. Returns the log start, and where the uncleanable begins."""
        self.manager.run_retention(self.time.milliseconds())
        self.cleaner.grab_filthiest()
        limit = self.cleaner.measure(self.logs["compacted"]).first_uncleanable_offset
        for state in self.cleaner.statuses():
            if state.state.value == "in progress":
                self.cleaner.record_stop(state.topic_partition)
        return self.logs["kept"].log_start_offset, limit

    @property
    def producers(self) -> set[int]:
        return set(self.logs["kept"].producer_state.producers)


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_logs_lose_nothing_early_and_roll_as_with_a_correct_clock(tmp_path: Path, seed: int) -> None:
    wrong, steps = WrongClock(Random(seed)), Random(seed)
    right = LogWorld(tmp_path / "right", ManualTime())
    jumped = LogWorld(tmp_path / "jumped", wrong.time)
    sequences = dict.fromkeys(range(5), 0)
    for number in range(120):
        passes = step_ms(steps)
        wrong.draw(passes)
        writer = steps.randrange(5) if steps.random() < 0.5 else None
        for world in (right, jumped):
            world.time.advance(passes)
            if writer is not None:
                world.write(right.time.milliseconds(), writer, sequences[writer])
        if writer is not None:
            sequences[writer] += 1
        (start, limit), (jumped_start, jumped_limit) = right.run_jobs(), jumped.run_jobs()
        assert jumped_start <= start, f"step {number}: deleted early"
        assert jumped_limit <= limit, f"step {number}: cleaned early"
        assert right.producers == jumped.producers, f"step {number}: producers expire by the monotonic clock"
        bases = [[segment.base_offset for segment in world.logs["timeless"].segments] for world in (right, jumped)]
        assert bases[0] == bases[1], f"step {number}: a segment without timestamps rolled at another time"
    wrong.set_right()
    for world in (right, jumped):
        for _ in range(100):
            world.time.advance(HOUR_MS)
            ends = world.run_jobs()
        assert ends == (world.logs["kept"].log_end_offset, world.logs["compacted"].log_end_offset)
        assert not world.producers
        world.manager.shutdown()


def test_a_producer_with_timestamps_of_the_future_expires(tmp_path: Path) -> None:
    world = LogWorld(tmp_path / "logs", ManualTime())
    append(world.logs["kept"], producer_batch(0, timestamp=2**62))
    world.time.advance(11 * HOUR_MS)
    world.run_jobs()
    assert not world.producers
    world.manager.shutdown()


def test_each_jump_has_to_last_for_an_hour_itself() -> None:
    time = ManualTime()
    clock = RetentionClock(time)
    start = clock.now()
    time.jump_wall(DAY_MS)
    clock.now()
    time.advance(BELIEVED_AFTER_MS - 1)
    time.jump_wall(3650 * DAY_MS)
    time.advance(1)
    assert clock.now() == start + BELIEVED_AFTER_MS, "the second one is a millisecond old"
    time.advance(BELIEVED_AFTER_MS)
    assert clock.now() == time.milliseconds()


# ---- the whole code

#: What reads the wall clock, how often, and why it may. Nothing of it is a deadline, and nothing is deleted by it.
WALL_TIME = {
    "broker/admin/find.py": (1, "what a client calls now"),
    "broker/admin/login/logins.py": (1, "compared with the date at which a token ends"),
    "broker/controller/embedded.py": (3, "timestamps of the metadata log's records, snapshots, leader, aborted change"),
    "broker/coordinator/group/classic/rebalance.py": (3, "stored: when a group changed its state"),
    "broker/coordinator/group/classic/sync.py": (1, "stored: when a group changed its state"),
    "broker/coordinator/group/consumer/draft.py": (3, "stored: when a target was made; an interval that ends early"),
    "broker/coordinator/group/migration.py": (1, "stored: when a group changed its state"),
    "broker/coordinator/group/offset_commits.py": (2, "stored: when an offset was committed"),
    "broker/coordinator/group/shard.py": (1, "stored: when a group was made"),
    "broker/coordinator/group/share/heartbeat.py": (2, "stored: when a target was made"),
    "broker/coordinator/group/streams/heartbeat.py": (2, "stored: when a target was made"),
    "broker/coordinator/runtime/runtime.py": (1, "timestamps of records"),
    "broker/coordinator/share_state/state.py": (2, "stored: when a state was made and written"),
    "broker/coordinator/transaction/markers.py": (1, "timestamps of markers"),
    "broker/coordinator/transaction/shard.py": (
        8,
        "stored: of a transaction; after a restart, what is left",
    ),
    "broker/handlers/describe_quorum.py": (1, "shown"),
    "broker/handlers/list_transactions.py": (1, "compared with stored times that a client asks for"),
    "broker/laboratory/clock.py": (2, "the clock of a laboratory, moved ahead of the machine's, until the year 9999"),
    "broker/laboratory/control.py": (1, "told to a test that asks for the laboratory's clock"),
    "broker/maintenance.py": (1, "given to the clock of retention"),
    "broker/metadata/metadata_log.py": (1, "not looked at: the metadata log has retention by its start offset alone"),
    "broker/schema_registry/topic.py": (1, "timestamps of records"),
    "broker/share/share_groups.py": (1, "a start of reading by time: compared with records"),
    "cleaner/round_runner.py": (1, "shown: the end of a round"),
    "log/producer/state.py": (1, "which producers of a snapshot look old; they have an hour's grace"),
    "log/system/retention_clock.py": (1, "the clock of retention itself"),
    "log/segment/segment.py": (1, "in place of the time of a file that is gone"),
    "log/system/time.py": (1, "the clock itself"),
    "log/unified_log.py": (2, "LogAppendTime and the bounds of CreateTime"),
}


def test_every_use_of_the_wall_clock_is_known() -> None:
    """A new use has to be judged by its author: durations and deadlines belong to the monotonic clock."""
    found: dict[str, int] = {}
    for folder in ("broker", "cleaner", "log"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            uses = len(re.findall(r"\.milliseconds\(\)|time\.time\(|time_ns\(|datetime\.now", path.read_text()))
            if uses:
                found[str(path.relative_to(ROOT))] = uses
    assert found == {path: uses for path, (uses, _) in WALL_TIME.items()}
