"""Share groups as their members see them: requests to the handlers, real logs, a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.stand_in import StandIn
from tests.support.topics import delete_topic
from tests.unit.broker.data_broker import batch
from tests.unit.broker.share.share_world import ShareMember, ShareWorld, offsets, partitions, read_fetched, runs
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.group.share.group import ShareGroup
from tidelog.broker.coordinator.share_state.coordinator import ShareCoordinator
from tidelog.broker.coordinator.share_state.state import StateKey, StateUpdate
from tidelog.broker.coordinator.transaction.markers import BrokerMarkerWriter
from tidelog.broker.loop.deferred import Deferred, error_of
from tidelog.broker.metadata.image import SHARE_GROUP_STATE_TOPIC
from tidelog.broker.share.share_partition import AcknowledgementBatch
from tidelog.protocol.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    FencedStateEpochError,
    GroupIdNotFoundError,
    InvalidRecordStateError,
    InvalidRequestError,
    InvalidShareSessionEpochError,
    KafkaError,
    KafkaStorageError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
    UnknownServerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.share_fetch import ForgottenTopic, ShareFetchResponse
from tidelog.protocol.record.record_batch import BatchOptions

ACCEPT, RELEASE, REJECT, RENEW = [1], [2], [3], [4]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ShareWorld]:
    made = ShareWorld(tmp_path)
    made.configure("g")
    made.topic("t", 10, 10, 10)
    yield made
    made.close()


# -- acquiring and acknowledging ------------------------------------------------------------------------------------


def test_a_member_acquires_existing_records(world: ShareWorld) -> None:
    response = world.member().fetch()
    assert runs(response) == [(0, 29, 1)]
    assert offsets(response) == list(range(30))
    assert response.acquisition_lock_timeout_ms == 30_000


def test_a_group_without_a_start_offset_begins_at_the_end(world: ShareWorld) -> None:
    member = world.member("late")
    assert member.acquired() == []
    world.append("t", b"new")
    assert member.acquired() == [(30, 30, 1)]


def test_a_group_may_begin_at_a_time_in_the_past(world: ShareWorld) -> None:
    world.configure("ago", share_auto_offset_reset="by_duration:P1D")
    world.time.advance(3_600_000)
    assert world.member("ago").acquired() == [(0, 29, 1)]
    world.configure("just-now", share_auto_offset_reset="by_duration:PT1S")
    assert world.member("just-now").acquired() == []


def test_a_time_before_1970_is_the_start_of_the_log(world: ShareWorld) -> None:
    one_before_ms = int(world.time.milliseconds()) + 1  # -1, which ListOffsets reads as the end
    world.configure("older", share_auto_offset_reset=f"by_duration:PT{one_before_ms / 1000:.3f}S")
    assert world.member("older").acquired() == [(0, 29, 1)]


def test_only_the_batches_with_acquired_records_are_sent(world: ShareWorld) -> None:
    member = world.member()
    assert offsets(member.fetch(max_records=5)) == list(range(10))
    response = member.fetch((0, 9, RELEASE), max_records=5, topics=member.topics((0, 9, RELEASE)))
    assert (runs(response), offsets(response)) == ([(0, 9, 2)], list(range(10)))


def test_accepted_records_do_not_come_again(world: ShareWorld) -> None:
    member = world.member()
    member.fetch(max_records=10)
    answer = member.acknowledge((0, 9, ACCEPT))
    assert answer.responses[0].partitions[0].error_code == 0
    assert member.acquired((0, 0, ACCEPT)) == [(10, 29, 1)]  # what lies below the start offset means nothing


def test_acknowledgements_may_be_sent_with_a_fetch(world: ShareWorld) -> None:
    member = world.member()
    member.fetch(max_records=10)
    response = member.fetch((0, 4, ACCEPT), (40, 41, ACCEPT), max_records=1)
    (data,) = partitions(response)
    assert data.acknowledge_error_code == InvalidRequestError.code
    assert runs(response) == [(10, 19, 1)]


def test_another_members_records_are_not_acknowledged(world: ShareWorld) -> None:
    first, other = world.member(), world.member(member_id="n")
    first.fetch(max_records=10)
    assert other.acquired() == [(10, 29, 1)]
    assert other.acknowledge((0, 9, ACCEPT)).responses[0].partitions[0].error_code == InvalidRecordStateError.code


def test_an_expired_lock_wakes_waiting_fetches(world: ShareWorld) -> None:
    world.member().fetch()
    waiting = waiting_fetch(world.member(member_id="n"))
    world.advance(29_900)
    assert not waiting.done
    world.advance(100)
    assert runs(read_fetched(waiting.result())) == [(0, 29, 2)]


def test_a_renewed_lock_holds_longer(world: ShareWorld) -> None:
    world.configure("g", share_record_lock_duration_ms="15000")
    member, other = world.member(), world.member(member_id="n")
    member.fetch(max_records=10)
    world.advance(10_000)
    nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    response = member.fetch((0, 9, RENEW), is_renew_ack=True, **nothing)
    assert (runs(response), partitions(response)[0].acknowledge_error_code) == ([], 0)
    world.advance(10_000)
    assert other.acquired(max_records=1) == [(10, 19, 1)]
    world.advance(5_000)
    assert other.acquired(max_records=1) == [(0, 9, 2)]


def test_a_busy_broker_honours_no_lock_that_has_run_out(world: ShareWorld) -> None:
    """The clock is what counts: the timer that gives records back may run late."""
    holder, other = world.member(), world.member(member_id="n")
    holder.fetch(max_records=10)
    other.fetch(max_records=10)
    world.time.advance(29_999)
    assert holder.acknowledge((0, 4, ACCEPT)).responses[0].partitions[0].error_code == 0
    world.time.advance(1)
    for types in (ACCEPT, RELEASE, REJECT):
        answer = holder.acknowledge((5, 9, types))
        assert answer.responses[0].partitions[0].error_code == InvalidRecordStateError.code
    assert other.acquired(max_records=1) == [(5, 9, 2)]


def test_a_busy_broker_renews_no_lock_that_has_run_out(world: ShareWorld) -> None:
    holder = world.member()
    holder.fetch(max_records=10)
    world.time.advance(30_000)
    answer = holder.acknowledge((0, 9, RENEW), is_renew_ack=True)
    assert answer.responses[0].partitions[0].error_code == InvalidRecordStateError.code
    assert world.member(member_id="n").acquired(max_records=1) == [(0, 9, 2)]


def test_a_busy_broker_gives_records_away_whose_lock_has_run_out(world: ShareWorld) -> None:
    world.member().fetch()
    other = world.member(member_id="n")
    world.time.advance(29_999)
    assert other.acquired() == []
    world.time.advance(1)
    assert other.acquired() == [(0, 29, 2)]


def test_a_member_that_got_its_record_again_may_acknowledge_it(world: ShareWorld) -> None:
    """Acknowledgements do not tell which delivery they are of: a late one counts for the next delivery, as in Kafka."""
    member = world.member()
    member.fetch(max_records=10)
    world.advance(30_000)
    assert member.acquired(max_records=1) == [(0, 9, 2)]
    assert member.acknowledge((0, 9, ACCEPT)).responses[0].partitions[0].error_code == 0
    assert member.acknowledge((0, 9, ACCEPT)).responses[0].partitions[0].error_code == 0  # below the start offset


def test_locks_that_were_made_shorter_run_out_sooner(world: ShareWorld) -> None:
    world.member().fetch(max_records=10)
    world.configure("g", share_record_lock_duration_ms="15000")
    world.member(member_id="n").fetch(max_records=10)
    world.advance(15_000)
    assert world.member(member_id="o").acquired(max_records=1) == [(10, 19, 2)]


def test_a_request_that_renews_fetches_nothing(world: ShareWorld) -> None:
    member = world.member()
    member.fetch(max_records=10)
    assert member.fetch((0, 9, RENEW), is_renew_ack=True).error_code == InvalidRequestError.code


def test_types_must_fit_the_request(world: ShareWorld) -> None:
    member = world.member()
    member.fetch(max_records=10)
    for bad in ((5, 4, ACCEPT), (0, 4, []), (0, 4, [1, 1]), (0, 4, [5]), (0, 4, RENEW)):
        assert member.acknowledge(bad).responses[0].partitions[0].error_code == InvalidRequestError.code
    two = member.acknowledge((5, 9, ACCEPT), (3, 4, ACCEPT)).responses[0].partitions[0]
    assert two.error_code == InvalidRequestError.code


# -- waiting --------------------------------------------------------------------------------------------------------


def waiting_fetch(member: ShareMember, **fields: int) -> Deferred[ShareFetchResponse]:
    answer = member.ask(**{"max_wait_ms": 60_000, **fields})
    assert isinstance(answer, Deferred)
    return answer


def test_a_fetch_waits_for_records(world: ShareWorld) -> None:
    member = world.member()
    member.fetch()
    waiting = waiting_fetch(member)
    world.append("t", b"new")
    world.loop.run_soon()
    assert runs(read_fetched(waiting.result())) == [(30, 30, 1)]


def test_a_fetch_waits_for_enough_bytes_or_its_time(world: ShareWorld) -> None:
    member = world.member()
    waiting = waiting_fetch(member, min_bytes=100_000, max_wait_ms=500)
    world.append("t", b"new")
    world.loop.run_soon()
    assert not waiting.done
    world.advance(500)
    assert runs(read_fetched(waiting.result())) == [(0, 30, 1)]


def test_a_fetch_that_waits_holds_nothing(world: ShareWorld) -> None:
    first = world.member()
    waiting = waiting_fetch(first, min_bytes=100_000)
    assert world.member(member_id="n").acquired() == [(0, 29, 1)]
    waiting.abandon()
    assert len(world.purgatory) == 0


def test_a_released_record_wakes_waiting_fetches(world: ShareWorld) -> None:
    first = world.member()
    first.fetch()
    waiting = waiting_fetch(world.member(member_id="n"))
    first.acknowledge((3, 4, RELEASE))
    world.loop.run_soon()
    assert runs(read_fetched(waiting.result())) == [(3, 4, 2)]


def test_a_deleted_topic_answers_waiting_fetches(world: ShareWorld) -> None:
    member = world.member()
    member.fetch()
    waiting = waiting_fetch(member)
    topic_id = delete_topic(world, "t").topic_id
    world.coordinators.topic_deleted("t", topic_id)
    world.loop.run_soon()
    (data,) = partitions(read_fetched(waiting.result()))
    assert data.error_code in (UnknownTopicIdError.code, UnknownTopicOrPartitionError.code)


def read_each(world: ShareWorld, *topics: str) -> dict[str, StateKey]:
    """Let a member of its own fetch from each topic; return the keys of the states."""
    keys = {}
    for name in topics:
        member, image = world.member(member_id=name, topic=name), world.broker.metadata.find(name)
        assert image is not None
        member.topic_id = image.topic_id
        member.fetch()
        keys[name] = StateKey("g", image.topic_id, 0)
    return keys


def test_a_deleted_topic_takes_the_states_of_its_virtual_topics_along(world: ShareWorld) -> None:
    """They stayed in memory and in ``__share_group_state``; no request could name them."""
    world.topic("u", 1)
    keys = read_each(world, "t?key=v1", "t...key.v2", "t", "u", "u?key=v0")
    groups, share = world.coordinators.share_groups, world.coordinators.share
    assert all(groups.find(key) and share.read(key) for key in keys.values())
    world.coordinators.topic_deleted("t", delete_topic(world, "t").topic_id)
    world.loop.run_soon()
    assert {name for name, key in keys.items() if groups.find(key)} == {"u", "u?key=v0"}
    check_states(world, keys, {"u", "u?key=v0"})


def test_states_of_virtual_topics_go_at_the_start_after_an_unfinished_deletion(world: ShareWorld) -> None:
    world.topic("u", 1)
    keys = read_each(world, "t?key=v1", "t", "u?key=v0")
    deleted = delete_topic(world, "t")
    world.broker.controller.deletions[deleted.topic_id] = "t"  # type: ignore[index]
    again = world.restarted()
    check_states(again, keys, {"u?key=v0"})
    again.close()


def check_states(world: ShareWorld, keys: dict[str, StateKey], left: set[str]) -> None:
    """Check the topics of which states are left, in the store and in the group's list."""
    assert {name for name, key in keys.items() if world.coordinators.share.read(key)} == left
    group = world.coordinators.groups.runtime.shard_for("g").groups["g"]
    assert isinstance(group, ShareGroup)
    assert set(group.topics_with_states().values()) == left


