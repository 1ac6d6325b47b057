"""Functions that return leader, in-sync replicas, values and files of a cluster's partition; a producer in a thread."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from benchmarks.rivals.process import BrokerProcess
from tests.support.kafka_python import read_to_end
from tests.support.kraft_node import wait_until

WAIT_S = 60


def isr(node: BrokerProcess, name: str) -> list[int]:
    """Ask for the in-sync replicas of partition 0."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    found = admin.list_topics(name, timeout=WAIT_S).topics[name].partitions.get(0)
    return [] if found is None else sorted(found.isrs)


def digests(directory: Path) -> dict[str, str]:
    """Map the name of each segment of a partition to its SHA-256."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.glob("*.log"))}


def leader(bootstrap: str, name: str) -> int:
    """Ask for the leader of partition 0."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.list_topics(name, timeout=WAIT_S).topics[name].partitions.get(0)
    return -1 if found is None else found.leader


def values(bootstrap: str, topic: str) -> list[bytes]:
    """Read all committed values of partition 0, in their order."""
    return [record.value for record in read_to_end(bootstrap, topic)]


class Writer:
    """An idempotent producer in a thread, which writes numbers inside ``with`` and keeps the acknowledged ones."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "retry.backoff.ms": 50}
        )
        self._topic = topic
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.acknowledged: list[bytes] = []
        self.errors: list[object] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended.set()
        self._thread.join()
        assert self._producer.flush(WAIT_S) == 0

    def wait_for(self, count: int) -> None:
        """Wait until this many more records are acknowledged, or one has failed."""
        wanted = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= wanted or bool(self.errors), f"{wanted} records", WAIT_S)

    def _write(self) -> None:
        number = 0
        while not self._is_ended.is_set():
            self._producer.produce(self._topic, str(number), on_delivery=self._note)
            self._producer.poll(0.001)
            number += 1

    def _note(self, error: object, message: Message) -> None:
        if error is None:
            self.acknowledged.append(message.value() or b"")
        else:
            self.errors.append(error)


def repeat_until_answered(call: Callable[[float], object]) -> None:
    """Repeat the call while its error is retriable, for about WAIT_S at most. Raises KafkaException."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            call(5)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return
