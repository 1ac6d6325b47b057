"""Apache Kafka's own cleaner as the oracle: the same log, cleaned by both, keeps equal records.

A Kafka node without a cleaner takes produced, transactional and deleted records; its partition directory is copied.
Then Kafka, restarted with its cleaner, cleans the original, and Tidelog's cleaner the copy.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.apache_kafka import ApacheKafka
from tests.support.cleaning import records_of, whole
from tests.support.kafka_jars import broker_classpath
from tidelog.cleaner.engine.engine import ENGINE, Engine, ReferenceEngine
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions
from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.checkpoints import CLEANER_OFFSET_FILE, CheckpointCorruptError, read_offset_checkpoint
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import SystemTime
from tidelog.protocol.record.record_batch import Record

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

PARTITION = TopicPartition("compacted", 0)
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1024 * 1024),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "86400000",
}
WITHOUT_CLEANER = {"log.cleaner.enable": "false"}
WITH_CLEANER = {"log.cleaner.backoff.ms": "100"}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WAIT_S = 120.0
Headers = list[tuple[str, str | bytes | None]] | None


def produce(bootstrap: str) -> None:
    """Produce several MiB over 300 keys: every codec, tombstones, headers, committed and aborted transactions."""
    rng = random.Random(7)
    for round_number in range(3):
        for codec in CODECS:
            producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 5})
            for _ in range(400):
                value = None if rng.random() < 0.1 else rng.randbytes(600)
                headers: Headers = [("n", b"%d" % round_number)] if rng.random() < 0.3 else None
                producer.produce(PARTITION.topic, value, b"key %d" % rng.randrange(300), headers=headers)
                producer.poll(0)
            producer.flush()
        for number in range(6):
            transact(bootstrap, rng, f"{round_number}-{number}", commit=number % 2 == 0)


def transact(bootstrap: str, rng: random.Random, name: str, *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(20):
        producer.produce(PARTITION.topic, rng.randbytes(300), b"key %d" % rng.randrange(300))
    producer.flush()
    producer.commit_transaction() if commit else producer.abort_transaction()


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A log directory as Kafka's cleaner left it, and a copy of the log from before."""
    broker_classpath()
    root = tmp_path_factory.mktemp("oracle")
    before = root / "before"
    before.mkdir()
    with ApacheKafka(root / "kafka", WITHOUT_CLEANER, in_shared_jvm=True) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for created in admin.create_topics([NewTopic(PARTITION.topic, 1, 1, config=TOPIC_CONFIG)]).values():
            created.result()
        produce(kafka.bootstrap)
    data = kafka.data_directory
    shutil.copytree(data / PARTITION.directory_name, before / PARTITION.directory_name)
    with ApacheKafka(root / "kafka", WITH_CLEANER, port=kafka.port, in_shared_jvm=True):
        wait_until_cleaned(data, last_base_offset(before))
    yield data, before
    shutil.rmtree(root, ignore_errors=True)


def last_base_offset(directory: Path) -> int:
    return max(int(path.stem) for path in (directory / PARTITION.directory_name).glob("*.log"))


def wait_until_cleaned(data: Path, end: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(CheckpointCorruptError):  # Kafka makes it empty first
            offsets = read_offset_checkpoint(OsFileSystem(), str(data / CLEANER_OFFSET_FILE))
            if offsets.get(PARTITION, -1) >= end:
                return
        time.sleep(0.1)
    pytest.fail(f"Kafka's cleaner did not reach offset {end}")


def load(directory: Path, end: int) -> tuple[list[Record], list[Record]]:
    """Return data and control records of the closed segments below ``end``."""
    log = load_log(request_for(directory))
    try:
        return tuple([r for r in records_of(log, control=c) if r.offset < end] for c in (False, True))  # type: ignore[return-value]
    finally:
        log.close()


def request_for(directory: Path) -> LoadRequest:
    return LoadRequest(
        PARTITION,
        str(directory / PARTITION.directory_name),
        LogConfig(TOPIC_CONFIG),
        LogEnvironment(OsFileSystem(), SystemTime()),
        DirectoryState(str(directory)),
    )


@pytest.mark.parametrize("engine", [ReferenceEngine(), ENGINE], ids=["reference", "as built"])
@pytest.mark.parametrize("map_bytes", [1024 * 1024, 1024], ids=["map", "hash ranges"])
def test_both_cleaners_leave_equal_records(
    directories: tuple[Path, Path], tmp_path: Path, engine: Engine, map_bytes: int
) -> None:
    theirs, before = directories
    ours = tmp_path / "ours"
    shutil.copytree(before, ours)
    end = last_base_offset(before)
    dirty = load(before, end)

    log = load_log(request_for(ours))
    log.update_high_watermark(log.log_end_offset)
    Cleaner(engine, CleanerOptions(map_bytes=map_bytes)).clean(whole(log), SystemTime().milliseconds())
    log.close()

    expected, found = load(theirs, end), load(ours, end)
    assert len(expected[0]) < len(dirty[0]) / 5
    assert found[0] == expected[0]
    assert found[1] == expected[1]