# -- sessions -------------------------------------------------------------------------------------------------------


def test_a_session_sends_only_news(world: ShareWorld) -> None:
    member = world.member()
    assert len(partitions(member.fetch())) == 1
    assert partitions(member.fetch(topics=[])) == []
    assert (
        partitions(member.fetch(topics=member.topics(partition=7)))[0].error_code == UnknownTopicOrPartitionError.code
    )
    assert partitions(member.fetch(topics=[]))[0].error_code == UnknownTopicOrPartitionError.code
    gone = [ForgottenTopic(topic_id=member.topic_id, partitions=[0, 7])]
    world.append("t", b"new")
    assert partitions(member.fetch(topics=[], forgotten_topics_data=gone)) == []


def test_an_unknown_topic_has_its_own_error(world: ShareWorld) -> None:
    member = world.member()
    member.topic_id = b"\x09" * 16
    assert partitions(member.fetch())[0].error_code == UnknownTopicIdError.code
    assert member.acknowledge((0, 0, ACCEPT)).responses[0].partitions[0].error_code == UnknownTopicIdError.code


def test_epochs_of_sessions_are_checked(world: ShareWorld) -> None:
    member = world.member()
    assert member.fetch(share_session_epoch=3).error_code == ShareSessionNotFoundError.code
    assert member.fetch(share_session_epoch=-1).error_code == ShareSessionNotFoundError.code
    assert member.acknowledge(share_session_epoch=0).error_code == InvalidShareSessionEpochError.code
    assert member.fetch((0, 0, ACCEPT), share_session_epoch=0).error_code == InvalidRequestError.code
    assert member.fetch(share_session_epoch=0).error_code == 0
    assert member.fetch(share_session_epoch=9).error_code == InvalidShareSessionEpochError.code
    assert member.fetch(member_id="x" * 37).error_code == InvalidRequestError.code
    assert member.fetch(group_id=None).error_code == InvalidRequestError.code


