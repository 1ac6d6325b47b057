"""The first request to a partition after a start: threads open its log, and the answers are those of an open log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import long_requests
from tests.support.long_requests import WIDE_TOPIC, Naming, all_cases, build
from tests.support.topics import create_topic
from tests.support.watched_loop import WatchedLoop
from tests.unit.broker.data_broker import DataBroker, batch
from tests.unit.broker.handlers.test_data_path import Wire
from tests.unit.broker.requests.test_dispatch import LongWire
from tests.unit.broker.share.share_world import ShareWorld
from tidelog.broker.admin.find import open_logs
from tidelog.broker.errors import CloseConnectionError
from tidelog.broker.find.finding import FindRequest, plan
from tidelog.broker.find.indexing import indexing_of
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.log_openings import opening_expected
from tidelog.broker.requests.registry import REGISTRY
from tidelog.broker.requests.route import Pending
from tidelog.log import manager
from tidelog.log.find.lookup import Query
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError
from tidelog.protocol.messages import share_fetch
from tidelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from tidelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tidelog.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
)
from tidelog.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequestGroup as DescribedShareGroup,
)
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tidelog.protocol.schema.fields import Message
from tidelog.protocol.transferable import release_slices

PARTITIONS = 3
ALL = range(PARTITIONS)
MAX_TURNS = 2000
TEXTS = {"transaction.state.log.num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}


def produce(asked: range) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=memoryview(batch(b"new"))) for index in asked]
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)])


def fetch(asked: range) -> FetchRequest:
    partitions = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000) for index in asked]
    topics = [FetchTopic(topic="t", partitions=partitions)]
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=9000, session_epoch=-1, topics=topics)


def list_offsets(asked: range) -> ListOffsetsRequest:
    partitions = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in asked]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=partitions)])


def end_offsets(asked: range) -> OffsetForLeaderEpochRequest:
    partitions = [OffsetForLeaderPartition(partition=index, leader_epoch=0) for index in asked]
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic="t", partitions=partitions)])


def delete_records(asked: range) -> DeleteRecordsRequest:
    partitions = [DeleteRecordsPartition(partition_index=index, offset=1) for index in asked]
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=partitions)], timeout_ms=1000)


def describe_producers(asked: range) -> DescribeProducersRequest:
    return DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=list(asked))])


REQUESTS: list[tuple[Callable[[range], Message], type[Message], int]] = [
    (produce, ProduceResponse, 7),
    (fetch, FetchResponse, 11),
    (list_offsets, ListOffsetsResponse, 5),
    (end_offsets, OffsetForLeaderEpochResponse, 3),
    (delete_records, DeleteRecordsResponse, 1),
    (describe_producers, DescribeProducersResponse, 0),
]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataBroker]:
    """A broker after a clean stop, in which no log is open yet."""
    before = DataBroker(tmp_path)
    create_topic(before, "t", PARTITIONS)
    for partition in ALL:
        before.append("t", b"one", b"two", partition=partition)
    before.close()
    data = DataBroker(tmp_path)
    watched = WatchedLoop(data.loop)
    load = load_log

    def load_in_worker(*arguments: Any) -> Any:
        assert watched.is_in_worker, "a log is opened on the loop"
        return load(*arguments)

    monkeypatch.setattr(manager, "load_log", load_in_worker)
    yield data
    data.close()


def ask(data: DataBroker, request: Message, response: type[Message], version: int) -> list[Any]:
    """Return each partition's part of the answer; none has an error."""
    decoded: Any = Wire(data).ask_patiently(request, response, version)
    topics = getattr(decoded, "topics", None) or decoded.responses
    parts = [part for topic in topics for part in getattr(topic, "partitions", None) or topic.partition_responses]
    assert all(part.error_code == 0 for part in parts), parts
    return parts


@pytest.mark.parametrize("asked", [range(1), ALL], ids=["one partition", "some partitions"])
@pytest.mark.parametrize(("build", "response", "version"), REQUESTS, ids=[row[0].__name__ for row in REQUESTS])
def test_threads_open_the_logs_that_requests_name(
    data: DataBroker, build: Callable[[range], Message], response: type[Message], version: int, asked: range
) -> None:
    assert len(ask(data, build(asked), response, version)) == len(asked)
    assert all(data.replica_manager.partition("t", index).log_metrics() is not None for index in asked)


def test_records_are_appended_after_those_that_were_there(data: DataBroker) -> None:
    assert [part.base_offset for part in ask(data, produce(ALL), ProduceResponse, 7)] == [2] * PARTITIONS
    assert [part.offset for part in ask(data, list_offsets(ALL), ListOffsetsResponse, 5)] == [3] * PARTITIONS


