"""Sample records of every kind that a partition directory can hold, written to any broker, and read back from it.

Topics (each name with a prefix):

    codecs                          one partition for each codec, several segments
    compacted                       records with keys and tombstones; cleaned
    transactions                    committed and aborted transactions, and an open one
    trimmed                         the first records are deleted by DeleteRecords
    format.0, format.1,             records of the old message formats, if the broker writes them
    compacted.0, compacted.1
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.admin import LOADING, Admin
from tests.support.real_text import Line, real_lines
from tidelog.log.files.checkpoints import LOG_START_OFFSET_FILE, read_offset_checkpoint
from tidelog.log.files.topic_partition import TopicPartition as Place
from tidelog.log.system.file_system import OsFileSystem

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OLD_CODECS = CODECS[:4]
"""zstd came with message format 2."""
LINES = 1_200
KEYS = 40
GROUP = "readers"
OPEN_TRANSACTION = "left-open"
READ_TIMEOUT_S = 60.0
FLUSH_TIMEOUT_S = 60.0
RETRY_S = 0.1
SEGMENT_BYTES = "30000"
CLEAN_TIMEOUT_S = 60.0
POLL_S = 0.1
FILE_SYSTEM = OsFileSystem()


def sample_lines() -> tuple[Line, ...]:
    """Return the lines that the samples are made of: LINES for each codec."""
    return real_lines(len(CODECS) * LINES)


@dataclass(frozen=True, slots=True)
class Served:
    """One record as librdkafka reports it; ``timestamp`` is (type, milliseconds)."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: tuple[int, int]


Partition = tuple[str, int]
Records = dict[int, Served]


@dataclass(slots=True)
class Picture:
    """All records of a broker by partition and offset, as each isolation level reads them, and the logs' offsets."""

    uncommitted: dict[Partition, Records] = field(default_factory=dict)
    committed: dict[Partition, Records] = field(default_factory=dict)
    starts: dict[Partition, int] = field(default_factory=dict)
    ends: dict[Partition, int] = field(default_factory=dict)


