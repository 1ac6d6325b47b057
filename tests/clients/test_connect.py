"""Apache Kafka's Connect 4.3, unmodified: a cluster of two workers, exactly-once delivery although one is killed, a
mirror.

A file goes line by line into a topic, a mirror (MirrorMaker 2's connector) copies the topic, a sink writes the copy
to a file again. The worker that reads the file is killed in an open transaction of ten minutes; the other one fences
it through the admin client and starts over. ``--broker=kafka`` shows that Apache Kafka's broker does the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rivals.process import BrokerProcess
from tests.clients.test_transactions import read_committed
from tests.support.admin import Admin
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import TidelogProcess
from tests.support.connect import ConnectWorker
from tidelog.client import Client
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse

pytestmark = [pytest.mark.java, pytest.mark.slow]

OVERRIDES = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
LINES = 300
TIMEOUT_S = 60.0


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    kind: Any = ApacheKafka if request.config.getoption("--broker") == "kafka" else TidelogProcess
    with kind(tmp_path / "broker", OVERRIDES) as process:
        yield process


@pytest.fixture
def workers(broker: BrokerProcess, tmp_path: Path) -> Iterator[list[ConnectWorker]]:
    """Two running workers, which are killed at the end if they still run."""
    made = [ConnectWorker(tmp_path / name, broker.bootstrap) for name in ("one", "two")]
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(ConnectWorker.start, made))
        yield made
    finally:
        for worker in made:
            worker.kill()


def source(file: Path, boundary: str) -> dict[str, str]:
    """Configure a source: lines of a file into ``lines``, in a transaction for each poll or for each ten minutes."""
    return {
        "connector.class": "FileStreamSource",
        "file": str(file),
        "topic": "lines",
        "tasks.max": "1",
        "exactly.once.support": "required",
        "transaction.boundary": boundary,
        "transaction.boundary.interval.ms": "600000",
    }


def sink(file: Path, topic: str) -> dict[str, str]:
    """Configure a sink: a topic into a file."""
    reads = {"consumer.override.isolation.level": "read_committed", "consumer.override.auto.offset.reset": "earliest"}
    return {"connector.class": "FileStreamSink", "file": str(file), "topics": topic, "tasks.max": "1", **reads}


def mirror(bootstrap: str) -> dict[str, str]:
    """Configure a mirror of ``lines`` into ``here.lines`` of the same broker, with its configs."""
    raw = "org.apache.kafka.connect.converters.ByteArrayConverter"
    return {
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "tasks.max": "1",
        "source.cluster.alias": "here",
        "target.cluster.alias": "there",
        "source.cluster.bootstrap.servers": bootstrap,
        "target.cluster.bootstrap.servers": bootstrap,
        "topics": "lines",
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "sync.topic.acls.enabled": "false",
        "source.consumer.isolation.level": "read_committed",
        "key.converter": raw,
        "value.converter": raw,
    }


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def members(broker: BrokerProcess) -> int:
    """Return the number of workers in the cluster, 0 while its work is shared out."""
    with Client(broker.bootstrap) as client:
        (group,) = client.call(DescribeGroupsRequest(groups=["connect"]), DescribeGroupsResponse).groups
    return len(group.members) if group.group_state == "Stable" else 0


def test_exactly_once_over_the_kill_of_a_worker(
    broker: BrokerProcess, workers: list[ConnectWorker], tmp_path: Path
) -> None:
    """Nothing of the killed worker's transaction is seen, each line is there once and in its place."""
    read, written = tmp_path / "read.txt", tmp_path / "written.txt"
    lines = [f"line {number}" for number in range(2 * LINES)]
    read.write_text("".join(f"{line}\n" for line in lines[:LINES]))
    admin = Admin(broker.bootstrap)
    admin.create("lines", 1, {"retention.ms": "7200000"})
    wait_until("a cluster of two", lambda: members(broker) == len(workers))  # none that joins later stops the task
    workers[0].configure("source", source(read, "interval"))
    wait_until("the open transaction", lambda: admin.offset("lines", 0, "latest") >= LINES)
    assert read_committed(broker, "lines") == []

    wait_until("the task's state", lambda: workers[0].where("source")[0] == "RUNNING")
    killed, other = sorted(workers, key=lambda worker: worker.bootstrap != workers[0].where("source")[1])
    killed.kill()
    other.configure("source", source(read, "poll"))
    with read.open("a") as file:
        file.writelines(f"{line}\n" for line in lines[LINES:])
    expected = [line.encode() for line in lines]
    wait_until("all lines", lambda: len(read_committed(broker, "lines")) >= len(lines))
    assert read_committed(broker, "lines") == expected
    assert admin.offset("lines", 0, "latest") > LINES + len(lines), "the aborted transaction is in the log"
    wait_until("the other worker's task", lambda: other.where("source") == ("RUNNING", other.bootstrap))

    other.configure("mirror", mirror(broker.bootstrap))
    wait_until("the mirror's topic", lambda: "here.lines" in admin.topics())
    other.configure("sink", sink(written, "here.lines"))
    wait_until("the file", lambda: written.exists() and written.read_bytes().count(b"\n") >= len(lines))
    assert written.read_text() == read.read_text()
    assert admin.configs("here.lines")["retention.ms"] == "7200000"
    other.terminate()
