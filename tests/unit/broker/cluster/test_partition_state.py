"""A leader's core: high watermark, ISR and proposals, by tables and by seeded schedules beside a controller."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from tests.support.leaders import EPOCH, LAG_MS, LEADER, NODES, brokers, led, state
from tidelog.broker.cluster.alter_partition import RETRY_MS, AlterPartitions, PartitionKey
from tidelog.broker.cluster.follower_state import NEVER, FollowerState
from tidelog.broker.cluster.partition_state import (
    OVERTAKEN,
    REFUSED,
    IsrAnswer,
    IsrMember,
    IsrProposal,
    LeaderState,
)
from tidelog.broker.metadata.metadata_image import BrokerRegistration, PartitionState
from tidelog.protocol import errors
from tidelog.protocol.messages.alter_partition import (
    RECOVERED,
    RECOVERING,
    AlterPartitionResponse,
    PartitionDataResponse,
    TopicDataResponse,
)

SEEDS = 300
START = 10
"""Log end and start of the leader epoch in the tables below."""


def fetch(leader: LeaderState, replica: int, offset: int, now_ms: float = 0.0, log_start: int = 0) -> bool:
    """Note a fetch of the registered process of a broker."""
    return leader.note_fetch(replica, EPOCH + replica, offset, log_start, leader.log_end_offset, now_ms)


# ---- high watermark


def test_the_high_watermark_is_the_least_end_of_the_isr() -> None:
    leader = led()
    assert not leader.note_append(20, 0.0)
    assert not fetch(leader, 2, 15)
    assert fetch(leader, 3, 12)
    assert leader.high_watermark == 12
    assert fetch(leader, 3, 20)
    assert leader.high_watermark == 15
    assert not fetch(leader, 2, 11), "a follower that goes back takes nothing back"
    assert leader.high_watermark == 15


def test_records_without_their_sync_are_not_committed() -> None:
    leader = led()
    leader.note_append(20, 0.0, committed_end=12)
    fetch(leader, 2, 20)
    fetch(leader, 3, 20)
    assert leader.high_watermark == 12
    assert leader.note_append(20, 0.0, committed_end=20)
    assert leader.high_watermark == 20


@pytest.mark.parametrize(("min_isr", "isr", "moves"), [(1, (1,), True), (2, (1,), False), (5, (1, 2), False)])
def test_nothing_is_committed_under_min_isr(min_isr: int, isr: tuple[int, ...], moves: bool) -> None:
    leader = led(isr=isr, min_isr=min_isr)
    leader.note_append(20, 0.0)
    fetch(leader, 2, 20, 5.0)
    fetch(leader, 3, 20, 5.0)
    assert (leader.high_watermark == 20) is moves
    assert leader.is_under_min_isr is not moves


def test_min_isr_is_at_most_the_number_of_replicas() -> None:
    leader = led(min_isr=7)
    assert leader.effective_min_isr == 3
    assert not leader.is_under_min_isr
    leader = led(isr=(1, 2), min_isr=3)
    leader.note_append(11, 0.0)
    fetch(leader, 2, 11)
    assert not leader.take_min_isr(3, 0.0)
    assert leader.take_min_isr(2, 0.0)
    assert leader.high_watermark == 11


def test_a_follower_that_is_about_to_join_holds_the_high_watermark() -> None:
    leader = led(isr=(1, 2))
    fetch(leader, 3, START, 5.0)
    leader.note_append(20, 6.0)
    assert not fetch(leader, 2, 20, 7.0)
    assert leader.high_watermark == START
    assert leader.note_append(20, 6.0 + LAG_MS), "it is not caught up any more"


def test_a_fenced_follower_outside_the_isr_holds_nothing() -> None:
    leader = led(isr=(1, 2), fenced={3})
    fetch(leader, 3, START, 5.0)
    leader.note_append(20, 6.0)
    assert fetch(leader, 2, 20, 7.0)


def test_a_leader_is_settled_when_the_high_watermark_reaches_the_start_of_its_epoch() -> None:
    leader = led(high_watermark=4)
    assert leader.is_settling
    fetch(leader, 2, START)
    fetch(leader, 3, START)
    assert not leader.is_settling


def test_the_low_watermark_leaves_out_fenced_followers() -> None:
    leader = led(fenced={3})
    assert leader.low_watermark(5) == -1
    fetch(leader, 2, START, log_start=4)
    assert leader.low_watermark(5) == 4
    assert leader.low_watermark(3) == 3


# ---- fetches


def test_fetches_of_foreign_and_earlier_processes_are_refused() -> None:
    leader = led()
    with pytest.raises(errors.NotLeaderOrFollowerError):
        fetch(leader, 9, START)
    with pytest.raises(errors.NotLeaderOrFollowerError):
        leader.note_fetch(2, EPOCH + 1, START, 0, START, 0.0)
    leader.note_fetch(2, EPOCH + 50, START, 0, START, 0.0)
    with pytest.raises(errors.NotLeaderOrFollowerError):
        fetch(leader, 2, START)


def test_caught_up_is_judged_by_this_fetch_and_the_one_before() -> None:
    follower = FollowerState(NEVER)
    follower.note_fetch(5, 100, 0, 200, 1000.0)
    assert follower.caught_up_ms == NEVER
    follower.note_fetch(5, 200, 0, 300, 2000.0)
    assert follower.caught_up_ms == 1000.0, "it has what there was at the last fetch"
    follower.note_fetch(5, 300, 0, 300, 3000.0)
    assert follower.caught_up_ms == 3000.0
    assert follower.is_caught_up(300, 1e9, LAG_MS)
    assert follower.is_caught_up(400, 3000.0 + LAG_MS, LAG_MS)
    assert not follower.is_caught_up(400, 3001.0 + LAG_MS, LAG_MS)


# ---- the ISR


def test_members_that_lag_are_proposed_to_leave_and_count_until_it_is_committed() -> None:
    leader = led(high_watermark=START)
    leader.note_append(20, 0.0)
    fetch(leader, 2, 20, LAG_MS)
    assert leader.propose(LAG_MS) is None, "at the limit it is not over it"
    late = LAG_MS + 1
    proposal = leader.propose(late)
    assert proposal == IsrProposal(3, 7, (IsrMember(1, EPOCH + 1), IsrMember(2, EPOCH + 2)))
    assert leader.propose(late) is None
    assert leader.maximal_isr == {1, 2, 3}
    assert leader.high_watermark == START
    assert leader.take_answer(proposal, IsrAnswer(0, LEADER, 3, 8, (1, 2)), late)
    assert leader.high_watermark == 20
    assert (leader.partition_epoch, leader.shrinks_total) == (8, 1)


def test_a_follower_joins_at_the_high_watermark_and_counts_at_once() -> None:
    leader = led(isr=(1, 2))
    fetch(leader, 3, START - 1)
    assert leader.propose(0.0) is None
    fetch(leader, 3, START)
    assert leader.can_join(3)
    proposal = leader.propose(0.0)
    assert proposal is not None
    assert proposal.ids == (1, 2, 3)
    assert list(leader.isr) == [1, 2]
    assert leader.maximal_isr == {1, 2, 3}
    leader.take_answer(proposal, IsrAnswer(0, LEADER, 3, 8, (1, 2, 3)), 0.0)
    assert list(leader.isr) == [1, 2, 3]
    assert leader.expands_total == 1


def test_a_follower_that_fell_silent_does_not_join_before_it_fetches_again() -> None:
    """Else the ISR would grow and shrink with each check, and never be whole."""
    leader = led(min_isr=2)
    for replica in (2, 3):
        fetch(leader, replica, 10)
    leader.note_append(20, 0.0)
    silent_ms = 2 * LAG_MS
    proposal = leader.propose(silent_ms)
    assert proposal is not None
    leader.take_answer(proposal, IsrAnswer(0, LEADER, leader.leader_epoch, leader.partition_epoch + 1, (LEADER,)), 0.0)
    assert leader.isr == (LEADER,)
    assert leader.propose(silent_ms + 1) is None
    fetch(leader, 2, 10, silent_ms + 2)
    joining = leader.propose(silent_ms + 3)
    assert joining is not None
    assert joining.ids == (LEADER, 2)


def test_a_follower_that_the_controller_removed_counts_only_once_it_fetches_again() -> None:
    """Its log directory failed, for example: the broker goes on with the others, and is neither fenced nor stopping."""
    leader = led(high_watermark=START)
    for replica in (2, 3):
        fetch(leader, replica, START, 100.0)
    leader.take_image(state(isr=(1, 3), partition_epoch=8), brokers(), 200.0)
    assert leader.propose(300.0) is None, "it does not join by a fetch from before"
    leader.note_append(20, 300.0)
    assert fetch(leader, 3, 20, 300.0), "it does not hold the high watermark"
    fetch(leader, 2, 20, 400.0)
    joining = leader.propose(500.0)
    assert joining is not None
    assert joining.ids == (1, 3, 2)


def test_a_follower_joins_only_from_the_start_of_the_epoch_on() -> None:
    leader = led(isr=(1, 2), high_watermark=4)
    fetch(leader, 3, 6)
    assert not leader.can_join(3)


@pytest.mark.parametrize("members", [brokers(fenced={3}), brokers(stopping={3}), brokers(absent={3})])
def test_brokers_that_are_not_there_do_not_join(members: dict[int, BrokerRegistration]) -> None:
    leader = led(isr=(1, 2))
    leader.take_image(state(isr=(1, 2)), members, 0.0)
    fetch(leader, 3, START)
    assert leader.propose(0.0) is None
    leader.take_image(state(isr=(1, 2)), brokers(), 0.0)
    assert leader.propose(0.0) is not None


def test_an_earlier_process_does_not_join() -> None:
    """Its fetch came before the image had the new registration (KIP-903)."""
    leader = led(isr=(1, 2))
    fetch(leader, 3, START)
    leader.take_image(state(isr=(1, 2)), brokers(epochs={3: EPOCH + 99}), 0.0)
    assert not leader.can_join(3)


@pytest.mark.parametrize("code", sorted(REFUSED))
def test_a_refused_proposal_is_forgotten(code: int) -> None:
    leader = led(isr=(1, 2))
    fetch(leader, 3, START)
    proposal = leader.propose(0.0)
    assert proposal is not None
    leader.take_answer(proposal, IsrAnswer(code), 0.0)
    assert leader.maximal_isr == {1, 2}
    assert leader.propose(0.0) == proposal


@pytest.mark.parametrize("code", sorted(OVERTAKEN))
def test_a_proposal_with_an_outdated_answer_stays_until_an_image_decides(code: int) -> None:
    leader = led(isr=(1, 2))
    fetch(leader, 3, START)
    proposal = leader.propose(0.0)
    assert proposal is not None
    leader.take_answer(proposal, IsrAnswer(code), 0.0)
    assert leader.maximal_isr == {1, 2, 3}
    leader.take_image(state(isr=(1, 2), partition_epoch=7), brokers(), 0.0)
    assert leader.maximal_isr == {1, 2, 3}, "that image is the one the proposal was made from"
    leader.take_image(state(isr=(1,), partition_epoch=8), brokers(), 0.0)
    assert leader.maximal_isr == {1}
    leader.take_answer(proposal, IsrAnswer(0, LEADER, 3, 9, (1, 2, 3)), 0.0)
    assert leader.isr == (1,), "an answer to a proposal that is not pending is nothing"


def test_after_an_unclean_election_it_says_recovered_alone() -> None:
    leader = led(isr=(1,), is_recovering=True)
    fetch(leader, 2, START)
    proposal = leader.propose(0.0)
    assert proposal is not None
    assert proposal.ids == (1,)
    leader.take_answer(proposal, IsrAnswer(0, LEADER, 3, 8, (1,)), 0.0)
    following = leader.propose(0.0)
    assert following is not None
    assert following.ids == (1, 2)


def test_an_image_changes_the_replicas() -> None:
    leader = led()
    leader.take_image(state(replicas=(1, 2, 4), isr=(1, 2), partition_epoch=8), brokers(), 0.0)
    assert leader.follower(3) is None
    assert leader.follower(4) is not None
    fetch(leader, 4, START)
    assert leader.can_join(4)


# ---- the request

KEY, OTHER = PartitionKey(b"t" * 16, 0), PartitionKey(b"t" * 16, 4)
JOINED = IsrProposal(3, 7, (IsrMember(1, EPOCH + 1), IsrMember(2, EPOCH + 2)))


def answer_to(*partitions: tuple[int, int], error: int = 0) -> AlterPartitionResponse:
    """Build an answer with (partition, error code) pairs."""
    answers = [
        PartitionDataResponse(partition_index=index, error_code=code, leader_id=1, leader_epoch=3, isr=[1, 2],
                        leader_recovery_state=RECOVERING, partition_epoch=8)
        for index, code in partitions
    ]  # fmt: skip
    return AlterPartitionResponse(error_code=error, topics=[TopicDataResponse(topic_id=b"t" * 16, partitions=answers)])


def test_all_proposals_go_in_one_request() -> None:
    proposals = AlterPartitions(LEADER)
    assert proposals.next_request(50, 0.0) is None
    proposals.submit(KEY, JOINED)
    proposals.submit(OTHER, JOINED)
    request = proposals.next_request(50, 0.0)
    assert request is not None
    (topic,) = request.topics
    assert (request.broker_id, request.broker_epoch, len(topic.partitions)) == (LEADER, 50, 2)
    first = topic.partitions[0]
    assert [(one.broker_id, one.broker_epoch) for one in first.new_isr_with_epochs] == [(1, 101), (2, 102)]
    assert (first.leader_epoch, first.partition_epoch, first.leader_recovery_state) == (3, 7, RECOVERED)
    assert request.encode(3)
    proposals.submit(KEY, JOINED)
    assert proposals.wake_ms is None
    assert proposals.next_request(50, 0.0) is None, "one is in flight"


def test_proposals_without_a_decision_are_sent_again_after_a_pause() -> None:
    proposals = AlterPartitions(LEADER)
    for key in (KEY, OTHER):
        proposals.submit(key, JOINED)
    proposals.next_request(50, 0.0)
    answered = proposals.take_answer(answer_to((0, 0), (4, errors.NotControllerError.code)), 10.0)
    assert [one.key for one in answered] == [KEY]
    assert answered[0].answer == IsrAnswer(0, 1, 3, 8, (1, 2), True)
    assert proposals.wake_ms == 10.0 + RETRY_MS
    assert proposals.next_request(50, 10.0) is None
    again = proposals.next_request(50, 10.0 + RETRY_MS)
    assert again is not None
    assert [one.partition_index for one in again.topics[0].partitions] == [4]
    proposals.take_failure(100.0)
    newer = JOINED._replace(partition_epoch=9)
    proposals.submit(OTHER, newer)
    again = proposals.next_request(50, 200.0)
    assert again is not None
    assert again.topics[0].partitions[0].partition_epoch == 9
    assert proposals.take_answer(answer_to((4, 0), error=errors.StaleBrokerEpochError.code), 300.0) == []
    assert proposals.wake_ms == 300.0 + RETRY_MS


# ---- schedules


class Controller:
    """The active controller's rules for one partition; its images and answers reach the leader later or never."""

    def __init__(self, members: dict[int, BrokerRegistration]) -> None:
        self.state = state()
        self.brokers = members

    def alter(self, proposal: IsrProposal) -> IsrAnswer:
        assert proposal.leader_epoch == self.state.leader_epoch
        if proposal.partition_epoch != self.state.partition_epoch:
            return IsrAnswer(errors.InvalidUpdateVersionError.code)
        for member in proposal.isr:
            broker = self.brokers[member.broker_id]
            if broker.is_fenced or member.broker_epoch not in (-1, broker.broker_epoch):
                return IsrAnswer(errors.IneligibleReplicaError.code)
        self._change(proposal.ids)
        return IsrAnswer(0, LEADER, 3, self.state.partition_epoch, self.state.isr)

    def fence(self, replica: int) -> None:
        broker = self.brokers[replica]
        self.brokers = {**self.brokers, replica: broker._replace(is_fenced=not broker.is_fenced)}
        if replica in self.state.isr:
            self._change(tuple(one for one in self.state.isr if one != replica))

    def _change(self, isr: tuple[int, ...]) -> None:
        self.state = self.state._replace(isr=isr, partition_epoch=self.state.partition_epoch + 1)


