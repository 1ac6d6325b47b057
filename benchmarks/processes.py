"""One and two Tidelog processes on this host as one cluster, beside a lone node: requests each second, and CPU.

    python -m benchmarks.processes [--scale 1.0] [--rounds 3] [--save]

Each process leads a topic of its own and has a load client of its own (``loadgen``), on one connection. A broker
process uses one core, and the clients compete with the brokers for the rest: on two cores two processes cannot reach
twice the speed of one. So the table has the cores that brokers and clients used, and the rate that the brokers' CPU
time would allow if each process had a core. The lone node, both members and the controller run all the time, and the
setups take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.machine import prewarm_page_cache
from benchmarks.native import LoadResult, run_load
from benchmarks.procfs import run_time_s
from benchmarks.rivals.cluster import BrokerCluster, TidelogMember
from benchmarks.rivals.process import BrokerProcess
from benchmarks.rivals.tidelog_broker import TidelogProcess
from benchmarks.saving import Page, add_save
from benchmarks.serving_rows import records_per_batch
from benchmarks.topics import Topics

MEMBERS = (1, 2)
WARM_UP = 0.1
"""Share of a turn's requests that is sent before the measurement."""
PREWARM_BYTES = 2 << 30


class Case(NamedTuple):
    """A kind of request, and how many of them each process gets."""

    name: str
    requests: int
    records: int
    value_bytes: int
    window: int
    configs: Mapping[str, str] = {}


_RECORDS_16K = records_per_batch(16_384, 1_000)
CASES = (
    Case("one record of 100 B a request, 100 in flight", 300_000, 1, 100, 100),
    Case("16 KiB batches of 1,000 B records, 5 in flight", 40_000, _RECORDS_16K, 1_000, 5),
    Case(
        "the same, compressed by the broker (compression.type=gzip)",
        8_000,
        _RECORDS_16K,
        1_000,
        5,
        {"compression.type": "gzip"},
    ),
)


class Turn(NamedTuple):
    """Speed and CPU of one turn, over all processes."""

    rate: float
    """Requests each second of the clock."""
    broker_us: float
    client_us: float
    """CPU microseconds of a request, in brokers and in load clients."""

    @property
    def cores_of_brokers(self) -> float:
        """Return how many cores the brokers used."""
        return self.rate * self.broker_us / 1e6

    @property
    def cores_of_clients(self) -> float:
        """Return how many cores the load clients used."""
        return self.rate * self.client_us / 1e6


class Setup(NamedTuple):
    """Processes that are loaded together."""

    name: str
    bootstrap: str
    brokers: Sequence[BrokerProcess]
    ids: Sequence[int]


def create_topics(setup: Setup, case: Case, turn: str) -> list[str]:
    """Create a topic for each process, which leads it, and wait until all leaders answer."""
    admin = AdminClient({"bootstrap.servers": setup.bootstrap})
    names = [f"{turn}-{node_id}" for node_id in setup.ids]
    topics = [
        NewTopic(name, 1, replica_assignment=[[node_id]], config=dict(case.configs))
        for name, node_id in zip(names, setup.ids, strict=True)
    ]
    for done in admin.create_topics(topics).values():
        done.result()
    waiting = Topics(setup.bootstrap)
    for name in names:
        waiting.wait_for_leader(name)
    return names


def load(setup: Setup, case: Case, topics: Sequence[str], requests: int) -> list[LoadResult]:
    """Load all processes at once, each from its own client."""

    def one(broker: BrokerProcess, topic: str) -> LoadResult:
        return run_load(
            "produce",
            broker.host,
            broker.port,
            topic=topic,
            requests=requests,
            records=case.records,
            value_bytes=case.value_bytes,
            window=case.window,
        )

    with ThreadPoolExecutor(len(setup.brokers)) as threads:
        return list(threads.map(one, setup.brokers, topics))


def take_turn(setup: Setup, case: Case, number: int, scale: float) -> Turn:
    """Measure one case on one setup."""
    topics = create_topics(setup, case, f"turn-{number}")
    requests = max(1, int(case.requests * scale))
    load(setup, case, topics, max(1, int(requests * WARM_UP)))
    os.sync()
    before, begin = sum(run_time_s(broker.pid) for broker in setup.brokers), time.monotonic()
    done = load(setup, case, topics, requests)
    seconds = time.monotonic() - begin
    broker_s = sum(run_time_s(broker.pid) for broker in setup.brokers) - before
    for topic in topics:
        Topics(setup.bootstrap).delete(topic)
    count = sum(one.requests for one in done)
    return Turn(count / seconds, 1e6 * broker_s / count, 1e6 * sum(one.client_cpu_s for one in done) / count)


def median(turns: Sequence[Turn]) -> Turn:
    """Return the medians of the rounds."""
    return Turn(*map(statistics.median, zip(*turns, strict=True)))


def table(found: Mapping[tuple[str, str], Sequence[Turn]], setups: Sequence[Setup]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| case | processes | requests/s | x lone node | broker CPU, us/request | client CPU, us/request "
        "| cores: brokers | cores: clients | requests/s with a core each, calculated |",
        "|---|---|" + "---:|" * 7,
    ]
    for case in CASES:
        alone = median(found[case.name, setups[0].name])
        for setup in setups:
            turn = median(found[case.name, setup.name])
            each = len(setup.brokers) * 1e6 / turn.broker_us
            figures = (
                f"{turn.rate:,.0f}",
                f"{turn.rate / alone.rate:.2f}",
                f"{turn.broker_us:.1f}",
                f"{turn.client_us:.1f}",
                f"{turn.cores_of_brokers:.2f}",
                f"{turn.cores_of_clients:.2f}",
                f"{each:,.0f}",
            )
            lines.append(f"| {case.name} | {setup.name} | {' | '.join(figures)} |")
    return lines


def measure(setups: Sequence[Setup], rounds: int, scale: float, page: Page) -> None:
    """Run all rounds; each begins with another setup."""
    found: dict[tuple[str, str], list[Turn]] = defaultdict(list)
    number = 0
    for round_ in range(rounds):
        first = round_ % len(setups)
        for case in CASES:
            for setup in (*setups[first:], *setups[:first]):
                number += 1
                found[case.name, setup.name].append(take_turn(setup, case, number, scale))
    for line in table(found, setups):
        page.print_line(line)


def main() -> None:
    """Start the processes and measure them."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.processes", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests")
    parser.add_argument("--rounds", type=int, default=3)
    add_save(parser)
    options = parser.parse_args()
    with (
        Page("Processes of one host as one cluster", "processes", save=options.save) as page,
        tempfile.TemporaryDirectory() as name,
        BrokerCluster(Path(name), TidelogMember, MEMBERS) as cluster,
        TidelogProcess(Path(name) / "lone") as lone,
    ):
        prewarm_page_cache(Path(name), int(PREWARM_BYTES * min(1.0, options.scale)))
        first = cluster.brokers[MEMBERS[0]]
        setups = (
            Setup("lone node", lone.bootstrap, (lone,), (1,)),
            Setup("1 of a cluster", cluster.bootstrap, (first,), MEMBERS[:1]),
            Setup("2 of a cluster", cluster.bootstrap, tuple(cluster.brokers.values()), MEMBERS),
        )
        measure(setups, options.rounds, options.scale, page)


if __name__ == "__main__":
    main()