def test_the_final_request_releases_the_records_of_the_member(world: ShareWorld) -> None:
    member, other = world.member(), world.member(member_id="n")
    member.fetch()
    response = member.fetch((0, 9, ACCEPT), share_session_epoch=-1)
    assert partitions(response)[0].acknowledge_error_code == 0
    assert other.acquired() == [(10, 29, 2)]
    assert other.acknowledge((10, 19, REJECT), share_session_epoch=-1).error_code == 0
    assert other.acknowledge(share_session_epoch=-1).error_code == ShareSessionNotFoundError.code
    assert world.member(member_id="o").acquired() == [(20, 29, 3)]


def test_a_closed_connection_releases_the_records_of_its_members(world: ShareWorld) -> None:
    member = world.member()
    member.fetch()
    assert member.context.on_close is not None
    member.context.on_close()
    assert world.member(member_id="n").acquired() == [(0, 29, 2)]


def test_a_member_that_leaves_releases_its_records(world: ShareWorld) -> None:
    member, other = world.member(), world.member(member_id="n")
    member.fetch()
    member.leave()
    assert other.acquired() == [(0, 29, 2)]


def test_a_member_above_the_limit_of_sessions_waits_and_is_refused(tmp_path: Path) -> None:
    world = ShareWorld(tmp_path, {"group.share.max.share.sessions": "1"})
    world.topic("t")
    world.member().fetch()
    waiting = world.member(member_id="n").ask(max_wait_ms=500)
    assert isinstance(waiting, Deferred)
    world.advance(500)
    with pytest.raises(ShareSessionLimitReachedError):
        waiting.result()
    world.close()


