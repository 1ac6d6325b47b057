"""Rows of ``benchmarks.cluster``: measurements of one cluster of three brokers.

Processor times are those of all three brokers, without the controller; that of the catch-up is the follower's alone.
Each row is a function that returns figures by name; ``benchmarks.cluster.BARS`` has the aims of some of them.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.beside import Beside
from benchmarks.procfs import CpuTime, cpu_time, rss_bytes
from benchmarks.rivals.cluster import NODE_IDS, BrokerCluster, JavaMember, TidelogMember

RECORD_BYTES = 1000
BATCH_BYTES = 65_536
WAIT_S = 120.0
IDLE_S = 5.0
SESSION_S = 3.5
"""Seconds after a broker's stop; by then its session of 3 s has ended."""
REST_S = 3.0
"""Seconds of writes alone, to which the writes beside a catch-up are compared."""
SETTLE_S = 6.0
"""Time that the brokers need to become idle after the creation of 1,000 partitions."""
STEADY_S = 6.0
PACE_S = 0.002
SAMPLED = 50
"""Number of partitions that a writer writes to when the topic has many."""
QUICK = {
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "retry.backoff.ms": 20,
    "topic.metadata.refresh.interval.ms": 200,
}
"""Client settings that find a new leader soon: librdkafka stops its fast refresh once metadata names the dead leader
again.
"""
Row = dict[str, float]


