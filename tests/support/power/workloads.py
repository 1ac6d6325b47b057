"""The workloads of a recorded broker: one function for each kind of state that must survive a power loss.

A workload starts and stops the broker itself, several times if starts or stops are tested. With small segments, indices
and blocks everything happens within some hundred records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.power.recording import Asker, RecordedBroker
from tests.support.power.waiting import wait_until
from tests.support.share_client import ACCEPT, REJECT, RELEASE
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.record.record_batch import BatchOptions

SMALL = {
    "num.partitions": "1",
    "log.segment.bytes": "6000",
    "log.index.interval.bytes": "100",
    "log.flush.scheduler.interval.ms": "50",
    "log.flush.offset.checkpoint.interval.ms": "50",
    "log.flush.start.offset.checkpoint.interval.ms": "50",
    "replica.high.watermark.checkpoint.interval.ms": "50",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.segment.bytes": "4000",
    "transaction.state.log.segment.bytes": "4000",
    "log.cleaner.enable": "false",
    "log.segment.delete.delay.ms": "100",
    "log.dirs.reserve.bytes": "65536",  # it is written to every crashed disk
}
DURABLE = {"log.flush.interval.messages": "1"}


@dataclass(frozen=True)
class Workload:
    """A workload: ``run`` sends the requests, ``overrides`` are settings beside SMALL. ``lazy``: it is also run without
    ``flush.messages``; ``loose``: also for disks that do not keep the order of changes of names."""

    name: str
    run: Callable[[RecordedBroker], None]
    overrides: dict[str, str] = field(default_factory=dict)
    lazy: bool = True
    loose: bool = True


def values(topic: str, begin: int, count: int, size: int = 40) -> list[tuple[bytes | None, bytes]]:
    """Build ``count`` records that all differ, numbered from ``begin`` on."""
    return [
        (b"k%d" % (number % 7), (f"{topic}:{number}:").encode().ljust(size, b"."))
        for number in range(begin, begin + count)
    ]


def earliest(asker: Asker, topic: str) -> int:
    """Return the log start offset of partition 0."""
    wanted = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-2)])
    answer = asker.ask(ListOffsetsRequest(replica_id=-1, topics=[wanted]), ListOffsetsResponse, 2)
    return answer.topics[0].partitions[0].offset


def start_and_stop(broker: RecordedBroker) -> None:
    """Start for the first time, stop cleanly and start again: the files of the data directory itself."""
    broker.start()
    with Asker(broker) as asker:
        asker.create("orders", 2)
        asker.produce("orders", values("orders", 0, 5), partition=1)
    broker.terminate()
    broker.start()
    with Asker(broker) as asker:
        asker.produce("orders", values("orders", 100, 5), partition=1)
    broker.terminate()


def topics(broker: RecordedBroker) -> None:
    """Create topics, add partitions, delete topics and create them again; records are produced to most of them."""
    broker.start()
    with Asker(broker) as asker:
        asker.create("kept", 2)
        asker.create("orders", 2, retention_ms="900000")
        for index in range(2):
            asker.produce("orders", values(f"orders-{index}", 0, 4), partition=index)
        asker.widen("kept", 3)
        asker.produce("kept", values("kept", 0, 4), partition=2)
        asker.delete("orders")
        asker.create("orders", 1)
        asker.produce("orders", values("again", 0, 4))
        asker.create("brief")
        asker.delete("brief")
        asker.delete("orders")
        asker.create("orders", 2)
        asker.produce("orders", values("third", 0, 4))
    broker.terminate()


def append_and_roll(broker: RecordedBroker) -> None:
    """Append small and large batches over many segments, stop cleanly in between, then kill and recover."""
    broker.start()
    with Asker(broker) as asker:
        asker.create("orders")
        for number in range(30):
            asker.produce("orders", values("orders", 100 * number, 3 + number % 5, size=30 + 40 * (number % 4)))
    broker.terminate()
    broker.start()
    with Asker(broker) as asker:
        for number in range(30, 45):
            asker.produce("orders", values("orders", 100 * number, 4, size=200))
    broker.kill()
    broker.start()
    with Asker(broker) as asker:
        for number in range(45, 50):
            asker.produce("orders", values("orders", 100 * number, 4, size=200))
    broker.terminate()


def group_commit(broker: RecordedBroker) -> None:
    """Run idempotent producers at the same time, so that their requests share syncs; two of them have five requests in
    flight on one connection."""
    broker.start()
    with Asker(broker) as asker:
        asker.create("orders")

    def produce(producer: int) -> None:
        with Asker(broker) as asker:
            producer_id, epoch = asker.init_producer()
            batches = [
                (
                    values(f"p{producer}", 2 * number, 2, size=100),
                    BatchOptions(producer_id=producer_id, producer_epoch=epoch, base_sequence=2 * number),
                )
                for number in range(15)
            ]
            if producer < 2:
                for first in range(0, len(batches), 5):
                    asker.produce_in_line("orders", batches[first : first + 5])
            else:
                for pairs, options in batches:
                    asker.produce("orders", pairs, options=options)

    run_beside(*(lambda number=number: produce(number) for number in range(4)))
    broker.terminate()


def run_beside(*works: Callable[[], None]) -> None:
    """Run each function in a thread of its own. Raises the first failure."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def transactions(broker: RecordedBroker) -> None:
    """Commit and abort transactions over three partitions, segments rolling under them; then stop cleanly."""
    broker.start()
    with Asker(broker) as asker:
        asker.create("orders", 3)
    for life in range(2):
        if life:
            broker.terminate()
            broker.start()
        with Asker(broker) as asker:
            producer = asker.init_producer("payments")
            sequences = dict.fromkeys(range(3), 0)
            for number in range(10 * life, 10 * life + 10):
                asker.add_to_transaction("payments", producer, "orders", [0, 1, 2])
                for partition in range(3):
                    options = BatchOptions(
                        producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequences[partition],
                        is_transactional=True,
                    )  # fmt: skip
                    batch = values(f"t{number}-{partition}", 0, 3, size=250)
                    asker.produce("orders", batch, partition, options, transaction=number)
                    sequences[partition] += 3
                asker.end_transaction("payments", producer, number, commit=number % 3 != 0)
    broker.terminate()


