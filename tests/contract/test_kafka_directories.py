"""Apache Kafka's own data directory, read by scans while it runs, rolls and deletes, and when it has stopped.

The reader asks no broker. Every scan must give a stretch of what was committed, in order, without a gap: what
retention has taken at its front is gone for Kafka's consumers, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

import tidelog
from tests.support.admin import Admin
from tests.support.apache_kafka import ApacheKafka
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tidelog.pipeline.errors import DataLossError, PipelineError, SelectionError
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.source import LogSource, choose

pytestmark = pytest.mark.java
pytest.importorskip("pyarrow")

SETTINGS = {
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "0",
    "log.flush.start.offset.checkpoint.interval.ms": "200",
    "replica.high.watermark.checkpoint.interval.ms": "200",
}
ROLLS_AND_DELETES = {"segment.bytes": str(1 << 20), "retention.bytes": str(3 << 20), "file.delete.delay.ms": "0"}
RECORDS = 12_000
WAIT_S = 60.0
VALUE = b"%08d " * 120
"""A thousand bytes: twelve segments, of which retention keeps three or four."""


@pytest.fixture(scope="module", params=[KAFKA_4, KAFKA_3])
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), SETTINGS, version=request.param, in_shared_jvm=True) as node:
        yield node


def number_of(value: bytes) -> int:
    number = int(value[:8])
    assert value == b"%08d " % number * 120
    return number


def produce(bootstrap: str, done: threading.Event) -> None:
    """Produce numbered records, in transactions every tenth of which is aborted and sent again."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "writer", "linger.ms": 5})
    producer.init_transactions(60)
    try:
        for turn, first in enumerate(range(0, RECORDS, 400)):
            for is_kept in (False, True) if turn % 10 == 0 else (True,):
                producer.begin_transaction()
                for number in range(first, first + 400):
                    value = b"%08d " % number * 120 if is_kept else b"aborted" * 140
                    producer.produce("rolling", value, b"%d" % (number % 10), partition=0)
                    producer.poll(0)
                producer.flush(60)  # an abort that comes before the partition was added is an error, with this client
                producer.commit_transaction(60) if is_kept else producer.abort_transaction(60)
    finally:
        done.set()


def numbers_of(path: Path) -> list[int]:
    scanned = tidelog.scan(path, "rolling", columns=["value"], isolation="read_committed")
    return [number_of(value) for batch in scanned for value in batch.column("value").to_pylist()]


def read_while(path: Path, done: threading.Event) -> list[list[int]]:
    """Read again and again until ``done``, and once more. Records may go before their file is opened."""
    found: list[list[int]] = []
    is_last = False
    while not is_last:
        is_last = done.is_set()
        try:
            numbers = numbers_of(path)
        except SelectionError:
            continue  # the topic is not there yet
        except DataLossError:
            is_last = False
            continue
        assert numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else True
        found.append(numbers)
    return found


def consumed(bootstrap: str) -> list[int]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest",
            "isolation.level": "read_committed", "enable.partition.eof": True,
        }
    )  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition("rolling", 0, confluent_kafka.OFFSET_BEGINNING)])
    found: list[int] = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
            consumer.close()
            return found
        value = message.value()
        assert value is not None
        found.append(number_of(value))


def test_a_running_kafkas_directory_rolls_and_deletes_under_the_reader(kafka: ApacheKafka) -> None:
    Admin(kafka.bootstrap).create("rolling", 1, ROLLS_AND_DELETES)
    done = threading.Event()
    writer = threading.Thread(target=produce, args=(kafka.bootstrap, done), daemon=True)
    writer.start()
    found = read_while(kafka.data_directory, done)
    writer.join()
    deadline = time.monotonic() + WAIT_S
    while found[-1][-1] != RECORDS - 1:  # a commit is answered before its markers are written
        assert time.monotonic() < deadline, f"the last record that is read is {found[-1][-1]}"
        found += read_while(kafka.data_directory, done)
    assert any(numbers[0] > 0 for numbers in found if numbers), "retention has deleted under the reader"
    kafka.terminate()
    stopped = numbers_of(kafka.data_directory)
    result = audit(None, AuditRequest(LogSource((str(kafka.data_directory),), choose("rolling", None, None))))
    assert not result.is_wrong
    kafka.start()
    again = consumed(kafka.bootstrap)
    assert stopped[-len(again) :] == again, "retention may have gone on"


def test_a_topic_that_is_deleted_under_the_reader_ends_in_an_error_that_says_so(kafka: ApacheKafka) -> None:
    admin = Admin(kafka.bootstrap)
    admin.create("deleted", 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(10):
        producer.produce("deleted", b"%d" % number)
    producer.flush(60)
    reader = tidelog.scan(kafka.data_directory, "deleted")
    admin.delete("deleted")
    while (kafka.data_directory / "deleted-0").exists():
        time.sleep(0.01)
    with pytest.raises(PipelineError, match=r"deleted-0.*(deleted|gone)"):
        reader.read_all()
    with pytest.raises(SelectionError, match="topic deleted has no partition"):
        tidelog.scan(kafka.data_directory, "deleted")
