"""Cost of TLS, in Tidelog and in Apache Kafka: ``python -m benchmarks.tls [--mb 200] [--rounds 3] [--no-kafka]``.

librdkafka produces values of 1,000 B to one partition and reads them again, then Kafka's Java producer writes the same
number of values. Each broker serves these clients over a plain and an SSL listener in turn, after a warm-up. The table
has the broker's processor time in seconds per gigabyte: user, and user with system; medians of the rounds. Then a
thousand connections shake hands one after the other, and stay open idle.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from benchmarks.procfs import cpu_time
from benchmarks.rivals.apache_kafka import PRODUCER_PERFORMANCE, ApacheKafka, run_tool
from benchmarks.rivals.process import BrokerProcess, free_port
from benchmarks.rivals.tidelog_broker import TidelogProcess
from benchmarks.topics import Topics
from tests.support.certificates import Certificates

VALUE_BYTES = 1_000
JAVA = "produce by Java"
CONNECTIONS = 1_000
WARM_UP_MB = {"tidelog": 50, "apache-kafka": 300}
Client = dict[str, Any]


class Side(NamedTuple):
    """A running broker, and the client's settings for each of its listeners."""

    name: str
    broker: BrokerProcess
    listeners: dict[str, Client]
    tls_port: int
    authority: Path


@contextmanager
def running(kind: type[TidelogProcess | ApacheKafka], directory: Path, certificates: Certificates) -> Iterator[Side]:
    """A broker with a plain and an SSL listener."""
    tls_port, texts = free_port(), certificates.server_texts()
    broker = kind(directory, texts, port=free_port())
    listeners = f"PLAINTEXT://127.0.0.1:{broker.port},SSL://127.0.0.1:{tls_port}"
    broker.overrides |= {"listeners": listeners}
    if isinstance(broker, ApacheKafka):
        broker.overrides |= {
            "advertised.listeners": listeners,
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{broker.controller_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
        }
    authority = certificates.authority.certificate
    secured = {"security.protocol": "ssl", "ssl.ca.location": str(authority)}
    with broker:
        addresses = {
            "plain": {"bootstrap.servers": f"127.0.0.1:{broker.port}"},
            "TLS": {"bootstrap.servers": f"127.0.0.1:{tls_port}", **secured},
        }
        yield Side(broker.name, broker, addresses, tls_port, authority)


def produce(client: Client, topic: str, count: int) -> None:
    """Write ``count`` values."""
    producer = Producer({**client, "linger.ms": 5, "batch.size": 1_000_000, "queue.buffering.max.messages": 200_000})
    value = bytes(VALUE_BYTES)
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.05)
    assert not producer.flush(120)


def fetch(client: Client, topic: str, count: int) -> None:
    """Read ``count`` values."""
    consumer = Consumer({**client, "group.id": "tls", "enable.auto.commit": False, "check.crcs": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    left = count
    while left > 0:
        found = consumer.consume(10_000, 30.0)
        assert found, f"{left} values did not come"
        left -= len(found)
    consumer.close()


def produce_by_java(client: Client, topic: str, count: int) -> None:
    """Write ``count`` values by Kafka's own ``kafka-producer-perf-test``."""
    settings = {"bootstrap.servers": client["bootstrap.servers"], "batch.size": "1000000", "linger.ms": "5"}
    if "ssl.ca.location" in client:
        settings |= {"security.protocol": "SSL", "ssl.truststore.type": "PEM"}
        settings["ssl.truststore.location"] = client["ssl.ca.location"]
    given = [f"{key}={value}" for key, value in settings.items()]
    sizes = ["--num-records", str(count), "--record-size", str(VALUE_BYTES), "--throughput", "-1"]
    done = run_tool(PRODUCER_PERFORMANCE, ["--topic", topic, *sizes, "--producer-props", *given], options=())
    assert done.returncode == 0, done.stderr


Figures = dict[tuple[str, str, str], list[tuple[float, float]]]


def measure(side: Side, listener: str, number: int, mb: int, figures: Figures | None) -> None:
    """Measure one topic written and read over a listener."""
    topic, count = f"{listener}-{number}", mb * 1_000_000 // VALUE_BYTES
    topics = Topics(side.broker.bootstrap)
    topics.create(topic, 1)
    works: list[tuple[str, Callable[[Client, str, int], None]]] = [
        ("produce", produce),
        ("fetch", fetch),
        (JAVA, produce_by_java),
    ]
    for name, work in works:
        before = cpu_time(side.broker.pid)
        work(side.listeners[listener], topic, count)
        spent = cpu_time(side.broker.pid) - before
        if figures is not None:
            gigabytes = count * VALUE_BYTES / 1e9
            total = spent.user_s + spent.system_s
            figures[side.name, listener, name].append((spent.user_s / gigabytes, total / gigabytes))
    topics.delete(topic)


def resident_mb(pid: int) -> float:
    """Read the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def shake_hands(side: Side) -> tuple[float, float]:
    """Measure milliseconds of processor time for one handshake, and kilobytes that an idle connection holds."""
    context = ssl.create_default_context(cafile=str(side.authority))
    before, memory = cpu_time(side.broker.pid), resident_mb(side.broker.pid)
    with ExitStack() as open_ones:
        for _ in range(CONNECTIONS):
            plain = socket.create_connection(("127.0.0.1", side.tls_port), timeout=60)
            open_ones.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
        spent = cpu_time(side.broker.pid) - before
        held = resident_mb(side.broker.pid) - memory
    return (spent.user_s + spent.system_s) / CONNECTIONS * 1e3, held / CONNECTIONS * 1e3


def report(figures: Figures, sides: list[Side]) -> None:
    """Print the table."""
    print(
        "| s/GB, user / all | " + " | ".join(f"{side.name} {way}" for side in sides for way in ("plain", "TLS")) + " |"
    )
    print("|---|" + "---|" * (2 * len(sides)))
    for name in ("produce", "fetch", JAVA):
        cells = []
        for side in sides:
            for way in ("plain", "TLS"):
                user, total = (statistics.median(one) for one in zip(*figures[side.name, way, name], strict=True))
                cells.append(f"{user:.2f} / {total:.2f}")
        print(f"| {name} | " + " | ".join(cells) + " |")
    for side in sides:
        milliseconds, kilobytes = shake_hands(side)
        print(f"{side.name}: a handshake {milliseconds:.2f} ms of CPU, an idle connection {kilobytes:.1f} KB")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.tls")
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-kafka", action="store_true")
    given = parser.parse_args()
    figures: Figures = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as brokers:
        certificates = Certificates(Path(directory))
        kinds: list[type[TidelogProcess | ApacheKafka]] = [TidelogProcess]
        if not given.no_kafka:
            kinds.append(ApacheKafka)
        sides = [brokers.enter_context(running(kind, Path(directory) / kind.name, certificates)) for kind in kinds]
        for side in sides:
            for listener in side.listeners:
                measure(side, listener, 0, WARM_UP_MB[side.name], None)
        for number in range(1, given.rounds + 1):
            for listener in ("plain", "TLS"):
                for side in sides:
                    measure(side, listener, number, given.mb, figures)
        report(figures, sides)


if __name__ == "__main__":
    main()
