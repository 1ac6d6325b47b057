"""Groups and transactions, Tidelog and Apache Kafka in turn: ``python -m benchmarks.groups``.

    joining        100 classic members at once, from the first JoinGroup to the last assignment
    1,000 groups   one after the other, each with one member on a connection of its own; the memory they take
    commits        OffsetCommit of one partition, 10 connections with 10 requests in flight each
    transactions   librdkafka: begin, ten records, commit, one after the other
    latency        librdkafka: one record at a time, from produce() until a consumer in a group has it
    shares         Kafka's own share consumer (ShareConsumerPerformance) reads a log of small records in a share group
    streams        50 members of a streams group share 100 tasks: from the first heartbeat until all are in one
                   epoch and each has two tasks; then heartbeats that change nothing, 10 in flight a connection
    loading        1,000 groups with 100 offsets each, from the broker's start to the first answered committed offset

Both brokers run without initial rebalance delays (classic and streams groups), without an assignment interval of
streams groups, and with one partition in each internal topic.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from benchmarks.group_client import Member, Wire, frame_of, wait_until_stable
from benchmarks.histogram import Histogram
from benchmarks.procfs import rss_bytes, run_time_s
from benchmarks.rivals.apache_kafka import ApacheKafka, run_tool
from benchmarks.rivals.process import BrokerProcess
from benchmarks.rivals.tidelog_broker import TidelogProcess
from benchmarks.saving import Page, add_save
from benchmarks.streams_client import TaskMember, heartbeats, wait_until_settled
from benchmarks.topics import Topics
from tidelog.protocol.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}
KAFKA_SETTINGS = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
TOPIC, PARTITIONS = "groups", 100
MEMBERS, GROUPS, STREAMS_MEMBERS = 100, 1000, 50
COMMIT_VERSION, FETCH_VERSION, FIND_VERSION = 7, 5, 2
CONNECTIONS, IN_FLIGHT = 10, 10
WARM_UP_COMMITS = 20_000
"""Commits or heartbeats before the measurement of each, so that Java has compiled its code, as in a broker that has run
for days.
"""
RETRIED = {CoordinatorLoadInProgressError.code, CoordinatorNotAvailableError.code, NotCoordinatorError.code}
RETRY_S = 0.005
RECORDS_PER_TRANSACTION = 10
SHARE_CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ShareConsumerPerformance"
GROUP_RESOURCE = 32
"""Resource type of a group's configs."""

Row = tuple[str, str, str]


def wire(broker: BrokerProcess) -> Wire:
    return Wire(broker.host, broker.port)


def wait_until_ready(broker: BrokerProcess, connection: Wire) -> None:
    """Wait until the coordinator answers: the first FindCoordinator creates its topic."""
    while connection.ask(FindCoordinatorRequest(key="g"), FIND_VERSION, FindCoordinatorResponse).error_code:
        time.sleep(RETRY_S)
    while commit(connection, "ready", 1) in RETRIED:
        time.sleep(RETRY_S)


def commit_request(group_id: str, partitions: int) -> OffsetCommitRequest:
    """Build a commit without a member, as tools send it."""
    parts = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=7, committed_metadata="")
        for index in range(partitions)
    ]
    topic = OffsetCommitRequestTopic(name=TOPIC, partitions=parts)
    return OffsetCommitRequest(group_id=group_id, generation_id_or_member_epoch=-1, topics=[topic])


def commit(connection: Wire, group_id: str, partitions: int) -> int:
    """Commit offsets; return the error code of the first partition."""
    response = connection.ask(commit_request(group_id, partitions), COMMIT_VERSION, OffsetCommitResponse)
    code: int = response.topics[0].partitions[0].error_code
    return code


def joining(broker: BrokerProcess, asked: argparse.Namespace) -> list[Row]:
    """Measure the time until a group of many members is stable: the median of several groups."""
    times = []
    for number in range(asked.rounds + 1):
        members = [Member(broker.host, broker.port, f"joined-{number}") for _ in range(MEMBERS)]
        times.append(wait_until_stable(members))
        for member in members:
            member.wire.close()
    return [(f"{MEMBERS} members join one classic group", "ms", f"{1000 * sorted(times[1:])[asked.rounds // 2]:,.0f}")]


def many_groups(broker: BrokerProcess, asked: argparse.Namespace) -> list[Row]:
    """Measure the creation of many groups with one member each."""
    before = rss_bytes(broker.pid)
    began, cpu = time.perf_counter(), run_time_s(broker.pid)
    for number in range(GROUPS):
        member = Member(broker.host, broker.port, f"many-{number}")
        member.join()
        while not member.is_synced:
            member.take()
        member.wire.close()
    took, cpu = time.perf_counter() - began, run_time_s(broker.pid) - cpu
    return [
        (f"{GROUPS:,} groups of one member", "s", f"{took:.2f}"),
        ("", "CPU of the broker, ms/group", f"{1000 * cpu / GROUPS:.2f}"),
        ("", "memory, MB more", f"{(rss_bytes(broker.pid) - before) / 1e6:.0f}"),
    ]


