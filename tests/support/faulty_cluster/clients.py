"""Clients that record their responses in a history: an idempotent writer, a transactional writer, a reader."""

from __future__ import annotations

import subprocess
import threading
import time
from itertools import pairwise
from typing import Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.support.cluster_clients import WAIT_S, repeat_until_answered
from tests.support.faulty_cluster.history import History, Position
from tests.support.kraft_node import wait_until

QUICK = {
    "log_level": 2,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "topic.metadata.refresh.interval.ms": 500,  # librdkafka does not look for a new leader after REQUEST_TIMED_OUT
    "socket.timeout.ms": 2000,
    "socket.connection.setup.timeout.ms": 1000,
}
WRITER = {**QUICK, "enable.idempotence": True, "linger.ms": 1, "retry.backoff.ms": 50, "request.timeout.ms": 10_000}
"""A leader that is cut off keeps a request for longer than ``socket.timeout.ms``, so the client closes the connection.
If the leader answered REQUEST_TIMED_OUT in time, librdkafka would go on to request metadata from it, the broker that it
used last; this metadata would always name the leader itself."""
PAUSE_S = 0.004
LATE_S = 8.0
"""Seconds after a fault from which on the first write is reported."""
END_LIMIT_S = 120.0


class Worker:
    """A client in a thread, which works inside ``with``."""

    def __init__(self) -> None:
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_ended.is_set():
                self._work()
        except (KafkaException, AssertionError, subprocess.SubprocessError) as error:
            self.failure = error

    def _work(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Raise AssertionError with the error that has ended the client, if one has."""
        assert self.failure is None, self.failure


class Writer(Worker):
    """A producer for partition 0 of a topic, by default idempotent with acks=all."""

    def __init__(
        self, bootstrap: str, topic: str, history: History, name: str = "w", acks: int = -1, **settings: object
    ) -> None:
        """``settings`` are settings of librdkafka, with ``_`` for a dot."""
        super().__init__()
        more = {key.replace("_", "."): value for key, value in settings.items()}
        if acks != -1:
            more |= {"enable.idempotence": False, "acks": acks}
        self._producer = Producer({**WRITER, "bootstrap.servers": bootstrap, **more})
        self.topic, self._name = topic, name
        self.history = history
        self._number = 0
        self._sent: dict[bytes, float] = {}
        self._is_abandoned = False
        self.times: list[tuple[float, float]] = []
        """Times at which each acknowledged value was sent and acknowledged, by the monotonic clock."""
        self.errors: list[object] = []

    @property
    def count(self) -> int:
        """Number of acknowledged values."""
        return len(self.times)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._is_abandoned:
            self._producer.purge()
        assert self._producer.flush(END_LIMIT_S) == 0

    def abandon(self) -> None:
        """End without waiting for further acknowledgements, because the whole cluster was killed."""
        self._is_ended.set()
        self._thread.join()
        self._is_abandoned = True

    def wait_for(self, count: int) -> None:
        """Wait until this many more values are acknowledged."""
        wanted = self.count + count
        wait_until(lambda: self.count >= wanted or bool(self.errors), f"{wanted} records", WAIT_S)
        self.check()

    def wait_resumed(self, since: float) -> float:
        """Wait until a value that was sent after ``since`` is acknowledged; return the seconds that this took."""
        wait_until(lambda: bool(self.times) and self.times[-1][0] >= since, "a write after the fault", WAIT_S)
        self.check()
        again = next(done for sent, done in self.times if sent >= since) - since
        if again > LATE_S:
            print(f"again after {again:.1f} s, at {time.strftime('%H:%M:%S')}")
        return again

    def longest_gap(self, since: float) -> float:
        """Return the longest time between two acknowledgements after ``since``."""
        done = [since, *(acknowledged for _, acknowledged in self.times if acknowledged >= since)]
        return max((later - earlier for earlier, later in pairwise(done)), default=0.0)

    def _work(self) -> None:
        value = f"{self._name}-{self._number}".encode()
        self._number += 1
        self._sent[value] = time.monotonic()
        self._producer.produce(self.topic, value, partition=0, on_delivery=self._note)
        self._producer.poll(PAUSE_S)
        time.sleep(PAUSE_S / 2)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        value = message.value() or b""
        sent = self._sent.pop(value)
        if error is not None:
            self.errors.append(error)
            return
        self.times.append((sent, time.monotonic()))
        offset = message.offset()
        self.history.acknowledge(Position(self.topic, 0, -1 if offset is None else offset, value))


class Pairs(Worker):
    """A transactional producer that writes each value to two partitions; every fifth transaction is aborted."""

    def __init__(self, bootstrap: str, topic: str, history: History, name: str = "t") -> None:
        super().__init__()
        self._producer = Producer(
            {**WRITER, "bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 60_000}
        )
        self._topic, self._history, self._name = topic, history, name
        self._number = 0
        self.committed = self.aborted = 0

    def __enter__(self) -> Self:
        self._producer.init_transactions(WAIT_S)
        return super().__enter__()

    def wait_for(self, count: int) -> None:
        """Wait until this many more transactions are committed."""
        wanted = self.committed + count
        wait_until(lambda: self.committed >= wanted or self.failure is not None, f"{wanted} transactions", WAIT_S)
        self.check()

    def _work(self) -> None:
        """Do one transaction. Raises KafkaException if it can neither be committed nor aborted."""
        value = f"{self._name}-{self._number}".encode()
        self._number += 1
        self._producer.begin_transaction()
        try:
            for partition in (0, 1):
                self._producer.produce(self._topic, value, partition=partition)
            if self._number % 5 == 0:
                self._producer.flush(WAIT_S)  # unsent records would leave nothing to abort
                self._abort(value)
                return
            repeat_until_answered(self._producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._abort(value)
            return
        self.committed += 1
        for partition in (0, 1):
            self._history.acknowledge(Position(self._topic, partition, -1, value))

    def _abort(self, value: bytes) -> None:
        repeat_until_answered(self._producer.abort_transaction)
        self.aborted += 1
        self._history.abort(value)


class ConsumerWorker(Worker):
    """A consumer that records in the history, under its name, the records that it gets."""

    def __init__(self, consumer: Consumer, history: History, name: str) -> None:
        super().__init__()
        self._consumer = consumer
        self._history, self._name = history, name

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._consumer.close()

    def _work(self) -> None:
        for message in self._consumer.consume(500, 0.2):
            if message.error() is None:
                self._history.read(self._name, position_of(message))


class Reader(ConsumerWorker):
    """A consumer of all partitions of topics from their beginning, with read_committed and without a group."""

    def __init__(self, bootstrap: str, topics: dict[str, int], history: History, name: str = "r") -> None:
        """``topics`` maps each topic to its number of partitions."""
        super().__init__(consumer_of(bootstrap, topics), history, name)


def position_of(message: Message) -> Position:
    """Return a message's topic, partition, offset and value."""
    return Position(message.topic() or "", message.partition() or 0, message.offset() or 0, message.value() or b"")


def consumer_of(bootstrap: str, topics: dict[str, int], **more: object) -> Consumer:
    """Create a consumer that is assigned all partitions of topics, from their beginning."""
    consumer = Consumer(
        {
            **QUICK,
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            **more,
        }
    )
    consumer.assign(
        [TopicPartition(topic, number, OFFSET_BEGINNING) for topic, count in topics.items() for number in range(count)]
    )
    return consumer


def read_all(bootstrap: str, topics: dict[str, int]) -> list[Position]:
    """Read all committed records of topics."""
    consumer = consumer_of(bootstrap, topics)
    found, left = [], {(topic, number) for topic, count in topics.items() for number in range(count)}
    deadline = time.monotonic() + END_LIMIT_S
    try:
        while left:
            assert time.monotonic() < deadline, f"{left} cannot be read to their ends"
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    found.append(position_of(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((message.topic() or "", message.partition() or 0))
    finally:
        consumer.close()
    return found
