"""A broker on a small disk that is full, at any point of its life (fault F8 of docs/internals/faults.md). It serves
reads, answers produce requests with an error, says so in /readyz, deletes topics, and accepts records again when there
is free space, without a restart. No record is lost.

``FULL_DISK_SEEDS=50`` runs the random walk that often.
"""

from __future__ import annotations

import json
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.broker import TidelogProcess, free_port
from tests.support.raw_requests import (
    alter_config,
    commit_offset,
    committed_offset,
    config_of,
    create,
    delete_records,
    delete_topic,
    fetch_values,
    produced,
    try_delete_records,
)
from tests.support.small_disk import SmallDisk
from tidelog.log.system.reserve import RESERVE_FILE
from tidelog.protocol.errors import KafkaStorageError

DISK_BYTES = 24 << 20
PATIENCE_S = 60.0
SEEDS = range(int(os.environ.get("FULL_DISK_SEEDS", "2")))
CONFIGS: tuple[dict[str, str], ...] = (
    {},
    {"flush_messages": "1"},
    {"segment_bytes": "20000", "index_interval_bytes": "300"},
    {"cleanup_policy": "compact", "segment_bytes": "50000", "min_cleanable_dirty_ratio": "0.01"},
    {"index_keys": "true"},
)


class SmallBroker:
    """A broker whose data directory is a small disk of its own."""

    def __init__(self, directory: Path, disk: SmallDisk) -> None:
        self.disk = disk
        self.admin_port = free_port()
        overrides = {
            "admin.listener": f"127.0.0.1:{self.admin_port}",
            "log.retention.check.interval.ms": "1000",
            "log.retention.ms": "-1",
        }
        self.process = TidelogProcess(directory, overrides)

    @property
    def port(self) -> int:
        return self.process.port

    def ready(self) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/readyz", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallBroker]:
    directory = tmp_path / "broker"
    with SmallDisk(directory / "data", DISK_BYTES) as disk:
        broker = SmallBroker(directory, disk)
        with broker.process:
            yield broker
            broker.process.kill()
            assert "Traceback" not in broker.process.output()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def produce_until_refused(port: int, topic: str) -> dict[int, bytes]:
    """Produce until an append is refused; returns those taken: an append may fit into the last block of its file."""
    taken: dict[int, bytes] = {}
    for number in range(1000):
        value = b"%d " % number + bytes(8000)
        code, offset = produced(port, topic, value)
        if code:
            assert code == KafkaStorageError.code
            return taken
        taken[offset] = value
    raise AssertionError("a full disk took 8 MB")


def wait_until_taken(port: int, topic: str) -> None:
    wait_until(lambda: produced(port, topic, b"again")[0] == 0)


def fill_topic(port: int, topic: str, count: int = 60) -> dict[int, bytes]:
    values: dict[int, bytes] = {}
    for number in range(count):
        value = b"%s %d " % (topic.encode(), number) + bytes(400)
        code, offset = produced(port, topic, value)
        assert code == 0
        values[offset] = value
    return values


@pytest.mark.parametrize(
    "moment", ["running", "stopped", "killed", "stopped without reserve", "killed without reserve"]
)
def test_a_full_disk_reads_refuses_deletes_and_continues(small: SmallBroker, moment: str) -> None:
    create(small.port, "kept", 1, **CONFIGS[2])
    create(small.port, "synced", 1, **CONFIGS[1])
    create(small.port, "gone", 1)
    records = {topic: fill_topic(small.port, topic) for topic in ("kept", "synced", "gone")}
    assert small.ready() == (200, "ok\n")
    if moment != "running":
        small.process.kill() if moment.startswith("killed") else small.process.terminate()
        if "without" in moment:
            (small.disk.path / RESERVE_FILE).unlink(missing_ok=True)
    small.disk.fill()
    if moment != "running":
        small.process.start()

    for topic in ("kept", "synced"):
        for offset, value in produce_until_refused(small.port, topic).items():
            records[topic][offset] = value
    assert {topic: fetch_values(small.port, topic) for topic in records} == records
    status, text = small.ready()
    assert (status, "No space left on device" in text) == (503, True)
    if "without" not in moment:
        assert delete_records(small.port, "kept", 10) == 10
        assert delete_topic(small.port, "gone") == 0
        records["kept"] = {offset: value for offset, value in records["kept"].items() if offset >= 10}
        del records["gone"]
    small.disk.make_room()
    for topic in ("kept", "synced"):
        wait_until_taken(small.port, topic)
    wait_until(lambda: small.ready() == (200, "ok\n"))
    for topic, values in records.items():
        found = fetch_values(small.port, topic, min(values))
        assert {offset: found[offset] for offset in values} == values
    small.process.terminate()
    assert (small.disk.path / RESERVE_FILE).exists()