class Image(NamedTuple):
    """Partition and brokers at one moment."""

    state: PartitionState
    brokers: dict[int, BrokerRegistration]


class Schedule:
    """A leader, its followers' log ends, and messages under way; each step checks the invariants."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.controller = Controller(brokers())
        self.images = [Image(self.controller.state, self.controller.brokers)]
        self.leader = led(min_isr=self.random.choice((1, 2)))
        self.ends = dict.fromkeys(NODES[1:], START)
        self.now_ms = 0.0
        self.flying: IsrProposal | None = None
        self.answer: IsrAnswer | None = None

    def step(self) -> None:
        before = self.leader.high_watermark
        self.now_ms += self.random.choice((0, 1, 100, LAG_MS))
        self.random.choice((self.append, self.fetch, self.fetch, self.propose, self.decide, self.answered,
                            self.fence, self.publish))()  # fmt: skip
        leader, committed = self.leader, self.controller.state.isr
        assert set(committed) <= leader.maximal_isr
        assert leader.high_watermark >= before
        if leader.high_watermark > before:
            assert all(self.ends[replica] >= leader.high_watermark for replica in committed if replica != LEADER)

    def append(self) -> None:
        self.leader.note_append(self.leader.log_end_offset + self.random.randint(1, 5), self.now_ms)

    def fetch(self) -> None:
        replica = self.random.choice(list(self.ends))
        self.ends[replica] = self.random.randint(self.ends[replica], self.leader.log_end_offset)
        fetch(self.leader, replica, self.ends[replica], self.now_ms)

    def propose(self) -> None:
        if self.flying is None:
            self.flying = self.leader.propose(self.now_ms)

    def decide(self) -> None:
        if self.flying is not None and self.answer is None:
            self.answer = self.controller.alter(self.flying)
            self.images.append(Image(self.controller.state, self.controller.brokers))

    def answered(self) -> None:
        if self.flying is not None and self.answer is not None:
            self.leader.take_answer(self.flying, self.answer, self.now_ms)
            self.flying = self.answer = None

    def fence(self) -> None:
        self.controller.fence(self.random.choice(NODES[1:]))
        self.images.append(Image(self.controller.state, self.controller.brokers))

    def publish(self) -> None:
        if self.images:
            image = self.images.pop(0)
            self.leader.take_image(image.state, image.brokers, self.now_ms)


def test_no_schedule_commits_records_that_an_in_sync_replica_lacks() -> None:
    for seed in range(SEEDS):
        schedule = Schedule(seed)
        for _ in range(100):
            schedule.step()
