"""A led partition with followers: acknowledgements, replica fetches, deletions and offsets of clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.leaders import LAG_MS, brokers
from tests.support.replicated import LED, ReplicatedBroker, contents_of
from tests.support.stand_in import StandIn
from tests.unit.broker.data_broker import batch
from tests.unit.broker.handlers.drive import drive
from tidelog.broker.loop.deferred import Deferred, error_of
from tidelog.broker.metadata.metadata_image import NO_LEADER, PartitionState
from tidelog.protocol import errors
from tidelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.protocol.messages.fetch import FetchResponse
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

TIMEOUT_MS = 1000
FENCED = PartitionState((1, 2, 3), (2, 3), 2, 6, 8)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ReplicatedBroker]:
    node = ReplicatedBroker(tmp_path)
    yield node
    node.close()


@pytest.fixture
def careful(tmp_path: Path) -> Iterator[ReplicatedBroker]:
    """A leader with min.insync.replicas of 2."""
    node = ReplicatedBroker(tmp_path, {"min.insync.replicas": "2"})
    yield node
    node.close()


def produce(node: ReplicatedBroker, acks: int = -1) -> Deferred[ProduceResponse] | ProduceResponse:
    """Produce one record; returns the answer, or what it waits for."""
    from tidelog.broker.handlers.produce import handle

    data = PartitionProduceData(index=0, records=memoryview(batch(b"v")))
    topics = [TopicProduceData(topic_id=node.partition.topic_id, partition_data=[data])]
    answer = handle(node.broker, node.context(13), ProduceRequest(acks=acks, timeout_ms=TIMEOUT_MS, topic_data=topics))
    assert isinstance(answer, Deferred | ProduceResponse)
    return answer


def code(answer: Deferred[ProduceResponse] | ProduceResponse) -> int | None:
    """Return the error code of the only partition, None while it waits."""
    if isinstance(answer, Deferred):
        if not answer.done:
            return None
        answer = answer.result()
    return answer.responses[0].partition_responses[0].error_code


# ---- acknowledgements


def test_acks_all_is_answered_at_the_high_watermark(node: ReplicatedBroker) -> None:
    answer = produce(node)
    node.fetch(2, 0)
    assert code(answer) is None
    node.fetch(3, 0)
    node.fetch(2, 1)
    assert code(answer) is None
    node.fetch(3, 1)
    assert code(answer) == 0
    assert node.partition.high_watermark == 1


@pytest.mark.parametrize("acks", [0, 1])
def test_other_acks_wait_for_no_follower(node: ReplicatedBroker, acks: int) -> None:
    from tidelog.broker.handlers.produce import handle

    data = PartitionProduceData(index=0, records=memoryview(batch(b"v")))
    topics = [TopicProduceData(topic_id=node.partition.topic_id, partition_data=[data])]
    answer = handle(node.broker, node.context(13), ProduceRequest(acks=acks, topic_data=topics))
    assert answer is None if acks == 0 else isinstance(answer, ProduceResponse)
    assert node.partition.high_watermark == 0


def test_with_flush_messages_acks_1_waits_for_its_own_sync(tmp_path: Path) -> None:
    node = ReplicatedBroker(tmp_path, {"flush.messages": "1"})
    one, all_replicas = produce(node, 1), produce(node)
    assert code(one) is None
    for _ in range(4):
        node.loop.run_soon()
    assert code(one) == 0
    assert code(all_replicas) is None
    for replica in (2, 3):
        node.fetch(replica, 2)
    assert code(all_replicas) == 0
    node.close()


@pytest.mark.parametrize("acks", [1, -1])
def test_a_failed_sync_fails_all_waiting_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int) -> None:
    """On a disk without room for a checkpoint no other broker is elected, and no further append comes."""
    node = ReplicatedBroker(tmp_path, {"flush.messages": "1"})

    def flush(_: int) -> None:
        raise errors.KafkaStorageError("no room for a checkpoint")

    monkeypatch.setattr(node.partition, "_log", StandIn(node.partition.local_log, flush=flush))
    answer = produce(node, acks)
    for _ in range(4):
        node.loop.run_soon()
    assert code(answer) == errors.KafkaStorageError.code
    monkeypatch.undo()
    node.close()


@pytest.mark.parametrize("leader", [2, NO_LEADER])
def test_a_sync_that_ends_after_leadership_commits_nothing(tmp_path: Path, leader: int) -> None:
    """This replica has the records on its disk, but the next leader has not said that they are committed."""
    node = ReplicatedBroker(tmp_path, {"flush.messages": "1"})
    answer = produce(node)
    node.partition.take_over(LED._replace(leader=leader, leader_epoch=6))
    for _ in range(4):
        node.loop.run_soon()
    assert code(answer) == errors.NotLeaderOrFollowerError.code
    assert (node.partition.high_watermark, node.partition.log_end_offset) == (0, 1)
    node.close()


def test_an_unsynced_append_commits_what_waited_for_a_slow_replica(tmp_path: Path) -> None:
    """The proposal with replica 3 is pending, so replica 2 could join next, until it lags."""
    node = ReplicatedBroker(tmp_path, {"flush.messages": "1"})
    node.partition.take_over(LED._replace(isr=(1,), partition_epoch=8))
    for replica in (3, 2):
        node.fetch(replica, 0)
    produce(node)
    for _ in range(4):
        node.loop.run_soon()
    node.fetch(3, 1)
    assert node.partition.high_watermark == 0
    node.loop.advance(LAG_MS + 1)
    produce(node)
    assert node.partition.high_watermark == 1
    node.close()


def test_an_election_of_the_same_broker_commits_nothing_before_the_sync(tmp_path: Path) -> None:
    node = ReplicatedBroker(tmp_path, {"flush.messages": "1"})
    alone = LED._replace(isr=(1,), partition_epoch=8)
    node.partition.take_over(alone)
    node.thread_works = []
    node.partition._in_thread = node.run_in_thread
    answer = produce(node)
    node.partition.take_over(alone._replace(leader_epoch=6, partition_epoch=9))
    assert (code(answer), node.partition.high_watermark) == (None, 0)
    while node.thread_works:
        node.thread_works.pop(0)()
    assert (code(answer), node.partition.high_watermark) == (0, 1)
    node.close()


def test_too_few_in_sync_replicas_are_an_error_before_anything_is_appended(careful: ReplicatedBroker) -> None:
    careful.partition.take_over(LED._replace(isr=(1,), partition_epoch=8))
    assert code(produce(careful)) == errors.NotEnoughReplicasError.code
    assert careful.partition.log_end_offset == 0
    assert code(produce(careful, 1)) == 0


def test_acks_all_ends_with_the_clock(careful: ReplicatedBroker) -> None:
    answer = produce(careful)
    careful.partition.take_over(LED._replace(isr=(1,), partition_epoch=8))
    for replica in (2, 3):
        careful.fetch(replica, 1)
    assert code(answer) is None, "nothing is committed under min.insync.replicas"
    careful.loop.advance(TIMEOUT_MS + 100)
    assert code(answer) == errors.RequestTimedOutError.code


def test_lost_leadership_fails_waiting_requests(node: ReplicatedBroker) -> None:
    answer = produce(node)
    node.partition.take_over(FENCED)
    assert code(answer) == errors.NotLeaderOrFollowerError.code
    assert node.partition.leading is None
    node.loop.advance(TIMEOUT_MS + 100)


def test_a_deleted_topic_fails_waiting_requests(node: ReplicatedBroker) -> None:
    """A marker of a transaction waits without a timeout, and its transaction would never end."""
    answer, marker = produce(node), node.partition.when_committed(0)
    node.replica_manager.remove_logs(node.topic)()
    assert code(answer) == errors.UnknownTopicOrPartitionError.code
    assert isinstance(error_of(marker), errors.UnknownTopicOrPartitionError)


def test_a_partition_that_has_one_replica_left_commits_all_it_has(node: ReplicatedBroker) -> None:
    answer = produce(node)
    node.partition.take_over(PartitionState((1,), (1,), 1, 5, 8))
    assert code(answer) == 0
    assert node.partition.leading is None
    assert node.partition.high_watermark == 1


def test_a_follower_that_becomes_the_only_replica_commits_all_it_has(node: ReplicatedBroker) -> None:
    """The last of the other replicas was moved away."""
    node.append("t", b"a")
    node.partition.take_over(FENCED)
    node.partition.take_over(PartitionState((1,), (1,), 1, 7, 9))
    assert node.partition.high_watermark == 1


def test_a_leader_whose_log_failed_proposes_no_isr(node: ReplicatedBroker) -> None:
    """Its followers cannot fetch: were they to leave the ISR, no other replica could lead."""
    leading = node.partition.leading
    assert leading is not None
    node.append("t", b"a")
    node.loop.advance(LAG_MS + 1)
    node.partition.local_log.take_out_of_service(errors.KafkaStorageError("a bad sector"))
    assert leading.propose() is None


def test_requests_keep_waiting_if_the_same_broker_is_elected_again(careful: ReplicatedBroker) -> None:
    answer = produce(careful)
    careful.partition.take_over(LED._replace(leader_epoch=6, partition_epoch=8))
    for replica in (2, 3):
        careful.fetch(replica, 1, leader_epoch=6)
    assert code(answer) == 0


# ---- replica fetches


def test_a_replica_gets_records_that_consumers_do_not_see_yet(node: ReplicatedBroker) -> None:
    node.append("t", b"a")
    error, watermark, start, records = node.fetch(2, 0)
    assert (error, watermark, start) == (0, 0, 0)
    assert len(records) == node.partition.local_log.size_bytes
    node.fetch(2, 1)
    assert node.fetch(3, 1) == (0, 1, 0, b""), "its own fetch moved it"


def test_an_election_notes_the_epoch_of_an_empty_log(node: ReplicatedBroker) -> None:
    assert node.partition.end_offset_for_epoch(5) == (5, 0)
    assert node.fetch(2, 0, last_epoch=5)[0] == 0
    answer = node.ask(2, 3, last_epoch=3)
    assert isinstance(answer, FetchResponse)
    data = answer.responses[0].partitions[0]
    assert (data.error_code, data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 3, 0)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"replica": 9, "offset": 1}, errors.NotLeaderOrFollowerError),
        ({"replica": 2, "offset": 0, "leader_epoch": 4}, errors.FencedLeaderEpochError),
        ({"replica": 2, "offset": 0, "leader_epoch": 6}, errors.UnknownLeaderEpochError),
        ({"replica": 2, "offset": 0, "last_epoch": 5}, errors.OffsetOutOfRangeError),
        ({"replica": 2, "offset": 9}, errors.OffsetOutOfRangeError),
        ({"replica": 2, "offset": 2, "last_epoch": 6}, errors.OffsetOutOfRangeError),
    ],
)
def test_errors_of_a_replica_are_answered_without_a_wait(
    node: ReplicatedBroker, options: dict[str, int], error: type[errors.KafkaError]
) -> None:
    node.append("t", b"a")
    node.append("t", b"b")
    node.partition.local_log.update_high_watermark(2)
    node.partition.move_log_start(1)
    answer = node.ask(**options, wait_ms=500)  # type: ignore[arg-type]
    assert isinstance(answer, FetchResponse)
    assert contents_of(answer)[0] == error.code


def test_a_replica_waits_for_records_not_for_the_high_watermark(node: ReplicatedBroker) -> None:
    node.append("t", b"a")
    waiting = node.ask(2, 1, wait_ms=500)
    assert isinstance(waiting, Deferred)
    node.fetch(3, 1)
    node.loop.run_soon()
    assert not waiting.done
    node.append("t", b"b")
    node.loop.run_soon()
    assert contents_of(waiting.result())[1] == 1


def test_a_replica_that_waits_is_answered_by_the_clock_and_by_a_new_leader(node: ReplicatedBroker) -> None:
    waiting = node.ask(2, 0, wait_ms=500)
    assert isinstance(waiting, Deferred)
    node.loop.advance(600)
    assert contents_of(waiting.result()) == (0, 0, 0, b"")
    waiting = node.ask(2, 0, wait_ms=500)
    assert isinstance(waiting, Deferred)
    node.partition.take_over(FENCED)
    node.purgatory.touch(node.partition)
    node.loop.run_soon()
    assert contents_of(waiting.result())[0] == errors.FencedLeaderEpochError.code


def test_a_session_sends_only_partitions_that_moved(node: ReplicatedBroker) -> None:
    node.append("t", b"a")
    first = node.ask(2, 1, session=(0, 0))
    assert isinstance(first, FetchResponse)
    number = first.session_id
    again = node.ask(2, 1, session=(number, 1), names_partition=False)
    assert isinstance(again, FetchResponse)
    assert again.responses == []
    node.fetch(3, 1)
    again = node.ask(2, 1, session=(number, 2), names_partition=False)
    assert isinstance(again, FetchResponse)
    assert contents_of(again)[1] == 1


def test_offsets_sent_with_a_divergence_are_sent_again(node: ReplicatedBroker) -> None:
    """A follower that truncates does not take them over."""
    first = node.ask(2, 0, last_epoch=3, session=(0, 0))
    diverged = node.ask(2, 3, last_epoch=3, session=(first.session_id, 1))  # type: ignore[union-attr]
    assert diverged.responses[0].partitions[0].diverging_epoch.epoch == 3  # type: ignore[union-attr]
    after = node.ask(2, 0, last_epoch=3, session=(first.session_id, 2))  # type: ignore[union-attr]
    assert isinstance(after, FetchResponse)
    assert contents_of(after)[0] == 0


def test_the_isr_is_proposed_when_a_follower_is_at_the_end(node: ReplicatedBroker) -> None:
    node.partition.take_over(LED._replace(isr=(1, 2), partition_epoch=8))
    assert node.roles._proposals.wake_ms is None
    node.fetch(3, 0)
    request = node.roles._proposals.next_request(101, 0.0)
    assert request is not None
    members = request.topics[0].partitions[0].new_isr_with_epochs
    assert [(one.broker_id, one.broker_epoch) for one in members] == [(1, 101), (2, -1), (3, 103)]


# ---- offsets and deletions


def offset_for(node: ReplicatedBroker, timestamp: int, version: int = 11, replica: int = -1) -> tuple[int, int]:
    """Send ListOffsets; return error code and offset."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=replica, topics=[ListOffsetsTopic(name="t", partitions=[asked])])
    (topic,) = drive(node.broker, request, ListOffsetsResponse, version).topics
    return topic.partitions[0].error_code, topic.partitions[0].offset


