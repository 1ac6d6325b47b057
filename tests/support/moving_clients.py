"""Clients of several languages that work without a pause while the brokers of their cluster are replaced.

JavaTool      one of Kafka's verifiable tools, which prints its events as JSON until it is ended
Program       a Go, Node or Rust client, run again and again: it writes, and reads all of its topic as a group
PythonWriter  an idempotent producer of kafka-python
PythonReader  a consumer of kafka-python, alone or in a group
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks.rivals.apache_kafka import java_command
from tests.support.cluster_clients import WAIT_S
from tests.support.faulty_cluster.clients import Worker
from tests.support.faulty_cluster.history import History, Position
from tests.support.jvm import SMALL_HEAP, broker_options
from tests.support.kafka_jars import KAFKA_4
from tests.support.kafka_python import kafka, take_up_join
from tests.support.kraft_node import wait_until
from tests.support.seen import Seen
from tests.support.toolchains import answer_records, ask, question_record

END_LIMIT_S = 120
RECORDS, PARTITIONS = 10, 2
POLL_MS = 200


class JavaTool:
    """A verifiable tool that runs until the end of the context."""

    def __init__(self, directory: Path, tool: str, *words: str) -> None:
        self._command = [*java_command(KAFKA_4, (*SMALL_HEAP, *broker_options(KAFKA_4))), tool, *words]
        self._path = directory / f"{tool.rpartition('.')[2]}.out"

    def __enter__(self) -> Self:
        with self._path.open("w") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(END_LIMIT_S)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the printed events of a name so far."""
        lines = [line for line in self._path.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [event for event in map(json.loads, lines) if event["name"] == name]

    def wait_for(self, name: str, count: int) -> None:
        """Wait until this many more events of a name are printed."""
        wanted = len(self.events(name)) + count
        wait_until(lambda: len(self.events(name)) >= wanted or self._has_ended, f"{wanted} {name}", END_LIMIT_S)
        assert not self._has_ended, self._path.read_text()[-3000:]

    @property
    def _has_ended(self) -> bool:
        return self._process.poll() is not None


class Program(Worker):
    """A client's program, run in a loop by a thread; ``written`` has the acknowledged values."""

    def __init__(self, name: str, command: list[str], bootstrap: str, protocol: str) -> None:
        super().__init__()
        self.name = name
        self._command = command
        self._question = {"bootstrap": bootstrap, "topic": name, "partitions": PARTITIONS, "codec": "none"}
        self._protocol = protocol
        self.rounds = 0
        self.written: list[bytes] = []

    def wait_for(self, count: int) -> None:
        """Wait until this many more rounds are done."""
        wanted = self.rounds + count
        wait_until(lambda: self.rounds >= wanted or self.failure is not None, f"{self.name}: {wanted}", END_LIMIT_S)
        self.check()

    def _work(self) -> None:
        self._write()
        self._read()
        self.rounds += 1

    def _write(self) -> None:
        values = [f"{self.rounds}-{number}".encode() for number in range(RECORDS)]
        records = [question_record(at % PARTITIONS, Seen(None, value, ())) for at, value in enumerate(values)]
        ask(self._command, {**self._question, "mode": "produce", "records": records})
        self.written += values

    def _read(self) -> None:
        group = {"group": f"{self.name}-{self.rounds}", "protocol": self._protocol, "count": len(self.written)}
        answer = ask(self._command, {**self._question, "mode": "group", **group})
        found = {record.seen.value for record in answer_records(answer)}
        assert found == set(self.written), f"{self.name} was not given {set(self.written) - found}"


class PythonWriter(Worker):
    """An idempotent producer of kafka-python on partition 0 of a topic."""

    def __init__(self, bootstrap: str, topic: str, history: History) -> None:
        super().__init__()
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap.split(","), enable_idempotence=True, delivery_timeout_ms=int(WAIT_S * 1000)
        )
        self._topic, self._history = topic, history
        self.count = 0
        """Number of acknowledged values."""

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._producer.close(WAIT_S)

    def wait_for(self, count: int) -> None:
        """Wait until this many more values are acknowledged."""
        wanted = self.count + count
        wait_until(lambda: self.count >= wanted or self.failure is not None, f"{self._topic}: {wanted}", END_LIMIT_S)
        self.check()

    def _work(self) -> None:
        value = f"p-{self.count}".encode()
        try:
            sent = self._producer.send(self._topic, value, partition=0).get(WAIT_S)
        except kafka.errors.KafkaError as error:
            raise AssertionError(f"{value!r}: {error!r}") from error
        self._history.acknowledge(Position(self._topic, 0, sent.offset, value))
        self.count += 1


class PythonReader(Worker):
    """A consumer of kafka-python: of partition 0 of each topic, or as a member of a group, with commits."""

    def __init__(
        self, bootstrap: str, topics: Sequence[str], history: History, name: str, group: str | None = None
    ) -> None:
        super().__init__()
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=group is not None,
        )
        if group is None:
            self._consumer.assign([kafka.TopicPartition(topic, 0) for topic in topics])
        else:
            self._consumer.subscribe(list(topics))
        self._history, self._name, self._group = history, name, group

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._consumer.close()

    def _work(self) -> None:
        for records in self._consumer.poll(POLL_MS).values():
            for one in records:
                self._history.read(self._name, Position(one.topic, one.partition, one.offset, one.value))
        if self._group is not None:
            take_up_join(self._consumer)
