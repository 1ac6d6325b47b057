"""Jumps of the wall clock under a real broker process with real clients (fault F11 of docs/internals/faults.md): a
transaction, two groups, a share group, committed offsets, records under retention and an idle connection survive them.

The broker's Python reads the time through a file that holds the clock's error: :mod:`tests.faults.test_clock_jumps`
compares the state machines with those of a correct clock, in random steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.beside import Beside
from tests.support import raw_client
from tests.support.broker import TidelogProcess
from tests.support.raw_requests import (
    EARLIEST,
    commit_offset,
    committed_offset,
    create,
    offset,
    produce,
)
from tests.support.share_client import ACCEPT, ShareClient, read_from_earliest
from tidelog.client import Client
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

HOUR_S, DAY_S = 3_600, 86_400
JUMPS_S = (5 * HOUR_S, 0, -5 * HOUR_S, 3 * DAY_S, -3 * DAY_S, 0)
"""Errors of the clock in seconds, set one after the other."""
JOBS_MS = 200
ROUNDS = 5
"""Number of runs of each job during one jump."""
LIMIT_S = 60.0
SHIFTED = """
import sys, time
path, now_ns = sys.argv.pop(1), time.time_ns

def time_ns():
    with open(path) as file:
        return now_ns() + int(file.read() or 0) * 1_000_000_000

time.time_ns = time_ns
time.time = lambda: time_ns() / 1e9
from tidelog import cli
sys.exit(cli.main())
"""
OVERRIDES = {
    "log.retention.check.interval.ms": str(JOBS_MS),
    "offsets.retention.check.interval.ms": str(JOBS_MS),
    "offsets.retention.minutes": "60",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(JOBS_MS),
    "transaction.remove.expired.transaction.cleanup.interval.ms": str(JOBS_MS),
    "transactional.id.expiration.ms": str(HOUR_S * 1000),
    "producer.id.expiration.ms": str(HOUR_S * 1000),
    "producer.id.expiration.check.interval.ms": str(JOBS_MS),
    "group.initial.rebalance.delay.ms": "0",
    "group.share.record.lock.duration.ms": "60000",  # the test takes 18 s, and longer beside other programs
}


class ShiftedProcess(TidelogProcess):
    """A broker whose wall clock has an error, which a file gives in seconds."""

    @property
    def clock(self) -> Path:
        return self.directory / "clock"

    def command(self) -> list[str]:
        self.set_clock(0)
        return [sys.executable, "-I", "-c", SHIFTED, str(self.clock), *super().command()[4:]]

    def set_clock(self, error_s: int) -> None:
        """Set the clock's error by replacing the file: a file that is being written would be read as 0."""
        written = self.directory / "clock.new"
        written.write_text(str(error_s))
        written.replace(self.clock)


class Member(Beside):
    """A group member that polls in a thread; it counts its assignments and keeps the values that it read."""

    def __init__(self, bootstrap: str, protocol: str) -> None:
        super().__init__()
        self.assignments = 0
        self.values: list[bytes] = []
        settings = {
            "bootstrap.servers": bootstrap, "group.id": protocol, "group.protocol": protocol,
            "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0,
        }  # fmt: skip
        self._consumer = Consumer(settings | ({"session.timeout.ms": 30_000} if protocol == "classic" else {}))

    def run(self) -> None:
        self._consumer.subscribe(["kept"], on_assign=self._note)
        while not self.is_ended.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.values.append(message.value() or b"")
        self._consumer.close()

    def _note(self, *_: object) -> None:
        self.assignments += 1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ShiftedProcess]:
    with ShiftedProcess(tmp_path, OVERRIDES) as broker:
        any_time = str(2**63 - 1)
        for topic in ("kept", "shared", "transactions"):
            create(broker.port, topic, retention_ms=str(HOUR_S * 1000), segment_bytes="1000",
                   message_timestamp_after_max_ms=any_time)  # fmt: skip
        yield broker
        assert "Traceback" not in broker.output()


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for a state."""
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def begin_transaction(bootstrap: str, value: bytes) -> Producer:
    """Begin a transaction that may take ten minutes, and write into it."""
    settings = {"bootstrap.servers": bootstrap, "transactional.id": "t", "transaction.timeout.ms": 600_000}
    producer = Producer({**settings, "message.timeout.ms": 600_000, "log_level": 0})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce("transactions", value)
    assert producer.flush(LIMIT_S) == 0
    return producer


def share_member(client: Client) -> ShareClient:
    """Join a share group of ``shared``."""
    read_from_earliest(client, "share")
    found = client.send(MetadataRequest(topics=[MetadataRequestTopic(name="shared")]), MetadataResponse, 12)
    member = ShareClient(client, "share", ("shared", bytes(found.topics[0].topic_id)), "m")
    member.join()
    return member


def committed_values(bootstrap: str) -> list[bytes]:
    """Read the committed values of ``transactions``."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True})
    consumer.assign([TopicPartition("transactions", 0, 0)])
    found: list[bytes] = []
    try:
        while message := consumer.poll(LIMIT_S):
            if message.error() is not None:
                return found
            found.append(message.value() or b"")
    finally:
        consumer.close()
    raise KafkaException("no end of the partition")


def test_jumps_of_hours_and_days_expire_nothing_and_remove_no_member(broker: ShiftedProcess) -> None:
    now_ms = time.time_ns() // 1_000_000
    values: list[bytes] = []

    def write(value: bytes) -> None:
        assert produce(broker.port, "kept", value=value.ljust(400), timestamp=now_ms) == 0
        assert produce(broker.port, "shared", value=value, timestamp=now_ms) == 0
        values.append(value.ljust(400))

    for number in range(10):
        write(b"first-%d" % number)
    wait_until(lambda: commit_offset(broker.port, "empty", "kept", 7) == 0, "no coordinator")
    with (
        Client(broker.bootstrap) as client,
        raw_client.connect(broker.port) as idle,
        Member(broker.bootstrap, "classic") as classic,
        Member(broker.bootstrap, "consumer") as consumer,
    ):
        member = share_member(client)
        wait_until(lambda: classic.values == consumer.values == values, "the groups do not read")
        taken = {number for run in member.fetch() for number in range(run.first, run.last + 1)}
        transaction = begin_transaction(broker.bootstrap, b"t-0")
        for number, error_s in enumerate(JUMPS_S):
            broker.set_clock(error_s)
            for turn in range(ROUNDS):
                write(b"%d-%d" % (number, turn))
                time.sleep(2 * JOBS_MS / 1000)  # the jobs run in this time, and must expire nothing
            for first in sorted(taken)[:2]:
                assert member.acknowledge(first, first, ACCEPT) == 0, "a lock was lost"
                taken.remove(first)
            assert offset(broker.port, "kept", EARLIEST) == 0
            assert committed_offset(broker.port, "empty", "kept") == (0, 7)
            transaction.commit_transaction(LIMIT_S)
            transaction.begin_transaction()
            transaction.produce("transactions", b"t-%d" % (number + 1))
            assert transaction.flush(LIMIT_S) == 0
        transaction.commit_transaction(LIMIT_S)
        wait_until(lambda: classic.values == consumer.values == values, "the groups do not continue")
        assert (classic.assignments, consumer.assignments) == (1, 1)
        idle.sendall(raw_client.api_versions())
        assert raw_client.receive_frame(idle)
    assert committed_offset(broker.port, "empty", "kept") == (0, 7)
    assert committed_values(broker.bootstrap) == [b"t-%d" % number for number in range(len(JUMPS_S) + 1)]
