"""Partitions at rest in random schedules: each has an event that ends its rest, and the leader has nothing to send for
it. Its follower counts as caught up, as if each fetch walked through the whole session."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.depth import DEPTH
from tests.support.leaders import EPOCH, brokers
from tests.support.replicated import LED, VERSION, ReplicatedBroker
from tests.support.slices import content_of
from tests.support.topics import create_topic, delete_topic
from tidelog.broker.cluster.fetching.session import FetchKey, LeaderSession, PartitionAsk
from tidelog.broker.cluster.follower_state import FollowerState
from tidelog.broker.handlers import fetch, replica_fetch
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.replica.fetching.fetch_session import FetchSession, FetchTarget
from tidelog.broker.replica.partition import Partition
from tidelog.protocol.errors import NONE, KafkaError
from tidelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)

TOPIC, COUNT, OTHER = "many", 4, 3
WAIT_MS = 500
SCHEDULES, ROUNDS = 3 * DEPTH, 30
OUTCOME = struct.Struct(">qi11xi")
"""Of a batch: base offset, length, last offset's delta."""


class Model:
    """A leader, and its follower 2, which behaves like Kafka's: it has a session, and a position in each partition."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.node = ReplicatedBroker(directory)
        self.broker_epoch = EPOCH + 2
        self.session = LeaderSession()
        self.positions = dict.fromkeys(range(COUNT), 0)
        self.starts = dict.fromkeys(range(COUNT), 0)
        self.epochs = dict.fromkeys(range(COUNT), LED.leader_epoch)
        self.known_marks = dict.fromkeys(range(COUNT), 0)
        self.absent: set[int] = set()
        self.waiting: Deferred[Any] | None = None
        self.steps: Iterator[Any] | None = None
        self.walked: dict[int, tuple[FollowerState, FollowerState]] = {}
        """What a leader that walks the whole session knows of the follower, by partition."""
        self.create()

    def partition(self, index: int) -> Partition:
        return self.node.replica_manager.partition(TOPIC, index)

    def any(self) -> int:
        return self.chance.randrange(COUNT)

    # ---- events of the leader

    def append(self) -> None:
        index = self.any()
        if self.partition(index).is_leader:
            self.node.append(TOPIC, b"a", partition=index)

    def hear_the_other(self) -> None:
        """Have follower 3 fetch all that there is."""
        for index in range(COUNT):
            partition = self.partition(index)
            if partition.leading is not None:
                end = partition.log_end_offset
                partition.leading.note_fetch((OTHER, EPOCH + OTHER), end, partition.log_start_offset, end)

    def delete(self) -> None:
        partition = self.partition(self.any())
        if partition.is_leader:
            partition.move_log_start(partition.high_watermark)

    def elect(self, leader: int) -> None:
        index = self.any()
        partition = self.partition(index)
        state = LED._replace(leader=leader, leader_epoch=partition.leader_epoch + 1, partition_epoch=1000)
        partition.take_over(state)

    def change_isr(self) -> None:
        index = self.any()
        partition = self.partition(index)
        if partition.leading is not None:
            state = partition.leading.leader_state
            isr = self.chance.choice([(1, 2, 3), (1, 3), (1, 2)])
            epoch = state.partition_epoch + 1
            follower = state.follower(2)
            if follower is not None and 2 in state.isr and 2 not in isr:
                self.walked_of(index, follower).forget_position()
            partition.take_over(LED._replace(isr=isr, leader_epoch=state.leader_epoch, partition_epoch=epoch))

    def reassign(self) -> None:
        """Take the follower's replica away, or give it one again, which is empty."""
        index = self.any()
        partition = self.partition(index)
        if partition.leading is None:
            return
        state = partition.leading.leader_state
        replicas, isr = ((1, 3), (1, 3)) if 2 in state.replicas else ((1, 2, 3), (1, 3))
        self.positions[index] = 0
        partition.take_over(LED._replace(
            replicas=replicas, isr=isr, leader_epoch=state.leader_epoch, partition_epoch=state.partition_epoch + 1
        ))  # fmt: skip

    def recreate(self) -> None:
        """Delete the topic, and make another of its name."""
        delete_topic(self.node, TOPIC)
        self.create()

    def create(self) -> None:
        self.topic = create_topic(self.node, TOPIC, COUNT)
        for index in range(COUNT):
            self.partition(index).take_over(LED)
            self.positions[index] = self.starts[index] = self.known_marks[index] = 0
        self.learn_epochs()

    def evict(self) -> None:
        self.node.broker.fetch_sessions.sessions.clear()

    def pass_time(self) -> None:
        self.node.loop.advance(self.chance.choice([1, 20, 400, 600]))

    # ---- events of the follower

    def forget(self) -> None:
        self.absent.add(self.any())

    def remember(self) -> None:
        self.absent.discard(self.any())

    def truncate(self) -> None:
        index = self.any()
        self.positions[index] = max(self.starts[index], self.positions[index] - 1)

    def learn_epochs(self) -> None:
        for index in range(COUNT):
            self.epochs[index] = self.partition(index).leader_epoch

    def restart(self) -> None:
        """Begin another process of the follower: with another epoch, and without its session."""
        self.lose_answer()
        self.broker_epoch += 10
        self.session = LeaderSession()
        self.node.controller.image = self.node.controller.image._replace(brokers=brokers(epochs={2: self.broker_epoch}))
        self.node.roles.take_brokers()

    def lose_answer(self) -> None:
        if self.waiting is not None and not self.waiting.done:
            self.waiting.abandon()
        self.waiting = self.steps = None
        self.session.lose()

    def ask(self) -> None:
        """Ask, if no answer is awaited."""
        if self.waiting is not None or self.steps is not None:
            return
        wanted = {
            FetchKey(self.topic.topic_id, index): PartitionAsk(
                self.epochs[index], self.positions[index], -1, self.starts[index]
            )
            for index in range(COUNT)
            if index not in self.absent
        }
        if self.session.is_full:
            turn = self.session.build_full(wanted)
        else:
            gone = {key: None for key in self.session.asked if key not in wanted}
            turn = self.session.build_incremental({**wanted, **gone})
        if turn.epoch == 0 or turn.session_id in self.node.broker.fetch_sessions.sessions:
            self.walk()
        asked = [
            FetchPartition(
                partition=key.partition, fetch_offset=ask.fetch_offset, log_start_offset=ask.log_start_offset,
                current_leader_epoch=ask.leader_epoch, partition_max_bytes=1 << 20,
            )
            for key, ask in turn.asked.items()
        ]  # fmt: skip
        forgotten: dict[bytes, list[int]] = {}
        for key in turn.forgotten:
            forgotten.setdefault(key.topic_id, []).append(key.partition)
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=2, replica_epoch=self.broker_epoch), max_wait_ms=WAIT_MS, min_bytes=1,
            max_bytes=1 << 20, session_id=turn.session_id, session_epoch=turn.epoch,
            topics=[FetchTopic(topic_id=self.topic.topic_id, partitions=asked)] if asked else [],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=indices) for topic_id, indices in forgotten.items()
            ],
        )  # fmt: skip
        try:
            self.take(fetch.handle(self.node.broker, self.node.context(VERSION), request))
        except KafkaError as error:
            self.take(fetch.error_response(request, error))

    def walk(self) -> None:
        """Note the fetch for all partitions of the session, as a leader does that passes none over."""
        for key, ask in self.session.asked.items():
            partition = self.partition(key.partition)
            follower = None if partition.leading is None else partition.leading.leader_state.follower(2)
            is_asked = key.topic_id == partition.topic_id and partition.leader_epoch == ask.leader_epoch
            end = partition.log_end_offset
            if follower is not None and is_asked and partition.log_start_offset <= ask.fetch_offset <= end:
                known = self.walked_of(key.partition, follower)
                known.note_fetch(self.broker_epoch, ask.fetch_offset, 0, end, self.node.time.monotonic_ms())

    def walked_of(self, index: int, follower: FollowerState) -> FollowerState:
        beside, known = self.walked.get(index, (None, None))
        if beside is not follower or known is None:
            known = FollowerState(follower.caught_up_ms)
            self.walked[index] = (follower, known)
        return known

    def take(self, answer: Any) -> None:
        if isinstance(answer, Deferred):
            self.waiting = answer
        elif isinstance(answer, Iterator):
            self.steps = answer
        else:
            self.apply(answer)

    def step(self) -> None:
        """Do a step of a request that is answered in steps, or take an answer that is there."""
        if self.steps is not None:
            try:
                next(self.steps)
            except StopIteration as stop:
                self.steps = None
                self.take(stop.value)
            except KafkaError:
                self.steps = None
                self.session.lose()
        elif self.waiting is not None and self.waiting.done:
            answer, self.waiting = self.waiting.result(), None
            self.apply(answer)

    def apply(self, answer: FetchResponse) -> None:
        found = [one for topic in answer.responses for one in topic.partitions]
        named = [
            FetchKey(topic.topic_id, one.partition_index) for topic in answer.responses for one in topic.partitions
        ]
        if not self.session.take_answer(answer.error_code, answer.session_id, named):
            return
        if any(topic.topic_id != self.topic.topic_id for topic in answer.responses):
            return
        for one in found:
            index, content = one.partition_index, content_of(one.records)
            if one.error_code != NONE:
                if one.error_code == 1:
                    self.positions[index] = self.starts[index] = self.partition(index).log_start_offset
                continue
            while content:
                base, length, delta = OUTCOME.unpack_from(content)
                self.positions[index], content = base + delta + 1, content[12 + length :]
            self.known_marks[index] = one.high_watermark
            self.starts[index] = max(self.starts[index], one.log_start_offset)
            self.positions[index] = max(self.starts[index], self.positions[index])

    # ---- what holds

    def resting(self) -> Iterator[tuple[FetchSession, FetchTarget]]:
        """Yield the partitions that the follower's session passes over."""
        session = self.node.broker.fetch_sessions.sessions.get(self.session._session_id)
        if session is not None and session.active is not None:
            for key, target in session.targets.items():
                if key not in session.active:
                    yield session, target

    def check(self) -> None:
        for session, target in self.resting():
            partition = self.partition(target.index)
            leading = partition.leading
            assert leading is not None
            assert leading.leader_state.leader_epoch == target.current_leader_epoch
            assert 2 in leading.leader_state.isr
            assert target.fetch_offset == partition.log_end_offset == partition.high_watermark
            assert target.sent_high_watermark == partition.high_watermark
            assert target.sent_log_start_offset == partition.log_start_offset
            rest = leading.rests._resting[2]
            assert (rest._session, rest._target) == (session, target)

    def check_caught_up(self) -> None:
        """Check that the follower counts as caught up exactly if it would with a leader that walks the whole
        session."""
        for index in range(COUNT):
            leading = self.partition(index).leading
            follower = None if leading is None else leading.leader_state.follower(2)
            if leading is None or follower is None:
                continue
            known = self.walked_of(index, follower)
            rest = leading.rests._resting.get(2)
            caught_up_ms = follower.caught_up_ms if rest is None else max(follower.caught_up_ms, rest.asked_ms)
            assert caught_up_ms == known.caught_up_ms, index

    def follow(self) -> None:
        """Ask and wait for the answer, as the other follower does."""
        self.hear_the_other()
        self.ask()
        while self.steps is not None:
            self.step()
        self.node.loop.advance(WAIT_MS + 1)
        self.node.loop.run_soon()
        self.step()

    def settle(self) -> None:
        """Let the follower continue while nothing else happens: it gets all records and offsets before everything is
        read again."""
        self.absent.clear()
        for index in range(COUNT):
            partition = self.partition(index)
            partition.take_over(LED._replace(leader_epoch=partition.leader_epoch + 1, partition_epoch=1000))
        self.learn_epochs()
        for _ in range(12):
            self.follow()
        for index in range(COUNT):
            partition = self.partition(index)
            assert self.positions[index] == partition.log_end_offset
            assert self.known_marks[index] == partition.high_watermark
            assert self.starts[index] == partition.log_start_offset

    def run(self) -> Iterator[None]:
        """Do one random event after another; the caller checks between them."""
        usual = [self.ask, self.step, self.append, self.hear_the_other, self.pass_time, self.node.loop.run_soon]
        rare = [
            self.delete, lambda: self.elect(1), lambda: self.elect(3), self.learn_epochs, self.change_isr, self.evict,
            self.forget, self.remember, self.truncate, self.restart, self.lose_answer, self.reassign, self.recreate,
        ]  # fmt: skip
        for _ in range(ROUNDS):
            for event in self.chance.choices(usual, weights=[6, 8, 1, 3, 3, 6], k=12):
                event()
                yield
            self.chance.choice(rare)()
            yield
            if self.chance.random() < 0.5:
                self.elect(LED.leader)
                self.learn_epochs()
                for _ in range(4):
                    self.follow()
                    yield


@pytest.mark.parametrize("in_steps", [False, True])
def test_partitions_at_rest_are_woken_in_any_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_steps: bool
) -> None:
    if in_steps:
        monkeypatch.setattr(replica_fetch, "MANY_TARGETS", 1)
        monkeypatch.setattr(fetch, "MANY_TARGETS", 1)
    rested = 0
    for seed in range(SCHEDULES):
        model = Model(tmp_path / str(seed), seed)
        for _ in model.run():
            rested += len(list(model.resting()))
            model.check()
            if not in_steps:  # between steps the follower is noted partition by partition
                model.check_caught_up()
        model.settle()
        model.node.close()
    assert rested > SCHEDULES * ROUNDS