class LivedIn:
    """A broker without an open log, on a directory with topics, groups, a transaction, a share group and an index."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = ShareWorld(directory, TEXTS)
        before.topic(WIDE_TOPIC, *[2] * PARTITIONS, partitions=PARTITIONS)
        create_topic(before, "indexed", PARTITIONS, configs={"index.keys": "true", "index.tag.header": "h"})
        self._use(before)
        before.loop.advance(1000)
        before.stop_threads()
        before.close()
        self.world = ShareWorld(directory, TEXTS)
        self.opened_on_the_loop: list[str] = []
        watched, load = WatchedLoop(self.world.loop), load_log

        def note(request: LoadRequest) -> Any:
            if not watched.is_in_worker:
                self.opened_on_the_loop.append(str(request.topic_partition))
            return load(request)

        monkeypatch.setattr(manager, "load_log", note)
        monkeypatch.setattr(long_requests, "TOPIC_ID", self.world.broker.metadata.topics[WIDE_TOPIC].topic_id)
        self.wire = LongWire(self.world)

    @staticmethod
    def _use(world: ShareWorld) -> None:
        """Commit an offset, leave a transaction open in all partitions, acquire records in a share group."""
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topic = OffsetCommitRequestTopic(name=WIDE_TOPIC, partitions=[partition])
        assert world.ask(world.context(9), OffsetCommitRequest(group_id="g", topics=[topic]), 9)
        world.configure("shared")
        world.member("shared", WIDE_TOPIC).acquired()
        begin = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1000)
        found = world.ask(world.context(4), begin, 4)
        while isinstance(found, Deferred):
            world.loop.run_soon()
            found = found.result() if found.done else found
        parts = AddPartitionsToTxnTopic(name=WIDE_TOPIC, partitions=list(ALL))
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=found.producer_id,
            v3_and_below_producer_epoch=found.producer_epoch,
            v3_and_below_topics=[parts],
        )
        world.ask(world.context(3), add, 3)

    def ask(self, request: Message, version: int) -> None:
        answer = self.wire.send(request, version)
        answers: list[Any] = [] if isinstance(answer, Pending) else [answer]
        if isinstance(answer, Pending):
            answer.on_answer(answers.append)
        for _ in range(MAX_TURNS):
            if answers:
                break
            self.world.loop.run_soon()
            self.world.loop.advance(10)
        release_slices(answers[0])


@pytest.fixture
def lived_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LivedIn]:
    """A broker whose indexer has ended when the directory is removed."""
    lived_in = LivedIn(tmp_path, monkeypatch)
    yield lived_in
    lived_in.world.stop_threads()


@pytest.mark.parametrize("api_key", sorted(REGISTRY), ids=lambda key: ApiKey(key).name)
def test_no_request_has_the_loop_open_a_log(lived_in: LivedIn, api_key: int) -> None:
    """Each API with each of its arrays, naming existing things, as the first request after a start."""
    for case in all_cases(api_key):
        if case.naming is not Naming.UNKNOWN:
            with suppress(InvalidRequestError, CloseConnectionError):  # not answered at all
                lived_in.ask(build(case, PARTITIONS), case.version)
    assert lived_in.opened_on_the_loop == []


def test_no_background_work_has_the_loop_open_a_log(lived_in: LivedIn) -> None:
    """Coordinators load, a transaction times out and is ended, indices are handed over, share groups expire."""
    world = lived_in.world
    world.coordinators.start()
    for name in (WIDE_TOPIC, "indexed"):
        indexing_of(world.broker).topic_changed(world.broker.metadata.topics[name])
    for _ in range(300):
        world.loop.run_soon()
        world.loop.advance(100)
    manager_ = world.log_manager
    opened = {log.topic_partition.topic for log in manager_.open_logs()}
    assert {WIDE_TOPIC, "indexed", "__consumer_offsets", "__transaction_state", "__share_group_state"} <= opened
    transaction = world.coordinators.transactions.find("tx")
    assert transaction is not None
    assert not transaction.unmarked
    assert lived_in.opened_on_the_loop == []


@pytest.mark.parametrize("name", [WIDE_TOPIC + "?from=2020-01-01", "indexed?key=a", "indexed?tag=a"])
@pytest.mark.parametrize("version", [4, 11])
def test_no_virtual_topic_has_the_loop_open_a_log(lived_in: LivedIn, name: str, version: int) -> None:
    request = fetch(ALL)
    request.topics[0].topic = name
    lived_in.ask(request, version)
    offsets = list_offsets(ALL)
    offsets.topics[0].name = name
    lived_in.ask(offsets, 5)
    assert lived_in.opened_on_the_loop == []


def test_no_member_of_a_share_group_has_the_loop_open_a_log(lived_in: LivedIn) -> None:
    world = lived_in.world
    topic_id = world.broker.metadata.topics[WIDE_TOPIC].topic_id
    beat = ShareGroupHeartbeatRequest(
        group_id="shared", member_id="n", member_epoch=0, subscribed_topic_names=[WIDE_TOPIC]
    )
    lived_in.ask(beat, 1)
    parts = [share_fetch.FetchPartition(partition_index=index) for index in ALL]
    asked = share_fetch.ShareFetchRequest(
        group_id="shared", member_id="n", share_session_epoch=0, max_wait_ms=100, min_bytes=1, max_bytes=1 << 20,
        max_records=10, batch_size=10, topics=[share_fetch.FetchTopic(topic_id=topic_id, partitions=parts)],
    )  # fmt: skip
    lived_in.ask(asked, 2)
    lived_in.ask(DescribeShareGroupOffsetsRequest(groups=[DescribedShareGroup(group_id="shared", topics=None)]), 1)
    assert lived_in.opened_on_the_loop == []


async def test_no_look_up_has_the_loop_open_a_log(lived_in: LivedIn) -> None:
    world = lived_in.world
    opening = asyncio.ensure_future(open_logs(world.broker, "indexed"))
    with opening_expected():  # this test's threads are the loop's own
        while not opening.done():
            world.loop.run_soon()
            await asyncio.sleep(0)
    plan(world.broker, FindRequest(topic="indexed", query=Query(key=b"a")))
    assert lived_in.opened_on_the_loop == []
