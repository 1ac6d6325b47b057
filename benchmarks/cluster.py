"""Three brokers of Tidelog beside three of Apache Kafka, replication factor 3, in one run; a table for RESULTS.md.

    python -m benchmarks.cluster [--megabytes 200] [--round-trips 1000] [--kinds tidelog,kafka]

Processor times are those of all three brokers, without the controller; times of the clock depend on what else runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.procfs import CpuTime, cpu_time, rss_bytes
from benchmarks.rivals.cluster import NODE_IDS, BrokerCluster, JavaMember, TidelogMember

KINDS: dict[str, type[JavaMember] | type[TidelogMember]] = {"tidelog": TidelogMember, "kafka": JavaMember}
RECORD_BYTES = 1000
BATCH_BYTES = 65_536
WAIT_S = 120.0
IDLE_S = 5.0
QUICK = {"reconnect.backoff.max.ms": 100, "topic.metadata.refresh.fast.interval.ms": 50, "retry.backoff.ms": 20}
Row = dict[str, float]


def create(cluster: BrokerCluster, name: str, replicas: list[int]) -> None:
    """A topic of one partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (done,) = admin.create_topics([NewTopic(name, 1, replica_assignment=[replicas])]).values()
    done.result()
    wait_until(lambda: sorted(isr(cluster, name)) == sorted(replicas))


def isr(cluster: BrokerCluster, name: str) -> list[int]:
    """The in-sync replicas."""
    topics = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(name, timeout=WAIT_S).topics
    partition = topics[name].partitions.get(0)
    return [] if partition is None else list(partition.isrs)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a state."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def processor_time(cluster: BrokerCluster) -> CpuTime:
    """Processor time of all brokers so far."""
    times = [cpu_time(broker.pid) for broker in cluster.brokers.values() if broker.process is not None]
    return CpuTime(sum(one.user_s for one in times), sum(one.system_s for one in times))