def commits(broker: BrokerProcess, asked: argparse.Namespace) -> list[Row]:
    """Measure offset commits a second with IN_FLIGHT requests in flight on each connection."""
    connections = [wire(broker) for _ in range(CONNECTIONS)]
    frames = [frame_of(commit_request(f"commits-{index}", 1), COMMIT_VERSION) for index in range(CONNECTIONS)]

    def run(count: int) -> None:
        for connection, frame in zip(connections, frames, strict=True):
            connection.send(frame * IN_FLIGHT)
        for _ in range(count // (CONNECTIONS * IN_FLIGHT)):
            for connection, frame in zip(connections, frames, strict=True):
                for _ in range(IN_FLIGHT):
                    connection.answer()
                connection.send(frame * IN_FLIGHT)
        for connection in connections:
            for _ in range(IN_FLIGHT):
                answer = OffsetCommitResponse.decode(connection.answer(), COMMIT_VERSION)
                assert answer.topics[0].partitions[0].error_code == 0, answer

    run(WARM_UP_COMMITS)
    began, cpu = time.perf_counter(), run_time_s(broker.pid)
    run(asked.commits)
    took, cpu = time.perf_counter() - began, run_time_s(broker.pid) - cpu
    for connection in connections:
        connection.close()
    return [
        ("offset commits", "1/s", f"{asked.commits / took:,.0f}"),
        ("", "CPU of the broker, µs each", f"{1e6 * cpu / asked.commits:.0f}"),
    ]


def transactions(broker: BrokerProcess, asked: argparse.Namespace) -> list[Row]:
    """Measure transactions of one producer into one partition."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "bench", "linger.ms": 0})
    producer.init_transactions(60)

    def run_transaction() -> None:
        producer.begin_transaction()
        for _ in range(RECORDS_PER_TRANSACTION):
            producer.produce(TOPIC, bytes(100), partition=1)
        producer.commit_transaction(60)

    for _ in range(asked.transactions // 4):
        run_transaction()
    latencies, cpu, began = Histogram(), run_time_s(broker.pid), time.perf_counter()
    for _ in range(asked.transactions):
        at = time.perf_counter_ns()
        run_transaction()
        latencies.record(time.perf_counter_ns() - at)
    took, cpu = time.perf_counter() - began, run_time_s(broker.pid) - cpu
    return [
        (f"transactions of {RECORDS_PER_TRANSACTION} records", "1/s", f"{asked.transactions / took:,.0f}"),
        ("", "p99 ms", f"{latencies.percentile_us(99) / 1000:.1f}"),
        ("", "CPU of the broker, µs each", f"{1e6 * cpu / asked.transactions:.0f}"),
    ]


def latency(broker: BrokerProcess, asked: argparse.Namespace) -> list[Row]:
    """Measure the time from produce to poll, with the consumer in the same thread."""
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap}
    consumer = Consumer({**settings, "group.id": "latency", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 500})
    consumer.subscribe([f"{TOPIC}-latency"])
    producer = Producer({**settings, "linger.ms": 0})
    latencies = Histogram()
    for number in range(asked.records + asked.records // 4):
        at = time.perf_counter_ns()
        producer.produce(f"{TOPIC}-latency", b"x" * 100)
        producer.poll(0)
        while (message := consumer.poll(5.0)) is None or message.error() is not None:
            pass
        if number >= asked.records // 4:
            latencies.record(time.perf_counter_ns() - at)
    consumer.close()
    return [
        ("record to a consumer in a group", "p50 µs", f"{latencies.percentile_us(50):,.0f}"),
        ("", "p99 µs", f"{latencies.percentile_us(99):,.0f}"),
    ]


def shares(broker: BrokerProcess, asked: argparse.Namespace) -> list[Row]:
    """Measure a share group that reads a topic. An unmeasured group reads it first, which warms the broker up. Each
    group has its own client process.
    """
    topic = f"{TOPIC}-shares"
    Topics(broker.bootstrap).create(topic, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 10**7})
    for _ in range(asked.shared):
        producer.produce(topic, bytes(100))
    assert producer.flush(60) == 0
    rates, cpu = [], 0.0
    for group_id in ("shares-before", "shares"):
        reset_to_earliest(broker, group_id)
        cpu = run_time_s(broker.pid)
        words = ["--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", group_id]
        done = run_tool(SHARE_CONSUMER_PERFORMANCE, [*words, "--num-records", str(asked.shared)])
        cpu = run_time_s(broker.pid) - cpu
        rates.append(float(parse_performance(done.stdout)["nMsg.sec"]))
    return [
        ("records of 100 B to a share consumer", "1/s", f"{rates[-1]:,.0f}"),
        ("", "CPU of the broker, µs each", f"{1e6 * cpu / asked.shared:.1f}"),
    ]


def reset_to_earliest(broker: BrokerProcess, group_id: str) -> None:
    """Set the config by which a new share group begins at the topic's first record."""
    config = AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
    resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=group_id, configs=[config])
    connection = wire(broker)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    response = connection.ask(request, 0, IncrementalAlterConfigsResponse)
    assert response.responses[0].error_code == 0, response
    connection.close()


