"""Share sessions whose connections close at any moment: while a fetch waits, with acquired records, within a request.
Afterwards no session exists, and no record is acquired."""

from __future__ import annotations

import random
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.test_network_departures import sockets_of
from tests.support import raw_client
from tests.support.broker import TidelogProcess
from tests.support.long_requests import frame
from tests.support.raw_requests import create, produce, produce_batch
from tests.support.share_client import ACCEPT, RELEASE, Run, ShareClient, read_from_earliest
from tidelog.client import Client
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.protocol.messages.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from tidelog.protocol.record.record_batch import Record, build_batch

SESSIONS = 20
CHURNERS = 120
ROUND = 6
"""Churners between two reads of the member that stays: a record is delivered ten times at most."""
LIMIT_S = 60.0
GAPS = 100


def churn(port: int, topic_id: bytes, number: int, chance: random.Random) -> None:
    """Open a session as another member and go away, with a reset or orderly, answered or not."""
    request = ShareFetchRequest(
        group_id="g", member_id=f"churner-{number}", share_session_epoch=0, min_bytes=1, max_bytes=1 << 20,
        max_wait_ms=chance.choice([0, 0, 20_000]), max_records=chance.choice([1, 500]), batch_size=1,
        topics=[FetchTopic(topic_id=topic_id, partitions=[FetchPartition(partition_index=0)])],
    )  # fmt: skip
    body = frame(request, 2)
    whole = struct.pack(">i", len(body)) + body
    with raw_client.connect(port) as connection:
        connection.sendall(whole[: chance.choice([len(whole), len(whole), len(whole) // 2])])
        if chance.random() < 0.5:
            connection.settimeout(0.05)
            with suppress(TimeoutError):
                connection.recv(1 << 16)
        if chance.random() < 0.7:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("seed", [1, 2])
def test_no_session_and_no_record_stays_with_connections_that_go(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    overrides = {
        "group.share.max.share.sessions": str(SESSIONS),
        "group.share.delivery.count.limit": "10",
        "group.share.record.lock.duration.ms": "60000",
    }
    with TidelogProcess(tmp_path, overrides) as broker, Client(broker.bootstrap) as client:
        create(broker.port, "t")
        read_from_earliest(client, "g")
        found = client.send(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), MetadataResponse, 12)
        topic_id = bytes(found.topics[0].topic_id)
        member = ShareClient(client, "g", ("t", topic_id), "stays")
        member.join()
        member.fetch()
        sockets, produced, accepted = sockets_of(broker), 0, list[int]()
        for number in range(CHURNERS):
            if chance.random() < 0.5:
                assert produce(broker.port, "t", value=b"%d" % number) == 0
                produced += 1
            churn(broker.port, topic_id, number, chance)
            if number % ROUND == ROUND - 1:
                read_all(member, accepted, produced)
        assert accepted == list(range(produced))
        deadline = time.monotonic() + LIMIT_S
        while sockets_of(broker) > sockets:
            assert time.monotonic() < deadline, "connections stay"
            time.sleep(0.05)
        assert "Traceback" not in broker.output()


def test_records_released_between_accepted_ones_come_again_once_each(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path) as broker, Client(broker.bootstrap) as client:
        create(broker.port, "t")
        read_from_earliest(client, "g")
        found = client.send(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), MetadataResponse, 12)
        member = ShareClient(client, "g", ("t", bytes(found.topics[0].topic_id)), "m")
        member.join()
        assert produce_batch(broker.port, "t", build_batch([Record(n, 0, None, b"v") for n in range(GAPS * 2)])) == 0
        (run,) = member.fetch(max_wait_ms=20_000)
        assert run == (0, GAPS * 2 - 1, 1)
        for number in range(GAPS * 2):
            assert member.acknowledge(number, number, RELEASE if number % 2 else ACCEPT) == 0
        again: list[Run] = []
        while runs := member.fetch():
            again += runs
        assert again == [Run(number, number, 2) for number in range(1, GAPS * 2, 2)]


def read_all(member: ShareClient, accepted: list[int], produced: int) -> None:
    """Read and accept records until all produced ones are accepted: those that other members held are available
    again."""
    deadline = time.monotonic() + LIMIT_S
    while len(accepted) < produced:
        assert time.monotonic() < deadline, f"{accepted} of {produced}: records stay with connections that are gone"
        for run in member.fetch(max_wait_ms=200):
            assert member.acknowledge(run.first, run.last, ACCEPT) == 0
            accepted += range(run.first, run.last + 1)
    accepted.sort()
