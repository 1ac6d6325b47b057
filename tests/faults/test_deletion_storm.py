"""Topics created, deleted, extended and changed in random order on a real broker, beside producers, readers and every
job.

Retention every 20 ms, cleaner and indexer busy, segments of some kilobytes, files that go at once. Nothing goes
offline, no client is told KAFKA_STORAGE_ERROR, and at the end nothing is left on the disk. ``TIDELOG_STORM_SECONDS``
lengthens it (``make deletions``), ``TIDELOG_STORM_SEED`` chooses others.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from tests.support import raw_client
from tests.support.broker import TidelogProcess
from tests.support.storm import EXPECTED, TOPICS, Adopter, PipelineReader, Worker
from tidelog.log.directories.names import METADATA_DIRECTORY
from tidelog.protocol.errors import KafkaStorageError, UnknownServerError
from tidelog.protocol.messages import delete_topics
from tidelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

SECONDS = float(os.environ.get("TIDELOG_STORM_SECONDS", "6"))
SEED = int(os.environ.get("TIDELOG_STORM_SEED", "1"))
WORKERS = 4
PATIENCE_S = 60.0
OVERRIDES = {
    "log.retention.check.interval.ms": "20",
    "log.flush.scheduler.interval.ms": "20",
    "log.flush.offset.checkpoint.interval.ms": "20",
    "log.flush.start.offset.checkpoint.interval.ms": "20",
    "replica.high.watermark.checkpoint.interval.ms": "20",
    "log.cleaner.backoff.ms": "10",
    "log.cleaner.threads": "2",
    "log.segment.delete.delay.ms": "0",
    "log.segment.bytes": "3000",
    "log.index.interval.bytes": "200",
}


def storm(broker: TidelogProcess) -> Counter[tuple[str, int]]:
    """Run all workers, and count their answers by what was asked."""
    deadline = time.monotonic() + SECONDS
    workers = [Worker(broker.port, SEED * 1000 + number, deadline) for number in range(WORKERS)]
    readers = [PipelineReader(str(broker.data_directory), SEED * 1000 + number, deadline) for number in range(2)]
    target = broker.directory / "adopted"
    adopter = Adopter(str(broker.data_directory), str(target), deadline)
    for thread in (*workers, *readers, adopter):
        thread.start()
    answers: Counter[tuple[str, int]] = Counter()
    for worker in workers:
        worker.join()
        assert worker.failure is None, worker.failure
        answers += worker.answers
    adopter.join()
    assert adopter.failure is None, adopter.failure
    assert all("in use by a running broker" in problem for problem in adopter.problems), adopter.problems
    assert adopter.problems
    assert not target.exists()
    for reader in readers:
        reader.join()
        assert reader.failure is None, reader.failure
        print("a reader's passes:", sorted(reader.results.items()))
        assert reader.results["read"], reader.results
        assert not [error for error in reader.errors if "\n" in error]
    return answers


def offline(port: int) -> list[int]:
    """Return the error codes of the log directories."""
    with raw_client.connect(port) as connection:
        connection.sendall(raw_client.frame(35, 1, 1, DescribeLogDirsRequest(topics=None).encode(1)))
        answer = DescribeLogDirsResponse.decode(memoryview(raw_client.receive_frame(connection))[4:], 1)
    return [result.error_code for result in answer.results]


def partition_directories(broker: TidelogProcess) -> list[str]:
    """List the names of all directories but the metadata log's, which is never deleted."""
    return sorted(
        path.name for path in broker.data_directory.iterdir() if path.is_dir() and path.name != METADATA_DIRECTORY
    )


def delete_all(broker: TidelogProcess) -> None:
    """Delete what is left, and wait until no directory is."""
    with raw_client.connect(broker.port) as connection:
        request = delete_topics.DeleteTopicsRequest(topic_names=TOPICS, timeout_ms=10_000)
        connection.sendall(raw_client.frame(20, 1, 1, request.encode(1)))
        raw_client.receive_frame(connection)
    deadline = time.monotonic() + PATIENCE_S
    while left := partition_directories(broker):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.timeout(SECONDS + 240)
def test_topics_come_and_go_under_every_job(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path, OVERRIDES) as broker:
        answers = storm(broker)
        codes = {code for _, code in answers}
        assert not codes & {KafkaStorageError.code, UnknownServerError.code}, answers
        assert codes <= EXPECTED, answers
        for action in ("create", "delete", "widen", "change", "produce", "fetch"):
            assert answers[action, 0], f"no {action} went through: {answers}"
        assert offline(broker.port) == [0]
        delete_all(broker)
        output = broker.output()
        print(sorted(answers.items()))
        for word in ("Traceback", "goes offline", "out of service", "is refused", "job", "died", "quarantined"):
            assert word not in output, output[max(0, output.find(word) - 3000) : output.find(word) + 3000]
        broker.kill()
        broker.start()
        assert partition_directories(broker) == []
