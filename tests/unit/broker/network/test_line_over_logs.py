"""One connection of an idempotent producer over a real log: acknowledged records are committed, in order, each once."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.replicated import ReplicatedBroker
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import DataBroker, batch
from tests.unit.broker.network.test_connection import SocketLoop
from tidelog.broker.network.connection import Connection
from tidelog.broker.network.shell import Limits, Shell
from tidelog.broker.network.transport import PlainSocket
from tidelog.broker.replica.partition import Partition
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import OutOfOrderSequenceNumberError, RequestTimedOutError
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.record_batch import BatchOptions

VERSION = 9
TIMEOUT_MS = 2_000
KEPT = 4
"""Batches that a producer may send again, and is told their offsets."""


@dataclass
class Sent:
    """A request of one record: its sequence number is its offset."""

    sequence: int
    acks: int
    is_refused: bool
    sent_ms: float


class Producer:
    """An idempotent producer on a connection of its own."""

    def __init__(self, data: DataBroker, partition: Partition, seed: int) -> None:
        self.random = random.Random(seed)
        self.data = data
        self.partition = partition
        self.loop = SocketLoop()
        dispatcher = Dispatcher(data.broker)
        limits = Limits(max_frame_bytes=1_000_000, max_idle_ms=600_000)
        self.shell = Shell(cast(Any, self.loop), dispatcher, data.loop.timers, cast(Any, None), limits)
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.client.setblocking(False)
        self.connection = Connection(self.shell, PlainSocket(ours), RequestContext())
        self.sent: list[Sent] = []
        self.next_sequence = 0
        self.unread = b""
        self.answered = 0
        self.acknowledged = 0

    @property
    def now(self) -> float:
        return self.shell.monotonic_ms()

    def send(self) -> None:
        """Send some batches: new ones, ones that were sent before, and now and then one after a gap."""
        for _ in range(self.random.choice([1, 1, 3, 8, 25])):
            choice, sequence = self.random.random(), self.next_sequence
            if choice < 0.1 and sequence > KEPT:
                sequence -= self.random.randint(1, KEPT)
            elif choice < 0.15 and sequence:  # the first batch of a producer may have any number
                sequence += 2
            acks = self.random.choice([-1, -1, -1, -1, 1, 0])
            is_refused = sequence > self.next_sequence
            if is_refused:
                acks = -1  # one with acks=0 ends the connection
            self.next_sequence += sequence == self.next_sequence
            self.put(Sent(sequence, acks, is_refused, self.now))

    def put(self, sent: Sent) -> None:
        """Send one request."""
        options = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=sent.sequence)
        data = PartitionProduceData(index=0, records=memoryview(batch(b"%d" % sent.sequence, options=options)))
        topics = [TopicProduceData(name="t", partition_data=[data])]
        request = ProduceRequest(acks=sent.acks, timeout_ms=TIMEOUT_MS, topic_data=topics)
        frame = struct.pack(">hhihx", ApiKey.PRODUCE, VERSION, len(self.sent), -1) + request.encode(VERSION)
        self.sent.append(sent)
        self.client.sendall(struct.pack(">i", len(frame)) + frame)

    def turn(self) -> None:
        self.loop.turn()
        self.data.loop.run_soon()
        self.receive()

    def wait(self) -> None:
        self.data.loop.advance(self.random.choice([1.0, 50.0, 700.0]))
        self.receive()

    def receive(self) -> None:
        """Check what came against what is committed by now."""
        with contextlib.suppress(BlockingIOError):
            while data := self.client.recv(65536):
                self.unread += data
        while len(self.unread) >= 4:
            (size,) = struct.unpack_from(">i", self.unread)
            frame, self.unread = self.unread[4 : 4 + size], self.unread[4 + size :]
            (number,) = struct.unpack_from(">i", frame)
            while not self.sent[self.answered].acks:
                self.answered += 1
            assert number == self.answered, "answers come in the order of their requests, each once"
            self.answered += 1
            self.check(self.sent[number], ProduceResponse.decode(memoryview(frame)[5:], VERSION))

    def check(self, sent: Sent, response: ProduceResponse) -> None:
        """Check an answer: what it says is so now."""
        (answer,) = response.responses[0].partition_responses
        if sent.is_refused:
            assert answer.error_code == OutOfOrderSequenceNumberError.code
            return
        if answer.error_code == RequestTimedOutError.code:
            assert self.now - sent.sent_ms >= TIMEOUT_MS
            return
        assert (answer.error_code, answer.base_offset) == (0, sent.sequence)
        if sent.acks == -1:
            assert sent.sequence < self.committed
            self.acknowledged += 1

    @property
    def committed(self) -> int:
        """The offset up to which records are safe."""
        log = self.partition.local_log
        return log.recovery_point if log.config.flush_messages == 1 else log.high_watermark

    def settle(self) -> None:
        """Turn until all is answered."""
        for _ in range(len(self.sent) + 50):
            self.turn()
        while self.answered < len(self.sent) and not self.sent[self.answered].acks:
            self.answered += 1
        assert self.answered == len(self.sent)
        assert self.partition.local_log.log_end_offset == self.next_sequence
        assert not self.connection.closed

    def close(self) -> None:
        self.connection.close()
        self.client.close()


@contextlib.contextmanager
def closing(data: DataBroker, partition: Partition, seed: int) -> Iterator[Producer]:
    producer = Producer(data, partition, seed)
    try:
        yield producer
    finally:
        producer.close()
        data.close()


@pytest.mark.parametrize("seed", range(3))
def test_acknowledged_records_are_on_all_replicas(tmp_path: Path, seed: int) -> None:
    data = ReplicatedBroker(tmp_path)
    ends = {2: 0, 3: 0}

    def follow(replica: int) -> None:
        data.fetch(replica, ends[replica])
        ends[replica] = producer.random.randint(ends[replica], data.partition.log_end_offset)

    with closing(data, data.partition, seed) as producer:
        for _ in range(100):
            follower = producer.random.choice([2, 3])
            for act in producer.random.sample([producer.send, producer.turn, producer.turn, producer.wait], 2):
                act()
            follow(follower)
        for _ in range(30):
            producer.turn()
            for replica in (2, 3):
                ends[replica] = data.partition.log_end_offset
                data.fetch(replica, ends[replica])
        producer.settle()
        assert producer.acknowledged > 50


@pytest.mark.parametrize("seed", range(3))
def test_acknowledged_records_are_on_the_disk(tmp_path: Path, seed: int) -> None:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 1, configs={"flush.messages": "1"})
    with closing(data, data.replica_manager.partition("t", 0), seed) as producer:
        for _ in range(100):
            producer.random.choice([producer.send, producer.turn, producer.turn, producer.wait])()
        producer.settle()
        assert producer.acknowledged > 50
