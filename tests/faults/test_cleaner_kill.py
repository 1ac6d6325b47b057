"""kill -9 of a broker in the middle of compaction rounds, many times. Afterwards the last acknowledged record of each
key is there, no record that was not written is there, and the directory passes ``tidelog check``."""

from __future__ import annotations

import itertools
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.admin import Admin
from tests.support.broker import TidelogProcess
from tidelog.cli import main
from tidelog.commands.running.compaction import admin_address

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "compacted"
#: From the request for a round to the kill. A round over 1 MB takes 30 to 300 ms, the first one also imports numpy.
DELAYS_S = (0.002, 0.02, 0.05, 0.08, 0.12, 0.2, 0.4, 0.8, 1.5, 3.0)
RECORDS = 4_000
KEYS = 700
CONFIG = {"cleanup.policy": "compact", "segment.bytes": "100000", "min.cleanable.dirty.ratio": "1.0"}


class Model:
    """Acknowledged records: key -> (offset, value) of its last record, and every value by offset."""

    def __init__(self) -> None:
        self.latest: dict[bytes, tuple[int, bytes]] = {}
        self.values: dict[int, bytes] = {}

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Note a record that the producer's delivery report names."""
        assert error is None, error
        offset, key, value = message.offset(), message.key(), message.value()
        assert offset is not None
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        self.values[offset] = value
        self.latest[key] = max(self.latest.get(key, (-1, b"")), (offset, value))


def produce(bootstrap: str, model: Model, numbers: Iterator[int]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2, "batch.num.messages": 50})
    for number in itertools.islice(numbers, RECORDS):
        key = b"key %d" % (number * 7919 % KEYS)
        producer.produce(TOPIC, b"%d " % number + bytes(180), key, on_delivery=model.delivered)
        producer.poll(0)
    producer.flush()


def request_round(bootstrap: str) -> None:
    host, port = admin_address(bootstrap)
    request = urllib.request.Request(f"http://{host}:{port}/compaction/{TOPIC}?wait=0", method="POST")
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 202


def read_all(bootstrap: str) -> dict[int, tuple[bytes, bytes]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    try:
        end = Admin(bootstrap).offset(TOPIC, 0, "latest")
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: dict[int, tuple[bytes, bytes]] = {}
        last = -1
        while last < end - 1:
            message = consumer.poll(30)
            assert message is not None, "the consumer got no record in time"
            assert message.error() is None
            offset, key, value = message.offset(), message.key(), message.value()
            assert isinstance(offset, int)
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            found[offset] = key, value
            last = offset
        return found
    finally:
        consumer.close()


def test_kills_in_rounds_leave_every_latest_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, numbers = Model(), itertools.count()
    leftovers = 0
    with TidelogProcess(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIG)])[TOPIC].result()
        partition = broker.data_directory / f"{TOPIC}-0"
        for delay_s in DELAYS_S:
            produce(broker.bootstrap, model, numbers)
            request_round(broker.bootstrap)
            killer = threading.Timer(delay_s, broker.kill)
            killer.start()
            killer.join()
            leftovers += any(path.suffix in (".cleaned", ".swap", ".deleted") for path in partition.iterdir())
            broker.start()
            found = read_all(broker.bootstrap)
            assert {offset: value for offset, (_, value) in found.items()}.items() <= model.values.items()
            assert {key: (offset, found[offset][1]) for key, (offset, _) in model.latest.items()} == model.latest
        assert main(["compaction", "run", TOPIC, "--wait", "--bootstrap", broker.bootstrap]) == 0
        assert f"to {KEYS} records" in capsys.readouterr().out
        assert len(read_all(broker.bootstrap)) == KEYS

    assert leftovers, "no kill came into a round: the delays are wrong for this machine"
    assert main(["check", str(broker.data_directory)]) == 0
