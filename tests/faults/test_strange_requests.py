"""Clients with unusual or hostile requests, each kind beside a client that produces: the answers, the state that they
leave, and that the producer's records are all there, also after a restart, with no error in the broker's log."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.faults.test_network_departures import fetch, sockets_of
from tests.support import raw_client
from tests.support.broker import TidelogProcess
from tests.support.bystander import Bystander
from tests.support.raw_requests import create
from tests.support.turns import metrics_of
from tidelog.client import Client
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

RETRIABLE = (14, 15, 16, 51)
LIMIT_S = 60.0
LONG = "x" * 32_767
MEMBER_ID_REQUIRED, OFFSET_METADATA_TOO_LARGE, INVALID_TOPIC, INVALID_REGULAR_EXPRESSION = 79, 12, 17, 128
TAGGED = [
    b"\xff\xff\xff\xff\x0f",  # 2^32 of them
    b"\xff" * 9 + b"\x01",
    b"\xff" * 20,  # a number without an end
    b"\x01\x07\xff\xff\xff\xff\x07",  # a value longer than any request
    b"\xa0\xc2\x1e" + b"\x07\x00" * 500_000,
    b"\x01\x07\x80\x80\x40" + bytes(1 << 20),
    b"\x01",
    b"",
]
PATTERNS = ["(a+)+$", "((a{1,30}){1,30}){1,30}", "(" * 5_000, "a" * 30_000, "(?=x)", "\\"]


class World(NamedTuple):
    """A broker, a client of it, the bystander, and what is to hold after a restart, too."""

    broker: TidelogProcess
    client: Client
    bystander: Bystander
    checks: list[Callable[[], None]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with TidelogProcess(tmp_path, {"group.max.size": "2000", "max.connections": "3000"}) as broker:
        create(broker.port, "bystander")
        checks: list[Callable[[], None]] = []
        with Bystander(broker.port, "bystander") as bystander:
            with Client(broker.bootstrap) as client:
                yield World(broker, client, bystander, checks)
            bystander.wait_for(5)
        assert bystander.end_offset() == bystander.acknowledged
        broker.restart()
        assert bystander.end_offset() == bystander.acknowledged
        for check in checks:
            check()
        lines = broker.log_path.read_text(errors="replace").splitlines()
        assert not [line for line in lines if "Traceback" in line or " ERROR " in line]


def until_ready(ask: Callable[[], int]) -> int:
    """Ask again while a coordinator is not ready; return the error code."""
    deadline = time.monotonic() + LIMIT_S
    while (code := ask()) in RETRIABLE:
        assert time.monotonic() < deadline, code
        time.sleep(0.01)
    return code


def test_fetches_that_wait_and_are_reset_leave_nothing(world: World) -> None:
    create(world.broker.port, "t")
    sockets = sockets_of(world.broker)
    for _ in range(3):
        waiting = [raw_client.connect(world.broker.port) for _ in range(200)]
        for connection in waiting:
            connection.sendall(fetch("t", 60_000))
        world.bystander.wait_for(3)
        for connection in waiting:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
    deadline = time.monotonic() + LIMIT_S
    while sockets_of(world.broker) > sockets:
        assert time.monotonic() < deadline, "connections stay"
        time.sleep(0.05)


def test_the_longest_group_ids_and_offset_metadata_are_accepted_or_refused(world: World) -> None:
    create(world.broker.port, "t")

    def join() -> int:
        protocols = [JoinGroupRequestProtocol(name=LONG, metadata=bytes(100_000))]
        request = JoinGroupRequest(group_id=LONG, session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
                                   member_id="", protocol_type="consumer", protocols=protocols)  # fmt: skip
        return world.client.send(request, JoinGroupResponse, 5).error_code

    def commit(metadata: str) -> int:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata=metadata)
        topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
        answer = world.client.send(OffsetCommitRequest(group_id=LONG, topics=topics), OffsetCommitResponse, 8)
        return answer.topics[0].partitions[0].error_code

    assert until_ready(join) == MEMBER_ID_REQUIRED
    for length, code in ((4096, 0), (4097, OFFSET_METADATA_TOO_LARGE), (32_767, OFFSET_METADATA_TOO_LARGE)):
        assert until_ready(partial(commit, "m" * length)) == code
    group = OffsetFetchRequestGroup(group_id=LONG, topics=None)
    found = world.client.send(OffsetFetchRequest(groups=[group]), OffsetFetchResponse, 8).groups[0]
    (partition,) = found.topics[0].partitions
    assert (partition.committed_offset, len(partition.metadata or "")) == (3, 4096)


def test_invalid_topic_names_are_refused(world: World) -> None:
    bad = ["", ".", "..", "a/b", "../up", "nul\0", "\u00fcmlaut", "new\nline", "a" * 250, "a b", "t?key=1"]
    good = ["a" * 249, "a.b"]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in bad + good]
    answer = world.client.send(CreateTopicsRequest(topics=topics), CreateTopicsResponse, 5)
    codes = {topic.name: topic.error_code for topic in answer.topics}
    assert codes == dict.fromkeys(bad, INVALID_TOPIC) | dict.fromkeys(good, 0)
    again = [CreatableTopic(name="a_b", num_partitions=1, replication_factor=1)]
    assert world.client.send(CreateTopicsRequest(topics=again), CreateTopicsResponse, 5).topics[0].error_code
    there = world.client.send(MetadataRequest(topics=None), MetadataResponse, 5).topics
    assert {topic.name for topic in there} == {*good, "bystander"}


def test_client_ids_of_any_bytes_and_in_thousands_make_no_metrics(world: World) -> None:
    lines = len(metrics_of(world.broker).samples)
    for client_id in (LONG.encode(), b"new\nline", b"\xff\xfe", b""):
        header = struct.pack(">hhih", 18, 0, 1, len(client_id)) + client_id
        with raw_client.connect(world.broker.port) as connection, suppress(EOFError, ConnectionError):
            connection.sendall(struct.pack(">i", len(header)) + header)
            assert raw_client.receive_frame(connection)[:4] == struct.pack(">i", 1)
    with raw_client.connect(world.broker.port) as connection:
        for number in range(3_000):
            header = struct.pack(">hhih", 18, 0, number, 215) + b"%0215d" % number
            connection.sendall(struct.pack(">i", len(header)) + header)
            assert raw_client.receive_frame(connection)[:4] == struct.pack(">i", number)
    assert len(metrics_of(world.broker).samples) < lines + 100


def test_transactions_that_are_begun_by_the_thousand_and_left(world: World) -> None:
    ids = [f"t-{number}" for number in range(1_000)]
    for transactional_id in ids:
        begin = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=600_000)
        found = InitProducerIdResponse()

        def ask(begin: InitProducerIdRequest = begin) -> int:
            nonlocal found
            found = world.client.send(begin, InitProducerIdResponse, 4)
            return found.error_code

        assert until_ready(ask) == 0
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id, v3_and_below_producer_id=found.producer_id,
            v3_and_below_producer_epoch=found.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="bystander", partitions=[0])],
        )  # fmt: skip

        def extend(add: AddPartitionsToTxnRequest = add) -> int:
            answer = world.client.send(add, AddPartitionsToTxnResponse, 3)
            return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

        assert until_ready(extend) == 0

    def check() -> None:
        assert ongoing(world) == set(ids)

    check()
    world.checks.append(check)


def ongoing(world: World) -> set[str]:
    """Name the transactions that are open, once the coordinators are ready."""
    deadline = time.monotonic() + LIMIT_S
    with Client(world.broker.bootstrap) as client:
        while True:
            answer = client.send(ListTransactionsRequest(state_filters=["Ongoing"]), ListTransactionsResponse, 0)
            if answer.error_code not in RETRIABLE:
                return {state.transactional_id for state in answer.transaction_states}
            assert time.monotonic() < deadline


def test_malformed_or_very_many_tagged_fields_are_answered_or_close_the_connection(world: World) -> None:
    """In the header of a flexible ApiVersions: answered or closed."""
    for tagged in TAGGED:
        header = struct.pack(">hhih", 18, 3, 7, 1) + b"c" + tagged + b"\x02n\x02v\x00"
        with raw_client.connect(world.broker.port) as connection, suppress(EOFError, ConnectionError):
            connection.sendall(struct.pack(">i", len(header)) + header)
            assert raw_client.receive_frame(connection)[:4] == struct.pack(">i", 7)


def test_expensive_patterns_of_subscriptions_hold_up_no_client(world: World) -> None:
    names = [f"{'a' * 200}-{number}" for number in range(100)]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    world.client.send(CreateTopicsRequest(topics=topics), CreateTopicsResponse, 5)

    def beat(text: str, member: str) -> int:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member, member_epoch=0, rebalance_timeout_ms=10_000,
            subscribed_topic_regex=text, topic_partitions=[],
        )  # fmt: skip
        return world.client.send(request, ConsumerGroupHeartbeatResponse, 1).error_code

    for number, pattern in enumerate(PATTERNS):
        code = until_ready(partial(beat, pattern, f"hostile-{number}"))
        assert code in (0, INVALID_REGULAR_EXPRESSION)
    assert until_ready(lambda: beat("a.*", "honest")) == 0