def test_a_new_leader_answers_no_end_offset_before_its_followers_have_fetched(node: ReplicatedBroker) -> None:
    for _ in range(3):
        node.append("t", b"a")
    node.partition.take_over(LED._replace(leader_epoch=6, partition_epoch=8))
    assert offset_for(node, -1) == (errors.OffsetNotAvailableError.code, -1)
    assert offset_for(node, -1, version=4)[0] == errors.LeaderNotAvailableError.code
    assert offset_for(node, 0)[0] == errors.OffsetNotAvailableError.code
    assert offset_for(node, -2) == (0, 0)
    assert offset_for(node, -1, replica=2) == (0, 3)
    for replica in (2, 3):
        node.fetch(replica, 3, leader_epoch=6)
    assert offset_for(node, -1) == (0, 3)


def delete(node: ReplicatedBroker, before: int) -> Deferred[DeleteRecordsResponse]:
    """Return the answer to DeleteRecords, or what it waits for."""
    asked = DeleteRecordsPartition(partition_index=0, offset=before)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[asked])], timeout_ms=TIMEOUT_MS)
    return node.begin(request, 2)


def deleted(answer: Deferred[DeleteRecordsResponse]) -> tuple[int, int]:
    """Return error and low watermark."""
    (result,) = answer.result().topics[0].partitions
    return result.error_code, result.low_watermark


def committed(node: ReplicatedBroker) -> None:
    """Append two records that all replicas get."""
    for _ in range(2):
        node.append("t", b"a")
    for replica in (2, 3):
        node.fetch(replica, 2)


def test_records_are_deleted_when_all_living_replicas_have_moved_their_log_start(node: ReplicatedBroker) -> None:
    committed(node)
    answer = delete(node, -1)
    node.fetch(2, 2, log_start=2)
    assert not answer.done
    node.fetch(3, 2, log_start=2)
    node.loop.run_soon()
    assert deleted(answer) == (0, 2)


def test_a_replica_that_is_gone_holds_no_deletion(node: ReplicatedBroker) -> None:
    committed(node)
    answer = delete(node, 1)
    node.fetch(2, 2, log_start=1)
    node.controller.image = node.controller.image._replace(brokers=brokers(fenced={3}))
    node.roles.take_brokers()
    node.loop.run_soon()
    assert deleted(answer) == (0, 1)


def test_a_deletion_ends_with_the_clock(node: ReplicatedBroker) -> None:
    committed(node)
    answer = delete(node, 1)
    node.loop.advance(TIMEOUT_MS + 100)
    node.loop.run_soon()
    assert deleted(answer) == (errors.RequestTimedOutError.code, -1)