def configs(broker: RecordedBroker) -> None:
    """Change configs, quotas and credentials again and again."""
    broker.start()
    with Asker(broker) as asker:
        asker.create("orders")
        for number in range(8):
            asker.configure("orders", "retention.ms", str(10**9 + number))
            asker.set_quota("writer", 10**6 + number)
            asker.set_credential("anna", 4096 + number)
            asker.produce("orders", values("orders", 10 * number, 1))
    broker.terminate()


def groups(broker: RecordedBroker) -> None:
    """Commit offsets of several groups, until the offsets topic has rolled; with a stop in between."""
    broker.start()
    with Asker(broker) as asker:
        asker.create("orders")
        asker.produce("orders", values("orders", 0, 50))
        for number in range(40):
            asker.commit_offset(f"group-{number % 3}", "orders", number)
    broker.terminate()
    broker.start()
    with Asker(broker) as asker:
        for number in range(40, 50):
            asker.commit_offset(f"group-{number % 3}", "orders", number)
    broker.terminate()


def retention(broker: RecordedBroker) -> None:
    """Let retention delete segments by size, and delete records, also up to the end of the log.

    Retention by age is off, because the records are years old.
    """
    broker.start()
    with Asker(broker) as asker:
        asker.create("orders", retention_bytes="12000", retention_ms="-1")
        for number in range(60):
            asker.produce("orders", values("orders", 100 * number, 4, size=200))
        wait_until(lambda: earliest(asker, "orders") > 0)
        asker.create("gone", retention_ms="-1")
        end = asker.produce("gone", values("gone", 0, 40, size=100)) + 40
        asker.delete_records("gone", 10)
        asker.produce("gone", values("gone", 100, 40, size=100))
        asker.delete_records("gone", end + 40)
        asker.produce("gone", values("gone", 200, 3))
    broker.terminate()


def cleaning(broker: RecordedBroker) -> None:
    """Let the cleaner replace segments of a compacted topic, round after round."""
    broker.start()
    with Asker(broker) as asker:
        asker.create("table", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", segment_bytes="3000")
        for life in range(3):
            for number in range(25):
                asker.produce("table", values("table", 1000 * life + 10 * number, 5, size=60))
            wait_until(lambda life=life: is_cleaned(broker, life))  # type: ignore[misc]
    broker.terminate()


def is_cleaned(broker: RecordedBroker, rounds: int) -> bool:
    """Return whether the cleaner has reached the records of round ``rounds``, counted from 0."""
    path = broker.data_directory / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return any(line.startswith("table 0 ") and int(line.split()[2]) > 125 * rounds + 60 for line in lines)


def indexing(broker: RecordedBroker) -> None:
    """Produce records with indices of keys and tags, whose files are small; with a stop in between."""
    broker.start()
    with Asker(broker) as asker:
        asker.create(
            "orders", index_keys="true", index_keys_slots="40", index_keys_entries="60", index_tag_header="kind",
            index_tag_entries="60",
        )  # fmt: skip
        for number in range(20):
            asker.produce("orders", values("orders", 10 * number, 8))
        wait_until(lambda: (broker.data_directory / "orders-0" / "keys" / "index-checkpoint").exists())
    broker.terminate()
    broker.start()
    with Asker(broker) as asker:
        for number in range(20, 35):
            asker.produce("orders", values("orders", 10 * number, 8))
    broker.terminate()


def shares(broker: RecordedBroker) -> None:
    """Accept, release and reject as members of a share group, until the state topic has rolled, with snapshots between
    updates; with a stop and a kill in between.
    """
    broker.start()
    with Asker(broker) as asker:
        topic_id = asker.create("jobs")
    kinds = (ACCEPT, ACCEPT, RELEASE, REJECT, ACCEPT)
    for life in range(3):
        if life:
            broker.start()
        with Asker(broker) as asker:
            asker.produce("jobs", values("jobs", 1000 * life, 40))
            member = asker.share("workers", "jobs", topic_id, f"m{life}")
            for number in range(12):
                for run in member.fetch(max_records=3):
                    asker.acknowledge(member, ("workers", "jobs"), run, kinds[number % len(kinds)])
        if life == 1:
            broker.kill()
        else:
            broker.terminate()


WORKLOADS = (
    Workload("start and stop", start_and_stop),
    Workload("topics", topics),
    Workload("append and roll", append_and_roll),
    Workload("group commit", group_commit, lazy=False),
    Workload("transactions", transactions, lazy=False),
    Workload("configs", configs),
    Workload("groups", groups),
    Workload("retention", retention, {"log.retention.check.interval.ms": "100"}),
    # The cleaner syncs no directory between removing the old names and adding the new ones; docs/internals/faults.md.
    Workload("cleaning", cleaning, {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "50"}, loose=False),
    Workload("indexing", indexing),
    Workload(
        "share groups",
        shares,
        {
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.segment.bytes": "2000",
            "share.coordinator.snapshot.update.records.per.snapshot": "4",
        },
        lazy=False,
    ),
)
