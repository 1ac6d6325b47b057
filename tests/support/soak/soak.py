"""A soak: all parties at work on a broker process that is killed again and again, and then lives for a while."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.rivals.process import BrokerError
from tests.support.broker import TidelogProcess
from tests.support.soak.exporting import Exporter
from tests.support.soak.finding import Finder
from tests.support.soak.groups import Group
from tests.support.soak.party import Party, World
from tests.support.soak.patience import PATIENCE_S, Patience
from tests.support.soak.resources import Sample, growing, sample, summary
from tests.support.soak.shares import ShareGroup
from tests.support.soak.topics import Incarnations, Stranger
from tests.support.soak.transactions import Copier, Transactions
from tests.support.soak.writers import AiokafkaWriter, CompactedWriter, KafkaPythonWriter, PlainWriter, Settings

OVERRIDES = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.share.delivery.count.limit": "10",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.min.session.timeout.ms": "6000",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.record.lock.duration.ms": "3000",
    "group.share.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "log.cleaner.backoff.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "log.flush.scheduler.interval.ms": "500",
    "log.retention.check.interval.ms": "200",
    "log.segment.bytes": "500000",
    "log.segment.delete.delay.ms": "500",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.segment.bytes": "200000",
    "share.coordinator.state.topic.num.partitions": "4",
    "share.coordinator.state.topic.segment.bytes": "200000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.segment.bytes": "200000",
}
KEPT = {"retention.ms": "-1"}
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "60000", "min.cleanable.dirty.ratio": "0.2"}
CHANGES = {
    "segment.bytes": ["100000", "300000", "1000000"],
    "index.interval.bytes": ["500", "4096"],
    "flush.messages": ["1", "9223372036854775807"],
    "flush.ms": ["100", "9223372036854775807"],
    "compression.type": ["producer", "lz4", "zstd", "uncompressed"],
    "max.message.bytes": ["1048588", "2000000"],
}
SUSPICIOUS = ("Traceback", "goes offline", "out of service", "is refused", "died", "quarantined")
"""Words whose appearance in the broker's output is a fault."""
LAST_LIFE = 1 / 3
"""The part of the soak's time, at its end, in which the broker is not killed."""
LONGEST_END_S = 1.5 * PATIENCE_S
"""The soak waits for parties that have not ended until none has made progress for so many seconds."""
JUDGED = 2 / 3
"""The part of the last life, at its end, in which memory and descriptors must not grow: before it, caches fill."""
SHORTEST_JUDGED_S = 30.0
"""Growth over a shorter time is printed, but not judged; so a soak must last about 140 s to judge it."""


def make_parties(world: World) -> list[Party]:
    """Make all parties and the topics that they write, without starting their threads."""
    plain = PlainWriter(world, "plain", KEPT)
    shared = PlainWriter(world, "shared", KEPT)
    finder = Finder(world, "found", KEPT)
    transactions = Transactions(world, "transactions", KEPT)
    compacted = CompactedWriter(world, "compacted", COMPACTED)
    changes = {"compacted": {**CHANGES, "min.cleanable.dirty.ratio": ["0.1", "0.2", "0.5"]}}
    changes["compacted"]["segment.bytes"] = ["30000", "60000"]
    return [
        plain, shared, finder, transactions, compacted,
        AiokafkaWriter(world, "aiokafka", KEPT),
        KafkaPythonWriter(world, "kafka-python", KEPT),
        Copier(world, plain, "copied", KEPT),
        Group(world, "plain", "classic-group", protocol="classic"),
        Group(world, "plain", "consumer-group", protocol="consumer"),
        ShareGroup(world, shared),
        *(Incarnations(world, f"incarnation-{number}") for number in range(3)),
        *(Stranger(world, f"stranger {number}") for number in range(2)),
        Settings(world, {**changes, "plain": CHANGES, "found": CHANGES, "transactions": CHANGES}, ["plain", "found"]),
        Exporter(world, ["plain", "transactions", "found", "kafka-python"], pause_s=20.0),
    ]  # fmt: skip


def count_progress(parties: list[Party]) -> int:
    """Return a number that changes whenever a party did something, or ended. The parties may run meanwhile."""
    return sum(sum(list(party.counts.values())) + (not party.thread.is_alive()) for party in parties)