class Walk:
    """Random work on a broker whose disk fills and empties; knows what was acknowledged."""

    def __init__(self, small: SmallBroker, seed: int) -> None:
        self.small = small
        self.chance = random.Random(seed)
        self.records: dict[str, dict[int, bytes]] = {}
        self.starts: dict[str, int] = {}
        self.committed: dict[str, int] = {}
        self.compacted: set[str] = set()
        self.indexed: set[str] = set()
        self.altered: dict[str, str] = {}
        self._names = iter(range(1000))

    def create(self) -> None:
        name = f"t{next(self._names)}"
        configs = self.chance.choice(CONFIGS)
        try:
            create(self.small.port, name, 1, **configs)
        except AssertionError:  # refused: then it does not exist
            return
        self.records[name], self.starts[name] = {}, 0
        if "cleanup_policy" in configs:
            self.compacted.add(name)
        if "index_keys" in configs:
            self.indexed.add(name)

    def produce(self) -> None:
        for _ in range(self.chance.randrange(1, 30)):
            topic = self.chance.choice(list(self.records))
            value = os.urandom(8) + bytes(self.chance.choice((10, 1000, 9000)))
            code, offset = produced(self.small.port, topic, value)
            if code == 0:
                self.records[topic][offset] = value

    def is_taken(self, topic: str) -> bool:
        """Produce one record; whether it was acknowledged."""
        code, offset = produced(self.small.port, topic, b"again")
        if code == 0:
            self.records[topic][offset] = b"again"
        return code == 0

    def delete(self) -> None:
        topic = self.chance.choice(list(self.records))
        if len(self.records) <= 2:
            return
        if delete_topic(self.small.port, topic) == 0:
            del self.records[topic]
        else:
            assert not (self.small.disk.path / RESERVE_FILE).exists()

    def delete_records(self) -> None:
        topic = self.chance.choice(list(self.records))
        if self.records[topic] and topic not in self.compacted:
            self.starts[topic] = max(self.starts[topic], self.chance.choice(list(self.records[topic])))
            code, _ = try_delete_records(self.small.port, topic, self.starts[topic])
            # The ballast may have taken the room of a reserve that was given up: then nothing can be written at all.
            assert code == 0 or not (self.small.disk.path / RESERVE_FILE).exists()

    def commit(self) -> None:
        topic, committed = self.chance.choice(list(self.records)), self.chance.randrange(1000)
        if commit_offset(self.small.port, f"group {topic}", topic, committed) == 0:
            self.committed[topic] = committed

    def alter(self) -> None:
        """Change a config: a change that is refused changes nothing; one that is not holds over restarts."""
        topic, text = self.chance.choice(list(self.records)), str(self.chance.randrange(10**8, 10**9))
        code = alter_config(self.small.port, topic, "max.compaction.lag.ms", text)
        if code == 0:
            self.altered[topic] = text
        else:
            assert not (self.small.disk.path / RESERVE_FILE).exists()

    def kill(self) -> None:
        self.small.process.kill()
        self.small.process.start()

    def restart(self) -> None:
        self.small.process.terminate()
        self.small.process.start()

    def check(self) -> None:
        """Check that all acknowledged records can be read now, however full the disk is."""
        for topic, values in self.records.items():
            first = self.starts[topic]
            found = fetch_values(self.small.port, topic, first)
            expected = {offset: value for offset, value in values.items() if offset >= first}
            if topic in self.compacted:  # the cleaner keeps the last record of the only key, and no other value
                assert set(found.items()) >= set(list(expected.items())[-1:]), topic
                expected = {offset: value for offset, value in expected.items() if offset in found}
            assert {offset: found.get(offset) for offset in expected} == expected, topic

    def check_indices(self) -> None:
        """Check that every acknowledged record of an indexed topic is found by its key."""
        for topic in self.indexed & self.records.keys():
            url = f"http://127.0.0.1:{self.small.admin_port}/topics/{topic}/records?key=k&max=999999&wait=true"
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                found = {record["offset"] for record in json.load(answer)["records"]}
            assert found >= {offset for offset in self.records[topic] if offset >= self.starts[topic]}, topic