def write(cluster: BrokerCluster, topic: str, megabytes: int) -> None:
    """Write records with acks=all, in batches."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 20, "batch.size": BATCH_BYTES, **QUICK}
    )
    value = os.urandom(RECORD_BYTES)
    for _ in range(megabytes * 1000):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    if producer.flush(WAIT_S):
        raise TimeoutError


def throughput(cluster: BrokerCluster, megabytes: int) -> Row:
    """acks=all with replication factor 3."""
    create(cluster, "bulk", [1, 2, 3])
    write(cluster, "bulk", 20)
    before, begin = processor_time(cluster), time.monotonic()
    write(cluster, "bulk", megabytes)
    used, seconds = processor_time(cluster) - before, time.monotonic() - begin
    gigabytes = megabytes / 1000
    return {
        "acks=all, 1,000 B, 64 KB batches: user CPU s/GB": used.user_s / gigabytes,
        "  user and system CPU s/GB": used.total_s / gigabytes,
        "  MB/s": megabytes / seconds,
    }


def round_trips(cluster: BrokerCluster, count: int) -> Row:
    """One record after the other, acknowledged by all."""
    create(cluster, "single", [1, 2, 3])
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, **QUICK})
    times = []
    for number in range(count + 100):
        if number == 100:
            before = processor_time(cluster)
        begin = time.perf_counter()
        producer.produce("single", b"x" * 100)
        if producer.flush(WAIT_S):
            raise TimeoutError
        times.append(1000 * (time.perf_counter() - begin))
    used = processor_time(cluster) - before
    ordered = statistics.quantiles(times[100:], n=100)
    return {
        "acks=all, one record: p50 ms": ordered[49],
        "  p99 ms": ordered[98],
        "  CPU ms per acknowledgement": 1000 * used.total_s / count,
    }


def catch_up(cluster: BrokerCluster, megabytes: int) -> Row:
    """A follower that was away."""
    create(cluster, "missed", [1, 2, 3])
    follower = cluster.brokers[3]
    follower.terminate()
    wait_until(lambda: 3 not in isr_of_living(cluster, "missed"))
    follower.start()
    wait_until(lambda: 3 in isr(cluster, "missed"))
    start_s = cpu_time(follower.pid).total_s
    follower.terminate()
    write(cluster, "missed", megabytes)
    begin = time.monotonic()
    follower.start()
    wait_until(lambda: 3 in isr(cluster, "missed"))
    seconds = time.monotonic() - begin
    used_s = max(cpu_time(follower.pid).total_s - start_s, 0.01)
    return {"catch-up: MB per CPU s of the follower": megabytes / used_s, "  s from its start to the ISR": seconds}


def isr_of_living(cluster: BrokerCluster, name: str) -> list[int]:
    """The in-sync replicas, asked while one broker is away."""
    living = ",".join(broker.bootstrap for broker in cluster.brokers.values() if broker.process is not None)
    topics = AdminClient({"bootstrap.servers": living}).list_topics(name, timeout=WAIT_S).topics
    return list(topics[name].partitions[0].isrs)


def fail_over(cluster: BrokerCluster) -> Row:
    """The leader is killed under a writer; session 3 s, heartbeats each 0.5 s."""
    create(cluster, "turns", [2, 1, 3])
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, "request.timeout.ms": 1000, **QUICK}
    )
    done: list[tuple[float, float]] = []

    def note(sent: float, error: object, _message: object) -> None:
        if error is None:
            done.append((sent, time.monotonic()))

    def write_until(condition: Callable[[], bool]) -> None:
        while not condition():
            producer.produce("turns", b"x", on_delivery=partial(note, time.monotonic()))
            producer.poll(0.01)

    write_until(lambda: len(done) > 100)
    killed = time.monotonic()
    cluster.brokers[2].kill()
    write_until(lambda: done[-1][0] >= killed)
    producer.flush(WAIT_S)
    again = next(acknowledged for sent, acknowledged in done if sent >= killed) - killed
    cluster.brokers[2].start()
    wait_until(lambda: 2 in isr(cluster, "turns"))
    return {"leader killed to the first acknowledgement, s": again}


def start_and_idle(cluster: BrokerCluster) -> Row:
    """A clean restart with few partitions; then nothing happens."""
    broker = cluster.brokers[1]
    wait_until(lambda: all(1 in isr(cluster, name) for name in ("bulk", "single", "missed", "turns")))
    broker.terminate()
    broker.start()
    begin_s, begin = processor_time(cluster).total_s, time.monotonic()
    time.sleep(IDLE_S)
    share = (processor_time(cluster).total_s - begin_s) / (time.monotonic() - begin) / len(NODE_IDS)
    return {
        "clean start, s": broker.start_seconds,
        "idle: % of a core per broker": 100 * share,
        "  resident MB after it all": rss_bytes(cluster.brokers[3].pid) / 1e6,
    }


def measure(kind: str, megabytes: int, count: int) -> Row:
    """All rows of one kind."""
    with tempfile.TemporaryDirectory() as directory, BrokerCluster(Path(directory), KINDS[kind]) as cluster:
        parts: tuple[Callable[[], Row], ...] = (
            lambda: throughput(cluster, megabytes),
            lambda: round_trips(cluster, count),
            lambda: catch_up(cluster, megabytes),
            lambda: fail_over(cluster),
            lambda: start_and_idle(cluster),
        )
        found: Row = {}
        for part in parts:
            row = part()
            print(kind, row, flush=True)
            found |= row
        return found


def table(measured: dict[str, Row]) -> str:
    """The rows as a table, with the ratio to Kafka."""
    kinds = list(measured)
    lines = [f"| what | {' | '.join(kinds)} | ratio |", f"|---|{'---:|' * (len(kinds) + 1)}"]
    for name in measured[kinds[0]]:
        values = [measured[kind][name] for kind in kinds]
        ratio = f"{values[0] / values[1]:.2f}" if len(values) > 1 and values[1] else "-"
        lines.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in values)} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    """Measure both kinds, one after the other."""
    parser = argparse.ArgumentParser(prog="benchmarks.cluster", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--round-trips", type=int, default=1000)
    parser.add_argument("--kinds", default="tidelog,kafka")
    options = parser.parse_args()
    measured = {}
    for kind in options.kinds.split(","):
        measured[kind] = measure(kind, options.megabytes, options.round_trips)
        print(f"{kind}, load average {os.getloadavg()[0]:.0f}")
    print(table(measured))


if __name__ == "__main__":
    main()