class Samples:
    """The writer of the sample topics to one broker. ``segment_key`` is the topic config for the size of segments."""

    def __init__(
        self, bootstrap: str, prefix: str, *, segment_key: str = "segment.bytes", segment_bytes: str = SEGMENT_BYTES
    ) -> None:
        self.bootstrap = bootstrap
        self._prefix = prefix
        self._small = {segment_key: segment_bytes, "index.interval.bytes": "1024"}
        self._producers: list[Any] = []
        self.topics: dict[str, int] = {}
        self.configs: dict[str, dict[str, str]] = {}

    def name(self, topic: str) -> str:
        """Return the topic's name on the broker."""
        return self._prefix + topic

    def write(self, *, old_formats: bool = False) -> None:
        """Create and fill all topics. One transaction stays open until ``close``."""
        self._write_codecs("codecs", CODECS)
        self._write_compacted("compacted")
        self._write_transactions()
        self._write_trimmed()
        if old_formats:
            for number, version in enumerate(("0.9.0", "0.10.2")):
                configs = {"message.format.version": version}
                self._write_codecs(f"format.{number}", OLD_CODECS, configs)
                self._write_compacted(f"compacted.{number}", configs)
        self._commit_offsets()

    def close(self) -> None:
        """Drop the producer of the open transaction, after the broker has ended."""
        self._producers.clear()

    def _create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> str:
        name = self.name(topic)
        self.configs[name] = {**self._small, **configs}
        Admin(self.bootstrap).create(name, partitions, self.configs[name])
        self.topics[name] = partitions
        return name

    def _producer(self, **settings: Any) -> Any:
        base = {"bootstrap.servers": self.bootstrap, "acks": "all", "linger.ms": 5, "batch.size": 4_000, "log_level": 0}
        return Producer({**base, **{key.replace("_", "."): value for key, value in settings.items()}})

    def _write_codecs(self, topic: str, codecs: tuple[str, ...], configs: Mapping[str, str] | None = None) -> None:
        name = self._create(topic, len(codecs), {"retention.ms": "-1", **(configs or {})})
        for partition, codec in enumerate(codecs):
            producer = self._producer(compression_type=codec)
            for line in sample_lines()[partition * LINES : (partition + 1) * LINES]:
                headers = None if configs else [("line", b"%d" % line.number)]
                producer.produce(name, line.text, line.section, partition=partition, headers=headers)
            _flush(producer)

    def _write_compacted(self, topic: str, configs: Mapping[str, str] | None = None) -> None:
        policy = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        name = self._create(topic, 1, {**policy, **(configs or {})})
        producer = self._producer(compression_type="lz4")
        for line in sample_lines()[:LINES]:
            key = b"key-%d" % (line.number % KEYS)
            producer.produce(name, None if line.number % 97 == 0 else line.text, key)
        _flush(producer)

    def _write_transactions(self) -> None:
        name = self._create("transactions", 1, {})
        plain = self._producer(enable_idempotence=True)
        producer = self._producer(transactional_id="finished", compression_type="zstd")
        producer.init_transactions(READ_TIMEOUT_S)
        for number in range(12):
            producer.begin_transaction()
            self._produce_lines(producer, name, number)
            self._produce_lines(plain, name, number)
            (producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)()
        unfinished = self._producer(transactional_id=OPEN_TRANSACTION, transaction_timeout_ms=800_000)
        unfinished.init_transactions(READ_TIMEOUT_S)
        unfinished.begin_transaction()
        self._produce_lines(unfinished, name, 13)
        self._produce_lines(plain, name, 13)
        self._producers.append(unfinished)

    @staticmethod
    def _produce_lines(producer: Any, name: str, number: int) -> None:
        for line in sample_lines()[number * 80 : number * 80 + 80]:
            producer.produce(name, line.text, line.section)
        _flush(producer)

    def _write_trimmed(self) -> None:
        name = self._create("trimmed", 1, {})
        producer = self._producer()
        for line in sample_lines()[:LINES]:
            producer.produce(name, line.text, line.section)
        _flush(producer)
        assert Admin(self.bootstrap).delete_records(name, 0, LINES // 2 + 7) == LINES // 2 + 7

    def _commit_offsets(self) -> None:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": GROUP, "log_level": 0})
        deadline = time.monotonic() + READ_TIMEOUT_S
        while True:
            try:
                consumer.commit(offsets=self.committed_offsets(), asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() not in LOADING or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)  # the coordinator has just been created and loads
            else:
                break
        consumer.close()

    def committed_offsets(self) -> list[TopicPartition]:
        """Return the offsets that the group commits."""
        name = self.name("codecs")
        return [TopicPartition(name, partition, 100 + partition, "checked") for partition in range(len(CODECS))]


def wait_until_cleaned(data: Path, samples: Samples) -> None:
    """Wait until the cleaner has cleaned the compacted topics up to their active segments, and log start offsets are on
    disk."""
    compacted = [Place(topic, 0) for topic in samples.topics if ".compacted" in topic]
    deadline = time.monotonic() + CLEAN_TIMEOUT_S
    while not (
        all(_cleaned_to(data, place) == _active_segment(data / str(place)) for place in compacted)
        and Place(samples.name("trimmed"), 0) in read_offset_checkpoint(FILE_SYSTEM, str(data / LOG_START_OFFSET_FILE))
    ):
        assert time.monotonic() < deadline, "the cleaner or the checkpoint of start offsets did not come about"
        time.sleep(POLL_S)


def _cleaned_to(data: Path, place: Place) -> int:
    return read_offset_checkpoint(FILE_SYSTEM, str(data / "cleaner-offset-checkpoint")).get(place, 0)


def _active_segment(directory: Path) -> int:
    return max(int(path.name[:20]) for path in directory.glob("*.log"))


def _flush(producer: Any) -> None:
    assert producer.flush(FLUSH_TIMEOUT_S) == 0


def picture(bootstrap: str, topics: Mapping[str, int]) -> Picture:
    """Read all records of these topics."""
    places = [(topic, partition) for topic, count in topics.items() for partition in range(count)]
    seen = Picture()
    seen.uncommitted = _read(bootstrap, places, "read_uncommitted")
    seen.committed = _read(bootstrap, places, "read_committed")
    consumer = _consumer(bootstrap, "read_uncommitted")
    for topic, partition in places:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=READ_TIMEOUT_S)
        seen.starts[topic, partition], seen.ends[topic, partition] = low, high
    consumer.close()
    return seen


def _consumer(bootstrap: str, isolation: str) -> Any:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-without-a-group",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )


def _read(bootstrap: str, places: list[Partition], isolation: str) -> dict[Partition, Records]:
    """Read every partition from its start to its end."""
    consumer = _consumer(bootstrap, isolation)
    found: dict[Partition, Records] = {place: {} for place in places}
    left = set(places)
    consumer.assign([TopicPartition(*place, confluent_kafka.OFFSET_BEGINNING) for place in places])
    deadline = time.monotonic() + READ_TIMEOUT_S
    while left:
        assert time.monotonic() < deadline, f"no end of {left}"
        for message in consumer.consume(5_000, timeout=0.1):
            place = message.topic(), message.partition()
            error = message.error()
            if error is None:
                assert message.offset() not in found[place], "an offset came twice"
                found[place][message.offset()] = _served(message)
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                left.discard(place)
    consumer.close()
    return found


def _served(message: Any) -> Served:
    return Served(message.key(), message.value(), tuple(message.headers() or ()), message.timestamp())