@pytest.mark.parametrize("seed", SEEDS)
def test_random_work_on_a_disk_that_fills_and_empties(small: SmallBroker, seed: int) -> None:
    walk = Walk(small, seed)
    small.process.overrides["log.cleaner.backoff.ms"] = "200"
    walk.restart()
    for _ in range(5):
        walk.create()
    steps = [walk.create, walk.produce, walk.produce, walk.delete, walk.delete_records, walk.commit, walk.alter,
             walk.kill, walk.restart, small.disk.fill, small.disk.fill, small.disk.make_room, walk.check]  # fmt: skip
    for _ in range(40):
        walk.chance.choice(steps)()
    walk.check()
    small.disk.make_room()
    for topic in walk.records:
        wait_until(partial(walk.is_taken, topic))
    wait_until(lambda: small.ready() == (200, "ok\n"))
    walk.check()
    walk.check_indices()
    for topic, text in walk.altered.items():
        assert topic not in walk.records or config_of(small.port, topic, "max.compaction.lag.ms") == text
    for topic, committed in walk.committed.items():
        if topic in walk.records:
            assert committed_offset(small.port, f"group {topic}", topic) == (0, committed)
    wait_until(lambda: commit_offset(small.port, "later", next(iter(walk.records)), 1) == 0)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("killed", [False, True], ids=["running", "killed"])
def test_a_transaction_ends_once_there_is_free_space(small: SmallBroker, commit: bool, killed: bool) -> None:
    """EndTxn, offsets and markers that find no room are tried again; the transaction is whole or not there."""
    create(small.port, "t", 3)
    settings = {
        "bootstrap.servers": f"127.0.0.1:{small.port}",
        "transactional.id": "x",
        "transaction.timeout.ms": 600_000,
    }
    producer = Producer({**settings, "reconnect.backoff.max.ms": 200, "linger.ms": 1})
    producer.init_transactions(30)
    for turn, is_full in enumerate((False, True, False)):
        producer.begin_transaction()
        for partition in range(3):
            producer.produce("t", b"%d" % turn, partition=partition)
        assert producer.flush(30) == 0
        if is_full:
            small.disk.fill()
            if killed:
                small.process.kill()
                small.process.start()
        ended, tries = False, 0
        while not ended:
            try:
                if commit or turn != 1:
                    producer.commit_transaction(3)
                else:
                    producer.abort_transaction(3)
                ended = True
            except KafkaException as error:
                assert error.args[0].retriable(), error  # noqa: PT017 - told apart from a lost transaction
                tries += 1
                assert tries < PATIENCE_S / 3
                small.disk.make_room()
        small.disk.make_room()
    expected = [b"0", b"1", b"2"] if commit else [b"0", b"2"]
    wait_until(lambda: [committed_values(small.port, partition) for partition in range(3)] == [expected] * 3)
    wait_until(lambda: small.ready() == (200, "ok\n"))


def committed_values(port: int, partition: int) -> list[bytes | None]:
    """Return what read_committed shows of a partition up to its last stable offset."""
    reader = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "r", "isolation.level": "read_committed",
                       "enable.partition.eof": True, "auto.offset.reset": "earliest"})  # fmt: skip
    reader.assign([TopicPartition("t", partition, 0)])
    found: list[bytes | None] = []
    try:
        while True:
            message = reader.poll(60)
            assert message is not None
            if message.error() is not None:
                return found
            found.append(message.value())
    finally:
        reader.close()
