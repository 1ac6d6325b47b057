"""kill -9 of a real process under load, many times (faults F1, F3 and F19 of docs/internals/faults.md): afterwards all
acknowledged records are there.

Each round a few producers write batches of their own making (offset, producer and number are in the value); small
segments roll all the time, and the broker dies at a moment the seed chooses; some rounds kill it again while it
recovers. After the last round ``tidelog check`` must find nothing. ``TIDELOG_KILL_SEED`` and ``TIDELOG_KILL_ROUNDS``
replay or lengthen the loop.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.rivals.process import BrokerError
from tests.support import raw_client
from tests.support.broker import TidelogProcess
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

TOPIC = "killed"
ROUNDS = int(os.environ.get("TIDELOG_KILL_ROUNDS", "5"))
PRODUCERS = 3
NOW_MS = 1_700_000_000_000
OVERRIDES = {
    "log.segment.bytes": "40000",
    "log.index.interval.bytes": "500",
    "log.flush.scheduler.interval.ms": "50",
    "log.flush.offset.checkpoint.interval.ms": "50",
}


def value_of(producer: int, sequence: int) -> bytes:
    return b"%d/%d/" % (producer, sequence) + b"x" * (sequence % 700)


class Producer(threading.Thread):
    """An idempotent producer that continues after its last acknowledgement, round after round."""

    def __init__(self, number: int) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.sequence = 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        """Offset -> (producer, sequence) of every acknowledged record."""
        self.errors: list[int] = []
        self.port = 0

    def request(self) -> bytes:
        options = BatchOptions(producer_id=1000 + self.number, producer_epoch=0, base_sequence=self.sequence)
        record = Record(0, NOW_MS + self.sequence, b"%d" % self.number, value_of(self.number, self.sequence))
        batch = build_batch([record], options)
        data = [PartitionProduceData(index=0, records=memoryview(batch))]
        topics = [TopicProduceData(name=TOPIC, partition_data=data)]
        return raw_client.frame(0, 7, 1, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics).encode(7))

    def run(self) -> None:
        with contextlib.suppress(OSError, EOFError), raw_client.connect(self.port) as connection:
            while True:
                connection.sendall(self.request())
                _, error, offset = raw_client.receive_produced(connection)
                if error:
                    self.errors.append(error)
                    return
                self.acknowledged[offset] = (self.number, self.sequence)
                self.sequence += 1

    def next_round(self, port: int) -> Producer:
        """Return another thread that continues with the state of this one: a thread runs only once."""
        successor = Producer(self.number)
        successor.sequence, successor.acknowledged, successor.port = self.sequence, self.acknowledged, port
        return successor


def read_all(port: int) -> dict[int, bytes]:
    """Read the value of every record, by offset. Fails on a gap, a repetition or a wrong CRC."""
    found: dict[int, bytes] = {}
    with raw_client.connect(port) as connection:
        while True:
            partition = FetchPartition(partition=0, fetch_offset=len(found), partition_max_bytes=1 << 20)
            topics = [FetchTopic(topic=TOPIC, partitions=[partition])]
            request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 22, session_epoch=-1, topics=topics)
            connection.sendall(raw_client.frame(1, 7, 1, request.encode(7)))
            answer = FetchResponse.decode(memoryview(raw_client.receive_frame(connection))[4:], 7)
            data = answer.responses[0].partitions[0]
            assert data.error_code == 0
            before = len(found)
            records = data.records or b""
            assert isinstance(records, bytes | memoryview)
            for batch in iter_batches(records):
                batch.ensure_valid()
                for record in batch.records():
                    assert record.offset == len(found), "a gap or an offset twice"
                    assert record.value is not None
                    found[record.offset] = bytes(record.value)
            if len(found) == before:
                return found


def verify(found: dict[int, bytes], producers: list[Producer]) -> None:
    for producer in producers:
        for offset, (number, sequence) in producer.acknowledged.items():
            assert found.get(offset) == value_of(number, sequence), f"offset {offset} was acknowledged"
        # Idempotence over kills: each sequence once, in order, none left out.
        prefix = b"%d/" % producer.number
        mine = [int(value.split(b"/")[1]) for value in found.values() if value.startswith(prefix)]
        assert mine == list(range(len(mine)))


def kill_while_recovering(broker: TidelogProcess, delay_s: float) -> None:
    """Start, and kill before or after it is ready (F3)."""

    def kill() -> None:
        if broker.process is not None:
            broker.process.kill()

    killer = threading.Timer(delay_s, kill)
    killer.start()
    with contextlib.suppress(BrokerError):
        broker.start()
    killer.join()
    broker.kill()


def kill_in_rounds(broker: TidelogProcess, chance: random.Random) -> None:
    """Load, kill, recover, compare, over and over."""
    with raw_client.connect(broker.port) as connection:
        connection.sendall(raw_client.frame(3, 1, 1, struct.pack(">ih", 1, len(TOPIC)) + TOPIC.encode()))
        raw_client.receive_frame(connection)
    producers = [Producer(number) for number in range(PRODUCERS)]
    for number in range(ROUNDS):
        producers = [producer.next_round(broker.port) for producer in producers]
        for producer in producers:
            producer.start()
        time.sleep(chance.uniform(0.05, 0.6))
        broker.kill()
        for producer in producers:
            producer.join()
            assert producer.errors == [], f"round {number}: a retry after a kill was not taken for one"
        if number % 2:
            kill_while_recovering(broker, chance.uniform(0.02, 0.3))
        broker.start()
        verify(read_all(broker.port), producers)
    assert sum(len(producer.acknowledged) for producer in producers) > 100


@pytest.mark.timeout(300)
def test_acknowledged_records_survive_kills_again_and_again(tmp_path: Path) -> None:
    seed = int(os.environ.get("TIDELOG_KILL_SEED", str(random.SystemRandom().randrange(10**6))))
    print(f"TIDELOG_KILL_SEED={seed}")
    with TidelogProcess(tmp_path, OVERRIDES) as broker:
        kill_in_rounds(broker, random.Random(seed))
        broker.terminate()
    command = [sys.executable, "-m", "tidelog.cli", "check", str(broker.data_directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
