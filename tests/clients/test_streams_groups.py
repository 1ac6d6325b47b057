"""Streams groups with unmodified Kafka Streams 4.3: a word count of two instances, a restart, an instance that
leaves."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from benchmarks.rivals.process import BrokerProcess
from tests.clients.test_java_group_tools import run
from tests.support.admin import Admin
from tests.support.broker import TidelogProcess
from tests.support.jvm import java_program
from tests.support.kafka_jars import streams_classpath
from tidelog.client.admin.groups import describe_group
from tidelog.client.cluster import Cluster

pytestmark = [pytest.mark.java, pytest.mark.slow]

PROGRAM = Path(__file__).parent / "java" / "Words.java"
STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
OFTEN = {
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.initial.rebalance.delay.ms": "1000",
    "group.streams.num.standby.replicas": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
PARTITIONS = 3
TASKS = {f"{part}_{index}" for part in (0, 1) for index in range(PARTITIONS)}
COPIES = {f"1_{index}" for index in range(PARTITIONS)}
TIMEOUT_S = 90


class Application:
    """A running ``Words.java``."""

    def __init__(self, broker: BrokerProcess, directory: Path) -> None:
        command = java_program(PROGRAM, more=streams_classpath())
        words = {"bootstrap": broker.bootstrap, "group": "words", "input": "lines", "output": "counts", "instances": 2}
        pairs = [f"{key}={value}" for key, value in {**words, "directory": directory}.items()]
        self.process = subprocess.Popen([*command, *pairs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def tasks(self) -> list[tuple[str, set[str], set[str]]]:
        """Return state, active and standby tasks of each instance that runs."""
        self.say("tasks")
        assert self.process.stdout is not None
        found = []
        for line in self.process.stdout:
            if line.startswith("told"):
                break
            if line.startswith("tasks "):
                _, _, state, names = line.rstrip("\n").split(" ", 3)
                roles = [name.split(":") for name in names.split(",") if name]
                active, standby = ({task for role, task in roles if role == wanted} for wanted in ("active", "standby"))
                found.append((state, active, standby))
        return found

    def close(self) -> None:
        """End its input, which ends it."""
        self.process.communicate(timeout=TIMEOUT_S)
        assert self.process.returncode == 0


class Counts:
    """The counts as they come out; each word's last one stands."""

    def __init__(self, broker: BrokerProcess) -> None:
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**settings, "isolation.level": "read_committed"})
        self._consumer.subscribe(["counts"])
        self.last: dict[str, int] = {}

    def read(self) -> dict[str, int]:
        for message in self._consumer.consume(100, 0.2):
            if message.error() is None:
                self.last[(message.key() or b"").decode()] = int(message.value() or b"")
        return self.last

    def close(self) -> None:
        self._consumer.close()


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def produce(broker: BrokerProcess, lines: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1})
    for number in range(lines):
        producer.produce("lines", b"one two two three", partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def counted(lines: int) -> dict[str, int]:
    return {"one": lines, "two": 2 * lines, "three": lines}


def all_run(application: Application, instances: int) -> bool:
    """Return whether every task runs on one instance, and its state is copied on another if there is one."""
    states = application.tasks()
    active = sorted(task for _, tasks, _ in states for task in tasks)
    standby = sorted(task for _, _, tasks in states for task in tasks)
    spread = len(states) == instances and all(state == "RUNNING" and tasks for state, tasks, _ in states)
    return spread and active == sorted(TASKS) and standby == (sorted(COPIES) if instances > 1 else [])


def told_tasks(broker: BrokerProcess) -> tuple[list[str], list[str]]:
    """Return the tasks that members process, and the standby tasks, as ``tidelog group describe`` asks for them."""
    with Cluster(broker.bootstrap, 30.0) as cluster:
        tasks = [each for member in describe_group(cluster, "words").members for each in member.tasks]
    standby = sorted(each.removesuffix(" standby") for each in tasks if each.endswith(" standby"))
    return sorted(each for each in tasks if " " not in each), standby


def test_words_are_counted_once_over_a_restart(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path / "data", OFTEN) as broker:
        admin = Admin(broker.bootstrap)
        admin.create("lines", PARTITIONS)
        admin.create("counts")
        produce(broker, 200)
        application, counts = Application(broker, tmp_path / "state"), Counts(broker)
        wait_until("two instances divide the tasks", lambda: all_run(application, 2))
        wait_until("the first lines are counted", lambda: counts.read() == counted(200))
        broker.kill()
        broker.start()
        produce(broker, 100)
        wait_until("lines are counted after the restart", lambda: counts.read() == counted(300))
        server = ("--bootstrap-server", broker.bootstrap)
        describe = (STREAMS_GROUPS, *server, "--describe", "--group", "words")
        listed, members, state, offsets = run(
            [
                (STREAMS_GROUPS, *server, "--list"),
                (*describe, "--members"),
                (*describe, "--state"),
                describe,
            ],
        )
        assert "words" in listed.split()
        assert members.count("words-") >= 2, members
        assert re.search(r"words\s.*\sStable\s+2\b", state), state
        assert len(re.findall(r"(?m)^words\s+lines\s+[012]\s", offsets)) == PARTITIONS, offsets
        wait_until("the broker tells who has which task", lambda: told_tasks(broker) == (sorted(TASKS), sorted(COPIES)))
        application.say("stop 0")
        wait_until("the other instance takes over", lambda: all_run(application, 1))
        produce(broker, 50)
        wait_until("nothing is lost or counted twice", lambda: counts.read() == counted(350))
        counts.close()
        application.close()
