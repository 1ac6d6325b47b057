"""Fetches of a follower: what its leader learns from them, and fetches of many partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.leaders import EPOCH
from tests.support.replicated import LAG_MS, LED, VERSION, ReplicatedBroker, contents_of
from tests.support.slices import content_of
from tests.support.topics import create_topic
from tidelog.broker.handlers import replica_fetch
from tidelog.broker.handlers.fetch import handle
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.metrics.rates import Window
from tidelog.broker.replica.replication.quotas import LEADER, ReplicationQuota
from tidelog.broker.replica.replication.resting import READ_ALL_MS
from tidelog.protocol.errors import FencedLeaderEpochError, UnknownTopicIdError
from tidelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)

MANY = 40


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ReplicatedBroker]:
    node = ReplicatedBroker(tmp_path)
    yield node
    node.close()


def state_of(node: ReplicatedBroker, replica: int) -> tuple[float, int]:
    """Return the time of a follower's last fetch, and the leader's log end at that time."""
    assert node.partition.leading is not None
    follower = node.partition.leading.leader_state._followers[replica]
    return follower.fetched_ms, follower.leader_end_at_fetch


@pytest.mark.parametrize("by_append", [True, False])
def test_only_the_arrival_of_a_fetch_shows_that_its_follower_lives(node: ReplicatedBroker, by_append: bool) -> None:
    """Only the request itself says that the follower lives: it may have died while the leader held the answer."""
    node.append("t", b"a")
    waiting = node.ask(2, 1, wait_ms=500)
    assert isinstance(waiting, Deferred)
    before = state_of(node, 2)
    node.loop.advance(400)
    if by_append:
        node.append("t", b"b")
        node.loop.run_soon()
    else:
        node.loop.advance(200)
    assert contents_of(waiting.result())[0] == 0
    assert state_of(node, 2) == before


class ThrottledAnswer:
    """A broker whose follower 3 is outside of the ISR, with a limit of 100 bytes a second for the replicas of ``t``."""

    def __init__(self, directory: Path, replicas: str) -> None:
        self.limit = 100.0
        self.quota = ReplicationQuota(LEADER, 1, Window(11, 1000), lambda: self.limit)
        configs = {"leader.replication.throttled.replicas": replicas}
        self.node = ReplicatedBroker(directory, configs, self.quota)
        self.node.append("t", b"a" * 200)
        for replica in (2, 3):
            self.node.fetch(replica, 1)  # it is committed, so a follower that lacks it cannot join the ISR
        self.node.partition.take_over(LED._replace(isr=(1, 2), partition_epoch=8))

    def get(self, replica: int) -> bool:
        """Ask as a follower that has nothing; return whether it got records."""
        return bool(self.node.fetch(replica, 0)[3])


@pytest.fixture
def throttled(tmp_path: Path) -> Iterator[ThrottledAnswer]:
    made = ThrottledAnswer(tmp_path, "0:1")
    yield made
    made.node.close()


def test_a_follower_outside_of_the_isr_gets_no_more_than_the_limit(throttled: ThrottledAnswer) -> None:
    assert throttled.get(3)
    assert not throttled.get(3)
    throttled.node.loop.advance(10_000)
    assert throttled.get(3)
    throttled.limit = 2.0**63
    assert throttled.get(3)


def test_a_member_of_the_isr_is_never_throttled(throttled: ThrottledAnswer) -> None:
    """Otherwise it would leave the ISR, and produce requests with acks=all would wait for it until then."""
    assert all(throttled.get(2) for _ in range(3))
    assert not throttled.get(3), "what it was sent counts"


def test_a_follower_that_was_proposed_for_the_isr_is_not_throttled(throttled: ThrottledAnswer) -> None:
    """Produce requests with acks=all already wait for it, until the controller has answered."""
    assert throttled.get(3)
    assert throttled.node.fetch(3, 1)[3] == b"", "it has all"
    leading = throttled.node.partition.leading
    assert leading is not None
    assert 3 in leading.leader_state.maximal_isr
    throttled.node.append("t", b"b")
    assert all(throttled.node.fetch(3, 1)[3] for _ in range(3))
    assert 3 not in leading.leader_state.isr


def test_replicas_that_no_topic_names_are_not_throttled(tmp_path: Path) -> None:
    made = ThrottledAnswer(tmp_path, "1:1,0:2")
    assert all(made.get(3) for _ in range(3))
    assert made.quota.byte_rate(made.node.time.monotonic_ms()) == 0
    made.node.close()


def test_a_throttled_fetch_waits_and_still_shows_that_its_follower_lives(throttled: ThrottledAnswer) -> None:
    assert throttled.get(3)
    throttled.node.loop.advance(1)
    waiting = throttled.node.ask(3, 0, wait_ms=500)
    assert isinstance(waiting, Deferred)
    assert state_of(throttled.node, 3)[0] == throttled.node.time.monotonic_ms()
    throttled.node.append("t", b"b")
    throttled.node.loop.run_soon()
    assert not waiting.done
    throttled.node.loop.advance(600)
    assert contents_of(waiting.result())[3] == b""


class Wide:
    """A topic of many partitions, all led here; counts what is read of each."""

    def __init__(self, node: ReplicatedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.topic = create_topic(node, "wide", MANY)
        for index in range(MANY):
            node.replica_manager.partition("wide", index).take_over(LED)
        self.reads: Counter[int] = Counter()
        read = replica_fetch.read_partition

        def counted(partition: object, target: object, *arguments: object, **options: object) -> object:
            self.reads[target.index] += 1  # type: ignore[attr-defined]
            return read(partition, target, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(replica_fetch, "read_partition", counted)

    def ask(self, session: tuple[int, int], *, wait_ms: int = 500) -> Iterator[object]:
        """Return the steps of a fetch; a full one names all partitions."""
        asked = [
            FetchPartition(partition=index, fetch_offset=0, current_leader_epoch=5, partition_max_bytes=1 << 20)
            for index in range(MANY)
        ]
        topics = [FetchTopic(topic_id=self.topic.topic_id, partitions=asked)] if not session[1] else []
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=2, replica_epoch=EPOCH + 2), max_wait_ms=wait_ms, min_bytes=1,
            max_bytes=1 << 20, session_id=session[0], session_epoch=session[1], topics=topics,
        )  # fmt: skip
        steps = handle(self.node.broker, self.node.context(VERSION), request)
        assert isinstance(steps, Iterator)
        return steps

    def finish(self, steps: Iterator[object], between: Callable[[int], None] = lambda _: None) -> object:
        """Do all steps; each reads one partition at most."""
        number = 0
        while True:
            before = self.reads.total()
            try:
                next(steps)
            except StopIteration as stop:
                return stop.value
            assert self.reads.total() - before <= 1
            between(number)
            number += 1

    def begin(self) -> int:
        """Open a session with all partitions; returns its id."""
        answer = self.finish(self.ask((0, 0)))
        assert isinstance(answer, FetchResponse)
        assert len(answer.responses[0].partitions) == MANY
        self.reads.clear()
        return answer.session_id


@pytest.fixture
def wide(node: ReplicatedBroker, monkeypatch: pytest.MonkeyPatch) -> Wide:
    return Wide(node, monkeypatch)


def test_many_partitions_are_read_in_steps_and_an_append_reads_only_its_own(wide: Wide) -> None:
    number = wide.begin()
    waiting = wide.finish(wide.ask((number, 1)))
    assert isinstance(waiting, Deferred)
    assert set(wide.reads) == set(range(MANY)), "each fetch shows for each partition that the follower lives"
    wide.reads.clear()
    wide.node.append("wide", b"a", partition=7)
    wide.node.loop.run_soon()
    (answered,) = waiting.result().responses[0].partitions
    assert (answered.partition_index, len(answered.records) > 0) == (7, True)
    assert wide.reads == Counter([7])


def test_an_append_between_two_steps_is_not_missed(wide: Wide) -> None:
    number = wide.begin()

    def append(step: int) -> None:
        if wide.reads.total() == MANY // 2 and not appended:
            appended.append(step)
            wide.node.append("wide", b"a", partition=0)

    appended: list[int] = []
    answer = wide.finish(wide.ask((number, 1)), append)
    assert len(appended) == 1
    assert isinstance(answer, Deferred)
    assert answer.done, "it does not wait for the next record"
    assert [one.partition_index for one in answer.result().responses[0].partitions] == [0]


def test_a_topic_deleted_before_the_fetch_waits_is_an_error_of_its_partitions(wide: Wide) -> None:
    """An error of the whole request would make the follower begin another session with all partitions."""
    number, broker = wide.begin(), wide.node.broker

    def delete(_: int) -> None:
        if wide.reads.total() == MANY and "wide" in broker.metadata.topics:
            broker.metadata.remove("wide")
            broker.replica_manager.remove_logs(wide.topic)

    answer = wide.finish(wide.ask((number, 1)), delete)
    assert isinstance(answer, Deferred)
    assert answer.done
    (topic,) = answer.result().responses
    assert {one.error_code for one in topic.partitions} == {UnknownTopicIdError.code}


def test_a_fetch_whose_wait_ends_reads_no_partition_again(wide: Wide) -> None:
    number = wide.begin()
    waiting = wide.finish(wide.ask((number, 1)))
    assert isinstance(waiting, Deferred)
    wide.reads.clear()
    wide.node.replica_manager.partition("wide", 3).move_log_start(0)
    wide.node.loop.advance(600)
    assert waiting.result().responses == []
    assert not wide.reads


class Quiet:
    """A wide topic whose follower 2 has all records and offsets: its next fetch waits in a session at rest."""

    def __init__(self, wide: Wide) -> None:
        self.wide, self.node = wide, wide.node
        self.session = wide.begin()
        self.epoch = 1
        for replica in (2, 3):
            for index in range(MANY):
                leading = self.node.replica_manager.partition("wide", index).leading
                assert leading is not None
                leading.note_fetch((replica, EPOCH + replica), 0, 0, 0)
        self.wait()
        wide.reads.clear()

    def wait(self) -> None:
        """Send a fetch that waits until its timeout."""
        waiting = self.ask()
        assert isinstance(waiting, Deferred)
        self.node.loop.advance(600)
        assert waiting.result().responses == []

    def ask(self, *, offsets: dict[int, int] | None = None, forgotten: Sequence[int] = ()) -> object:
        """Send the next fetch of the session, which names the partitions that have other offsets."""
        asked = [
            FetchPartition(partition=index, fetch_offset=offset, current_leader_epoch=5, partition_max_bytes=1 << 20)
            for index, offset in (offsets or {}).items()
        ]
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=2, replica_epoch=EPOCH + 2), max_wait_ms=500, min_bytes=1,
            max_bytes=1 << 20, session_id=self.session, session_epoch=self.epoch,
            topics=[FetchTopic(topic_id=self.wide.topic.topic_id, partitions=asked)] if asked else [],
            forgotten_topics_data=[ForgottenTopic(topic_id=self.wide.topic.topic_id, partitions=list(forgotten))]
            if forgotten else [],
        )  # fmt: skip
        self.epoch += 1
        answer = handle(self.node.broker, self.node.context(VERSION), request)
        return self.wide.finish(answer) if isinstance(answer, Iterator) else answer

    def told_of(self, waiting: object) -> list[tuple[int, int, int]]:
        """Return partition, error and number of bytes of the partitions in an answer that is there now."""
        self.node.loop.run_soon()
        answer = waiting.result() if isinstance(waiting, Deferred) else waiting
        assert isinstance(answer, FetchResponse)
        found = [one for topic in answer.responses for one in topic.partitions]
        return [(one.partition_index, one.error_code, len(content_of(one.records))) for one in found]


@pytest.fixture
def quiet(wide: Wide) -> Quiet:
    return Quiet(wide)


def test_partitions_at_rest_are_not_read(quiet: Quiet) -> None:
    for _ in range(3):
        quiet.wait()
    assert not quiet.wide.reads


def test_an_append_wakes_its_partition_alone(quiet: Quiet) -> None:
    waiting = quiet.ask()
    quiet.node.append("wide", b"a", partition=7)
    ((index, error, size),) = quiet.told_of(waiting)
    assert (index, error, size > 0) == (7, 0, True)
    assert quiet.wide.reads == Counter([7])
    assert isinstance(quiet.ask(offsets={7: 1}), Deferred)
    assert set(quiet.wide.reads) == {7}, "the others rest all the time"


def test_records_between_two_fetches_are_in_the_next_one(quiet: Quiet) -> None:
    quiet.node.append("wide", b"a", partition=7)
    assert [one[0] for one in quiet.told_of(quiet.ask())] == [7]


def test_a_follower_at_rest_for_longer_than_the_maximum_lag_stays_in_the_isr(quiet: Quiet) -> None:
    for _ in range(int(2 * LAG_MS / 600)):
        quiet.wait()
    partition = quiet.node.replica_manager.partition("wide", 7)
    leading = partition.leading
    assert leading is not None
    quiet.node.append("wide", b"a", partition=7)
    follower, now = leading.leader_state.follower(2), quiet.node.time.monotonic_ms()
    assert follower is not None
    assert follower.is_caught_up(1, now, LAG_MS)
    assert not follower.is_caught_up(1, now + LAG_MS + 1, LAG_MS), "the wait counts as a fetch, and not for longer"


def test_a_waiting_fetch_gets_the_end_of_leadership(quiet: Quiet) -> None:
    waiting = quiet.ask()
    partition = quiet.node.replica_manager.partition("wide", 7)
    partition.take_over(LED._replace(leader=3, leader_epoch=6, partition_epoch=8))
    ((index, error, _),) = quiet.told_of(waiting)
    assert (index, error) == (7, FencedLeaderEpochError.code)


def test_partitions_of_a_follower_outside_the_isr_are_not_at_rest(quiet: Quiet) -> None:
    """It may join again at any fetch."""
    partition = quiet.node.replica_manager.partition("wide", 7)
    partition.take_over(LED._replace(isr=(1, 3), partition_epoch=8))
    quiet.ask()
    assert quiet.wide.reads == Counter([7])
    assert partition.leading is not None
    assert 2 in partition.leading.leader_state.maximal_isr, "it was proposed for the ISR"


def test_a_follower_removed_from_the_isr_while_at_rest_does_not_hold_the_high_watermark(quiet: Quiet) -> None:
    """Its log directory may have failed: then it fetches other partitions, and never this one again."""
    partition = quiet.node.replica_manager.partition("wide", 7)
    partition.take_over(LED._replace(isr=(1, 3), partition_epoch=8))
    leading = partition.leading
    assert leading is not None
    assert leading.propose() is None
    quiet.node.append("wide", b"a", partition=7)
    leading.note_fetch((3, EPOCH + 3), 1, 0, 1)
    assert partition.high_watermark == 1


def test_a_waiting_fetch_gets_a_new_log_start_offset(quiet: Quiet) -> None:
    quiet.node.append("wide", b"a", partition=7)
    quiet.told_of(quiet.ask())
    quiet.node.replica_manager.partition("wide", 7).leading.note_fetch((3, EPOCH + 3), 1, 0, 1)  # type: ignore[union-attr]
    waiting = quiet.ask(offsets={7: 1})
    quiet.node.loop.advance(600)
    assert [one[0] for one in quiet.told_of(waiting)] == [7], "the high watermark"
    quiet.wait()
    quiet.wide.reads.clear()
    waiting = quiet.ask()
    quiet.node.replica_manager.partition("wide", 7).move_log_start(1)
    assert quiet.told_of(waiting) == [(7, 0, 0)]
    assert quiet.wide.reads == Counter([7])


def test_a_new_log_start_offset_is_found_after_a_while_without_a_notification(quiet: Quiet) -> None:
    quiet.node.replica_manager.partition("wide", 7).local_log.log_start_offset = -5  # a value that no fetch has got
    for _ in range(int(READ_ALL_MS / 600)):
        answer = quiet.ask()
        quiet.node.loop.advance(600)
        if found := quiet.told_of(answer):
            assert found == [(7, 0, 0)]
            return
    pytest.fail("no response had the new log start offset")


def test_a_partition_forgotten_while_at_rest_is_left_out_of_responses(quiet: Quiet) -> None:
    waiting = quiet.ask(forgotten=[7])
    quiet.node.append("wide", b"a", partition=7)
    quiet.node.loop.advance(600)
    assert quiet.told_of(waiting) == []