def parse_performance(printed: str) -> dict[str, str]:
    """Parse the output of one of Kafka's performance tools: its header's names, its last line's values."""
    lines = [[word.strip() for word in line.split(",")] for line in printed.splitlines() if "," in line]
    return dict(zip(lines[0], lines[-1], strict=True))


def streams(broker: BrokerProcess, asked: argparse.Namespace) -> list[Row]:
    """Measure the time until streams groups are settled, the median of several; then heartbeats of the last group's
    members.
    """
    times, counts, members = [], [], list[TaskMember]()
    for number in range(asked.rounds + 1):
        for member in members:
            member.wire.close()
        members = [
            TaskMember(wire(broker), f"streams-{number}", f"m{index:02}", TOPIC) for index in range(STREAMS_MEMBERS)
        ]
        took, count = wait_until_settled(members, PARTITIONS)
        times.append(took)
        counts.append(count)
    heartbeats(members, WARM_UP_COMMITS)
    cpu = run_time_s(broker.pid)
    took = heartbeats(members, asked.commits)
    cpu = run_time_s(broker.pid) - cpu
    for member in members:
        member.wire.close()
    middle = asked.rounds // 2
    return [
        (
            f"{STREAMS_MEMBERS} members of a streams group share {PARTITIONS} tasks",
            "ms",
            f"{1000 * sorted(times[1:])[middle]:,.0f}",
        ),
        ("", "heartbeats it takes", f"{sorted(counts[1:])[middle]:,}"),
        ("heartbeats of a streams group", "1/s", f"{asked.commits / took:,.0f}"),
        ("", "CPU of the broker, µs each", f"{1e6 * cpu / asked.commits:.0f}"),
    ]


def loading(broker: BrokerProcess, asked: argparse.Namespace) -> list[Row]:
    """Measure a start after a clean stop: the coordinator loads its offsets, and no log needs recovery."""
    connection = wire(broker)
    for number in range(GROUPS):
        code = commit(connection, f"loaded-{number}", PARTITIONS)
        assert code == 0, code
    connection.close()
    broker.terminate()
    began = time.perf_counter()
    broker.start()
    started = time.perf_counter() - began
    connection = wire(broker)
    topic = OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
    request = OffsetFetchRequest(group_id=f"loaded-{GROUPS - 1}", topics=[topic])
    while (response := connection.ask(request, FETCH_VERSION, OffsetFetchResponse)).error_code in RETRIED:
        time.sleep(RETRY_S)
    took = time.perf_counter() - began
    assert response.topics[0].partitions[0].committed_offset == 7, response
    connection.close()
    return [
        (f"start with {GROUPS * PARTITIONS:,} offsets in the log", "first answer, s", f"{started:.2f}"),
        ("", "first committed offset, s", f"{took:.2f}"),
    ]


WORK: dict[str, Callable[[BrokerProcess, argparse.Namespace], list[Row]]] = {
    "joining": joining,
    "many": many_groups,
    "commits": commits,
    "transactions": transactions,
    "latency": latency,
    "shares": shares,
    "streams": streams,
    "loading": loading,
}


def measure(launch: Callable[[Path], BrokerProcess], root: Path, asked: argparse.Namespace) -> list[Row]:
    """Measure all figures of one broker."""
    with launch(root) as broker:
        topics = Topics(broker.bootstrap)
        topics.create(TOPIC, PARTITIONS)
        topics.create(f"{TOPIC}-latency", 1)
        connection = wire(broker)
        wait_until_ready(broker, connection)
        connection.close()
        return [row for name in asked.only or WORK for row in WORK[name](broker, asked)]


def launch_tidelog(directory: Path) -> BrokerProcess:
    return TidelogProcess(directory, SETTINGS)


def launch_kafka(directory: Path) -> BrokerProcess:
    broker = ApacheKafka(directory, {**SETTINGS, **KAFKA_SETTINGS})
    broker.format()
    return broker


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.groups", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="groups of each kind that are joined (default 5)")
    parser.add_argument("--commits", type=int, default=100_000, help="offset commits (default 100,000)")
    parser.add_argument("--transactions", type=int, default=500, help="transactions (default 500)")
    parser.add_argument("--records", type=int, default=2_000, help="records whose latency is measured (default 2,000)")
    parser.add_argument("--shared", type=int, default=500_000, help="records a share group reads (default 500,000)")
    parser.add_argument("--only", choices=list(WORK), action="append", help="this work alone; may be repeated")
    parser.add_argument("--no-kafka", action="store_true", help="measure Tidelog alone")
    add_save(parser)
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="groups-"))
    with Page("Groups and transactions", "groups", save=asked.save) as page:
        ours = measure(launch_tidelog, root / "tidelog", asked)
        theirs = [] if asked.no_kafka else measure(launch_kafka, root / "kafka", asked)
        page.print_line("| work | figure | Tidelog | Apache Kafka |")
        page.print_line("|---|---|---:|---:|")
        for index, (work, figure, value) in enumerate(ours):
            page.print_line(f"| {work} | {figure} | {value} | {theirs[index][2] if theirs else '-'} |")
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