@cache
def admin(bootstrap: str) -> AdminClient:
    """Return the admin client of these addresses: a new one for each request would compete with the brokers for CPU."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create(cluster: BrokerCluster, name: str, replicas: list[int], partitions: int = 1) -> None:
    """Create a topic whose partitions all have these replicas."""
    topic = NewTopic(name, partitions, replica_assignment=[replicas] * partitions)
    (done,) = admin(cluster.bootstrap).create_topics([topic], operation_timeout=WAIT_S).values()
    done.result()
    wait_until(lambda: are_in_sync(cluster, name, replicas, partitions))


def are_in_sync(cluster: BrokerCluster, name: str, replicas: list[int], partitions: int) -> bool:
    """Return whether the first of the replicas leads all partitions, and all are in sync."""
    found = admin(cluster.bootstrap).list_topics(name, timeout=WAIT_S).topics[name].partitions.values()
    wanted = sorted(replicas)
    good = [one for one in found if one.leader == replicas[0] and sorted(one.isrs) == wanted]
    return len(good) == partitions


def isr(cluster: BrokerCluster, name: str) -> list[int]:
    """Ask the brokers that run for the in-sync replicas of partition 0."""
    living = ",".join(broker.bootstrap for broker in cluster.brokers.values() if broker.process is not None)
    partition = admin(living).list_topics(name, timeout=WAIT_S).topics[name].partitions.get(0)
    return [] if partition is None else list(partition.isrs)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def processor_time(cluster: BrokerCluster) -> CpuTime:
    """Sum the processor time so far of all brokers that run."""
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
    """Measure writes with acks=all and replication factor 3."""
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
    """Measure records sent one after the other, each acknowledged by all replicas."""
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
    """Measure how a follower that was away catches up; single records go to its leader all the time."""
    create(cluster, "missed", [1, 2, 3])
    create(cluster, "beside", [1, 2])
    follower = cluster.brokers[3]
    _, cpu_s = return_to_isr(cluster)  # a start that has nothing to catch up
    follower.terminate()
    write(cluster, "missed", megabytes)
    with PacedWriter(cluster.bootstrap, "beside", 1) as alone:
        time.sleep(REST_S)
    log = LogGrowth(follower.data_directory / "missed-0")
    with log, PacedWriter(cluster.bootstrap, "beside", 1) as meanwhile:
        seconds, used_s = return_to_isr(cluster)
    return {
        "catch-up: MB per CPU s of the follower": megabytes / max(used_s - cpu_s, 0.01),
        "  MB/s, without the start": log.grown_bytes / 1e6 / log.seconds,
        "  s from its start to the ISR": seconds,
        "  p99 of produce at its leader, as a multiple of the p99 before the catch-up": percentile(meanwhile.times, 99)
        / percentile(alone.times, 99),
    }


def return_to_isr(cluster: BrokerCluster) -> tuple[float, float]:
    """Restart broker 3, or start it if it is down; return the seconds and its CPU seconds until it is in sync."""
    follower = cluster.brokers[3]
    if follower.process is not None:
        follower.terminate()
        wait_until(lambda: 3 not in isr(cluster, "missed"))
    begin = time.monotonic()
    follower.start()
    wait_until(lambda: 3 in isr(cluster, "missed"))
    return time.monotonic() - begin, cpu_time(follower.pid).total_s


class LogGrowth(Beside):
    """A thread that watches the files of a partition's log while a follower copies what it missed."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._seen = [(time.monotonic(), self._size())]
        """Times and sizes of the log; the first is the last look before the log grew, or the newest if it has not."""

    def _size(self) -> int:
        return sum(path.stat().st_size for path in self._directory.glob("*.log"))

    def run(self) -> None:
        """Look at the size until the thread is ended."""
        while not self.is_ended.wait(PACE_S):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Record the present size if it has changed, or if the log has not grown yet."""
        size = self._size()
        if size != self._seen[-1][1]:
            self._seen.append((now, size))
        elif len(self._seen) == 1:
            self._seen = [(now, size)]

    @property
    def grown_bytes(self) -> int:
        """The bytes that the log grew by."""
        return self._seen[-1][1] - self._seen[0][1]

    @property
    def seconds(self) -> float:
        """The time from the last look before its growth to the first one with all of it."""
        return self._seen[-1][0] - self._seen[0][0]


class PacedWriter(Beside):
    """A thread that writes a record each PACE_S with acks=all, to partitions in turn, and notes acknowledgements."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, step: int = 1) -> None:
        super().__init__()
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, **QUICK})
        self._topic, self._numbers = topic, range(0, partitions, step)
        self.times: list[float] = []
        """Milliseconds to each acknowledgement."""
        self.acknowledged: dict[int, list[float]] = defaultdict(list)
        """Clock times of the acknowledgements, by partition."""

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._producer.flush(WAIT_S):
            raise TimeoutError

    def run(self) -> None:
        """Write until the end."""
        for number in itertools.cycle(self._numbers):
            if self.is_ended.is_set():
                return
            note = partial(self._note, time.monotonic(), number)
            self._producer.produce(self._topic, b"x" * 100, partition=number, on_delivery=note)
            deadline = time.monotonic() + PACE_S
            while (left := deadline - time.monotonic()) > 0:
                self._producer.poll(left)

    def _note(self, sent: float, number: int, error: object, _message: object) -> None:
        if error is None:
            now = time.monotonic()
            self.times.append(1000 * (now - sent))
            self.acknowledged[number].append(now)

    def longest_gaps(self, since: float) -> list[float]:
        """Return the longest time without an acknowledgement after ``since``, of each partition that has one."""
        return [
            max(
                later - earlier
                for earlier, later in itertools.pairwise([since, *(one for one in times if one > since)])
            )
            for times in self.acknowledged.values()
            if times[-1] > since
        ]


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile."""
    return statistics.quantiles(values, n=100)[percent - 1]


def steady(cluster: BrokerCluster, megabytes_per_s: int) -> Row:
    """Measure a steady rate with acks=all: a record is acknowledged when both followers have it, so its latency
    bounds their lag.
    """
    create(cluster, "steady", [1, 2, 3])
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 1, "batch.size": BATCH_BYTES, **QUICK}
    )
    value, rate, times = os.urandom(RECORD_BYTES), megabytes_per_s * 1000, []
    producer.produce("steady", value)
    producer.flush(WAIT_S)  # the client is connected: the rate is a steady one from its first record on
    sent, begin = 0, time.monotonic()

    def note(number: int, error: object, _message: object) -> None:
        if error is None:
            times.append(1000 * (time.monotonic() - begin - number / rate))

    while (elapsed := time.monotonic() - begin) < STEADY_S:
        due = int(elapsed * rate)
        while sent < due:
            try:
                if sent % 50:
                    producer.produce("steady", value)
                else:
                    producer.produce("steady", value, on_delivery=partial(note, sent))
            except BufferError:
                producer.poll(0.01)
                continue
            sent += 1
        producer.poll(0.001)
    if producer.flush(WAIT_S):
        raise TimeoutError
    return {
        f"steady {megabytes_per_s} MB/s, acks=all: p99 ms, an upper bound of the followers' lag": percentile(times, 99),
        "  MB/s reached": sent / 1000 / (time.monotonic() - begin),
    }


def fail_over(cluster: BrokerCluster) -> Row:
    """Kill the leader under a writer; session 3 s, heartbeats each 0.5 s."""
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
    """Measure a clean restart with few partitions, then the idle cluster."""
    broker = cluster.brokers[1]
    wait_until(lambda: all(1 in isr(cluster, name) for name in ("bulk", "single", "missed", "turns")))
    broker.terminate()
    time.sleep(SESSION_S)
    broker.start()
    return {
        "clean start, six partitions, after the old session has ended: s": broker.start_seconds,
        "  at once after the stop: s": start_at_once(broker),
        "idle: % of a core per broker": idle_percent(cluster),
        "  resident MB of a broker after all rows above": rss_bytes(cluster.brokers[3].pid) / 1e6,
    }


def start_at_once(broker: JavaMember | TidelogMember) -> float:
    """Return the seconds of a clean start right after a stop. The controller answers DUPLICATE_BROKER_REGISTRATION
    until the session of the stopped process is over, to brokers of either kind.
    """
    broker.terminate()
    broker.start()
    return broker.start_seconds


def idle_percent(cluster: BrokerCluster) -> float:
    """Return how much of a core a broker uses while nothing happens."""
    begin_s, begin = processor_time(cluster).total_s, time.monotonic()
    time.sleep(IDLE_S)
    return 100 * (processor_time(cluster).total_s - begin_s) / (time.monotonic() - begin) / len(NODE_IDS)


def many_partitions(cluster: BrokerCluster, count: int) -> Row:
    """Measure idle brokers with many partitions, a controlled stop of the leader beside a writer, and the leader's
    next two starts.
    """
    create(cluster, "many", [1, 2, 3], count)
    time.sleep(SETTLE_S)
    idle = idle_percent(cluster)
    leader = cluster.brokers[1]
    with PacedWriter(cluster.bootstrap, "many", count, max(1, count // SAMPLED)) as writer:
        wait_until(lambda: len(writer.times) > 5 * SAMPLED)
        since = time.monotonic()
        leader.terminate()
        wait_until(lambda: len(writer.longest_gaps(time.monotonic() - 1.0)) == len(writer.acknowledged))
        gaps = writer.longest_gaps(since)
    time.sleep(SESSION_S)
    leader.start()
    return {
        f"{count:,} partitions, idle: % of a core per broker": idle,
        "  controlled stop of their leader: longest s without acks of a partition": max(gaps),
        "  p50 s": statistics.median(gaps),
        "  clean start with them, after the old session has ended: s": leader.start_seconds,
        "  at once after the stop, s": start_at_once(leader),
        "  resident MB of it": rss_bytes(leader.pid) / 1e6,
    }