# -- partitions, logs and transactions -----------------------------------------------------------------------------


def test_partitions_take_turns(world: ShareWorld) -> None:
    world.topic("two", 5, partitions=2)
    world.append("two", *(b"x" for _ in range(5)), partition=1)
    member = world.member(topic="two")
    both = [*member.topics(), *member.topics(partition=1)]
    first = member.fetch(topics=both, max_records=5)
    assert [data.partition_index for data in partitions(first) if data.records] == [0]
    second = member.fetch(topics=[], max_records=5)
    assert [data.partition_index for data in partitions(second)] == [1]


def test_the_start_offset_moves_with_the_log_start_offset(world: ShareWorld) -> None:
    member = world.member()
    member.fetch(max_records=5)
    log = world.replica_manager.partition("t", 0).local_log
    log.maybe_increment_log_start_offset(20)
    assert member.acquired() == [(20, 29, 1)]


def test_a_partition_that_fails_has_its_own_error(world: ShareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    member = world.member()
    partition = world.replica_manager.partition("t", 0)

    def fail(*_arguments: object, **_options: object) -> None:
        raise KafkaStorageError("the disk is gone")

    monkeypatch.setattr(partition, "_cursor", StandIn(partition, read=fail))
    assert partitions(member.fetch())[0].error_code == KafkaStorageError.code


@pytest.mark.parametrize(("committed", "expected"), [(False, [(0, 6, 1)]), (True, [(0, 0, 1), (3, 6, 1)])])
def test_records_of_aborted_transactions_are_left_out(
    tmp_path: Path, committed: bool, expected: list[tuple[int, int, int]]
) -> None:
    world = ShareWorld(tmp_path)
    world.configure("g", share_isolation_level="read_committed" if committed else "read_uncommitted")
    world.topic("t", 1)
    found = world.replica_manager.partition("t", 0)
    options = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    found.append_records(memoryview(batch(b"a", b"b", options=options)))
    BrokerMarkerWriter(world.broker, coordinators_of(world.broker)).write(("t", 0), (7, 0), commit=False)
    world.append("t", b"x", b"y", b"z")
    assert world.member().acquired() == expected
    world.close()


# -- restarts -------------------------------------------------------------------------------------------------------


def test_a_restart_keeps_acknowledgements(world: ShareWorld) -> None:
    member = world.member()
    member.fetch()
    member.acknowledge((0, 4, ACCEPT), (10, 12, ACCEPT), (13, 14, REJECT), (15, 19, RELEASE))
    again = world.restarted()
    other = again.member(member_id="n")
    assert other.acquired() == [(5, 9, 1), (15, 19, 2), (20, 29, 1)]
    again.close()


def test_members_are_remembered_and_expire(world: ShareWorld) -> None:
    world.member()
    again = world.restarted()
    group = again.coordinators.groups.runtime.shard_for("g").groups["g"]
    assert list(group.members) == ["m"]
    again.advance(45_000)
    assert group.is_empty
    again.close()


def test_a_start_that_was_never_stored_is_chosen_again(world: ShareWorld) -> None:
    late = world.member("late")
    assert late.acquired() == []
    world.append("t", b"new")
    again = world.restarted()
    assert again.member("late").acquired() == []
    again.close()


def test_acknowledgements_that_cannot_be_stored_change_nothing(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = world.member()
    member.fetch()
    log = world.replica_manager.partition(SHARE_GROUP_STATE_TOPIC, 0)

    def fail(*_arguments: object, **_options: object) -> None:
        raise KafkaStorageError("the disk is full")

    with monkeypatch.context() as failing:
        failing.setattr(type(log), "append_records", fail)
        assert member.acknowledge((0, 9, ACCEPT)).responses[0].partitions[0].error_code == KafkaStorageError.code
    assert member.acknowledge((0, 9, ACCEPT)).responses[0].partitions[0].error_code == 0


def test_released_records_are_available_although_the_release_cannot_be_stored(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, other = world.member(), world.member(member_id="n")
    member.fetch()
    log = world.replica_manager.partition(SHARE_GROUP_STATE_TOPIC, 0)

    def fail(*_arguments: object, **_options: object) -> None:
        raise KafkaStorageError("the disk is full")

    with monkeypatch.context() as failing:
        failing.setattr(type(log), "append_records", fail)
        assert member.fetch(share_session_epoch=-1).error_code == 0
    assert other.acquired() == [(0, 29, 2)]


def test_a_group_without_a_member_has_no_state(world: ShareWorld) -> None:
    stranger = ShareMember(world, "nobody", "t", "m")
    assert partitions(stranger.fetch())[0].error_code == UnknownServerError.code


@pytest.mark.parametrize(
    ("error", "answered"),
    [
        (CoordinatorLoadInProgressError, NotLeaderOrFollowerError),
        (CoordinatorNotAvailableError, NotLeaderOrFollowerError),
        (NotCoordinatorError, NotLeaderOrFollowerError),
        (NotLeaderOrFollowerError, NotLeaderOrFollowerError),
        (FencedLeaderEpochError, NotLeaderOrFollowerError),
        (FencedStateEpochError, NotLeaderOrFollowerError),
        (UnknownTopicOrPartitionError, UnknownTopicOrPartitionError),
        (InvalidRequestError, UnknownServerError),
        (GroupIdNotFoundError, UnknownServerError),
        (KafkaStorageError, UnknownServerError),
        (UnknownServerError, UnknownServerError),
    ],
)
def test_a_state_that_cannot_be_read_is_asked_for_again(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch, error: type[KafkaError], answered: type[KafkaError]
) -> None:
    """Share consumers take no error of a coordinator in a fetch: ``poll`` raises IllegalStateException."""
    member = world.member()

    def failing(*_: object) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(world.coordinators.share, "read", failing)
        assert partitions(member.fetch())[0].error_code == answered.code
    assert member.acquired() == [(0, 29, 1)]


# -- a store on other brokers ----------------------------------------------------------------------------------------


class FailingStore:
    """The store of the world, whose writes fail later with an error, as those of another broker do."""

    def __init__(self, store: ShareCoordinator, error: KafkaError) -> None:
        self._store = store
        self._error = error
        self.under_way: list[Deferred[None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, key: object, written: object) -> Deferred[None]:
        self.under_way.append(Deferred())
        return self.under_way[-1]

    def refuse(self) -> None:
        for written in self.under_way:
            written.fail(self._error)


@pytest.mark.parametrize("error", [FencedLeaderEpochError, FencedStateEpochError, CoordinatorNotAvailableError])
@pytest.mark.parametrize("is_gone", [False, True], ids=["waits", "went away"])
def test_a_state_whose_change_was_not_stored_is_read_again(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch, error: type[KafkaError], is_gone: bool
) -> None:
    """A change that the store refused must not count here either, whether or not its client waits for the answer."""
    groups, member = world.coordinators.share_groups, world.member()
    member.fetch(max_records=10)
    store = FailingStore(world.coordinators.share, error())
    key = StateKey("g", world.broker.metadata.topics["t"].topic_id, 0)
    with monkeypatch.context() as failing:
        failing.setattr(groups, "_store", lambda: store)
        answer = groups.acknowledge(key, "m", [AcknowledgementBatch(0, 9, ACCEPT)])
        if is_gone:
            answer.abandon()
        store.refuse()
        assert is_gone or isinstance(error_of(answer), error)
    assert world.member(member_id="n").acquired(max_records=1) == [(0, 9, 1)]


def test_a_leader_of_another_epoch_reads_the_state_again(world: ShareWorld) -> None:
    """The state in memory is of the epoch in which it was read: another leader may have written since."""
    member = world.member()
    member.fetch(max_records=10)
    key = StateKey("g", world.broker.metadata.topics["t"].topic_id, 0)
    world.coordinators.share.write(key, StateUpdate(20, 0, -1, ()))
    replica = world.replica_manager.partition("t", 0)
    replica.leader_epoch += 1
    assert member.acknowledge((0, 9, ACCEPT)).responses[0].partitions[0].error_code == UnknownTopicOrPartitionError.code
    assert member.acquired() == [(20, 29, 1)]