@contextlib.contextmanager
def silenced(*names: str) -> Iterator[None]:
    """Silence these loggers inside the block; restore their levels afterwards."""
    loggers = [(logger, logger.level) for logger in map(logging.getLogger, names)]
    for logger, _ in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in loggers:
            logger.setLevel(level)


class Soak:
    """One soak of ``seconds``, and after them the checks. ``tell`` prints a line about its progress."""

    def __init__(self, directory: Path, seed: int, seconds: float, tell: Callable[[str], None] = print) -> None:
        self.broker = TidelogProcess(directory, OVERRIDES)
        self.chance = random.Random(seed)
        self.seed = seed
        self.seconds = seconds
        self.tell = tell
        self.kills = 0
        self.samples: list[Sample] = []
        self.faults: list[str] = []

    def run(self) -> list[str]:
        """Run the soak and the checks; return the faults as lines of text."""
        with self.broker, silenced("kafka", "aiokafka"):  # after each kill they log many lines about the lost broker
            world = World(self.broker.port, self.broker.data_directory, self.broker.directory, self.seed)
            parties = make_parties(world)
            for party in parties:
                party.thread.start()
            self._live()
            world.stopped.set()
            return self.faults + self._judge_growth() + self._check_parties(parties) + self._find_suspicious_lines()

    def _live(self) -> None:
        """Kill or stop the broker and start it, again and again; then let it run without a kill for its last life."""
        last_life_start = time.monotonic() + self.seconds * (1 - LAST_LIFE)
        while (left := last_life_start - time.monotonic()) > 1:
            self._sample_until(
                time.monotonic() + min(left, self.chance.uniform(1, max(2.0, min(60.0, self.seconds / 8))))
            )
            self._end_life()
        self.samples.clear()
        self._sample_until(time.monotonic() + self.seconds * LAST_LIFE)

    def _end_life(self) -> None:
        if self.chance.random() < 0.2:
            self._stop()
        else:
            self.broker.kill()
            self.kills += 1
            if self.chance.random() < 0.3:
                self._kill_while_it_starts(self.chance.uniform(0.1, 1.0))
        self.broker.start()
        self.tell(f"start {self.broker.start_seconds:.2f} s after {self.kills} kills")

    def _stop(self) -> None:
        try:
            self.broker.terminate()
        except BrokerError as error:
            self.faults.append(str(error))

    def _kill_while_it_starts(self, delay_s: float) -> None:
        def kill() -> None:
            if (process := self.broker.process) is not None:
                process.kill()

        killer = threading.Timer(delay_s, kill)
        killer.start()
        with contextlib.suppress(BrokerError):
            self.broker.start()
        killer.join()
        self.broker.kill()
        self.kills += 1

    def _sample_until(self, moment: float) -> None:
        while time.monotonic() < moment:
            self.samples.append(sample(self.broker.pid, self.broker.data_directory))
            time.sleep(1.0)

    def _judge_growth(self) -> list[str]:
        judged = self.samples[-int(len(self.samples) * JUDGED) :]
        self.tell(summary(judged))
        if judged[-1].at_s - judged[0].at_s < SHORTEST_JUDGED_S:
            self.tell(f"growth over less than {SHORTEST_JUDGED_S:.0f} s is not judged")
            return []
        return growing(judged)

    def _check_parties(self, parties: list[Party]) -> list[str]:
        patience = Patience(LONGEST_END_S)
        for party in parties:
            while party.thread.is_alive() and not patience.is_over(count_progress(parties)):
                party.thread.join(1.0)
        for party in parties:
            if party.thread.is_alive():
                party.faults.append(f"does not end: {party.stack()}")
                continue
            party.run_check()
            self.tell(f"{party.name}: {dict(sorted(party.counts.items()))}")
        return [line for party in parties for line in party.fault_lines()]

    def _find_suspicious_lines(self) -> list[str]:
        printed = self.broker.log_path.read_text(errors="replace").splitlines()
        return [f"printed: {line}" for line in printed if any(word in line for word in SUSPICIOUS)][:40]
