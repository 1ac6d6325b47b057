"""Bytes and time of very many groups, transactional ids and producer ids, by ``python -m benchmarks.millions``.

Each group commits one offset and each transactional id is initialized, by requests to coordinators whose topics are in
memory. Each producer id has one batch in one log. All times are CPU time. *Loaded* is what a start takes to load them
all, *expired* what the expiration of all takes, each with the longest turn of the event loop. For producer ids, the
turn of *loaded* is the whole load. Their figures of *expired* are the times under the log's lock, which appends wait
for: all together, and the longest one.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from benchmarks.procfs import rss_bytes
from tests.support.coordinators import GroupWorld, ManualLoop, MemoryTopicLog, TransactionWorld
from tests.unit.broker.coordinator.group.test_offset_commits import commit
from tidelog.log.producer.state import ProducerBatch, ProducerStateManager
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime

DAY_MS = 24 * 3600 * 1000
KEPT_MS = 3600 * 1000
"""Time after which unused groups' offsets and transactional ids expire."""


class Row(NamedTuple):
    """Figures of one kind: bytes and CPU microseconds of one, CPU seconds of all, milliseconds of the longest turn."""

    what: str
    bytes_each: float
    made_us: float
    loaded_s: float
    loaded_turn_ms: float
    expired_s: float
    expired_turn_ms: float


class Clock:
    """CPU time of callbacks, and of the longest of them."""

    def __init__(self) -> None:
        self.total_s = self.longest_ms = 0.0

    def run(self, work: Callable[[], object]) -> None:
        began = time.thread_time()
        work()
        spent = time.thread_time() - began
        self.total_s += spent
        self.longest_ms = max(self.longest_ms, spent * 1000)


def drain(loop: ManualLoop) -> Clock:
    """Run and measure the callbacks of the next turns until none is left."""
    clock = Clock()
    while loop.soon:
        clock.run(loop.soon.pop(0))
    return clock


def advance(loop: ManualLoop, milliseconds: float) -> Clock:
    """Advance the clock and measure each callback that is due."""
    clock, end = Clock(), loop.time.monotonic_ms() + milliseconds
    while due := [entry for entry in loop.later if entry[0] <= end]:
        entry = min(due, key=lambda item: item[:2])
        loop.later.remove(entry)
        loop.time.advance(max(0.0, entry[0] - loop.time.monotonic_ms()))
        clock.run(entry[2])
        turns = drain(loop)
        clock.total_s += turns.total_s
        clock.longest_ms = max(clock.longest_ms, turns.longest_ms)
    loop.time.advance(max(0.0, end - loop.time.monotonic_ms()))
    return clock


def log_bytes(log: MemoryTopicLog) -> int:
    return sum(len(batch) for batches in log.batches.values() for batch in batches)


def grown_by(make: Callable[[], object], log: MemoryTopicLog) -> tuple[float, float]:
    """Measure the memory that ``make`` adds, without its records in ``log``, and its CPU seconds."""
    gc.collect()
    before, began = rss_bytes(os.getpid()), time.thread_time()
    make()
    spent = time.thread_time() - began
    gc.collect()
    return rss_bytes(os.getpid()) - before - log_bytes(log), spent


def coordinator_row(what: str, world: GroupWorld | TransactionWorld, make: Callable[[], object], count: int) -> Row:
    """Measure what ``make`` makes by requests, then how a new coordinator loads it from the log, and its expiration."""
    size, spent = grown_by(make, world.log)
    again = type(world)(world.log, world.time)
    again.config = world.config
    again.runtime.load_all()
    loaded = drain(again.loop)
    expired = advance(again.loop, 3 * KEPT_MS)
    return Row(
        what, size / count, spent / count * 1e6, loaded.total_s, loaded.longest_ms, expired.total_s, expired.longest_ms
    )


def groups(count: int) -> Row:
    """Measure groups that each commit one offset."""
    world = GroupWorld(offsets_retention_minutes=KEPT_MS // 60_000)

    def make() -> None:
        for number in range(count):
            commit(world, number, group_id=f"group-{number}")

    return coordinator_row("groups with one committed offset", world, make, count)


def transactional_ids(count: int) -> Row:
    """Measure transactional ids that are each initialized."""
    world = TransactionWorld(transactional_id_expiration_ms=KEPT_MS)

    def make() -> None:
        for number in range(count):
            world.init(transactional_id=f"id-{number}")

    return coordinator_row("transactional ids", world, make, count)


class Held(AbstractContextManager[None]):
    """A stand-in for a lock: it measures the CPU time for which it is held."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        spent = time.thread_time() - self._began
        self.clock.total_s += spent
        self.clock.longest_ms = max(self.clock.longest_ms, spent * 1000)


def producer_ids(count: int) -> Row:
    """Measure producer ids. *Loaded* is the reading of the snapshot that a roll writes under the log's lock."""
    with tempfile.TemporaryDirectory() as directory:
        clock = ManualTime()
        state = ProducerStateManager(OsFileSystem(), directory, clock, DAY_MS)

        def make() -> None:
            for number in range(count):
                state.update(ProducerBatch(number, 0, 0, 0, number, number, 0, False))

        size, spent = grown_by(make, MemoryTopicLog())
        state.end_offset = count
        written = Clock()
        written.run(state.take_snapshot)
        snapshot_ms = f"{written.longest_ms:.0f} ms"
        print(f"a snapshot of {count} producer ids is written under the log's lock in {snapshot_ms}", file=sys.stderr)
        again = ProducerStateManager(OsFileSystem(), directory, clock, DAY_MS)
        loaded = Clock()
        loaded.run(lambda: again.load(0, count))
        clock.advance(2 * DAY_MS)
        lock = Held()
        again.remove_expired(lock)
        return Row("producer ids in one log", size / count, spent / count * 1e6, loaded.total_s, loaded.longest_ms,
                   lock.clock.total_s, lock.clock.longest_ms)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    count = parser.parse_args().count
    gc.disable()  # a broker seldom begins a full collection within a turn (broker/loop/garbage.py)
    print("| | bytes each | made, µs each | loaded, s | longest turn, ms | expired, s | longest turn, ms |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for measure in (groups, transactional_ids, producer_ids):
        row = measure(count)
        figures = (f"{row.bytes_each:.0f}", f"{row.made_us:.0f}", f"{row.loaded_s:.2f}", f"{row.loaded_turn_ms:.1f}",
                   f"{row.expired_s:.2f}", f"{row.expired_turn_ms:.1f}")  # fmt: skip
        print(f"| {count} {row.what} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
