"""Share groups with unmodified clients and tools: KafkaShareConsumer, kafka-share-groups, franz-go."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from benchmarks.rivals.process import BrokerProcess
from tests.clients.test_java_group_tools import TIMEOUT_S, VERIFIABLE_PRODUCER, Call, run
from tests.support.admin import Admin
from tests.support.apache_kafka import CONFIG_COMMAND, dump_log_segments
from tests.support.broker import TidelogProcess
from tests.support.java_tools import run_program
from tests.support.jvm import SHARE_MEMBERS, java_program
from tests.support.toolchains import ask, go_program

pytestmark = [pytest.mark.slow]

TOOLS = "org.apache.kafka.tools"
SHARE_GROUPS = f"{TOOLS}.consumer.group.ShareGroupCommand"
CONSOLE_SHARE_CONSUMER = f"{TOOLS}.consumer.ConsoleShareConsumer"
VERIFIABLE_SHARE_CONSUMER = f"{TOOLS}.VerifiableShareConsumer"
LOCKS = {"group.share.min.record.lock.duration.ms": "1000", "group.share.record.lock.duration.ms": "5000"}
"""A cold client on a busy machine keeps these; shorter ones run out before it has acknowledged what it was given."""


class Event(NamedTuple):
    """One line of the program: what, which member, which record, and how often delivered or how acknowledged."""

    what: str
    member: int
    partition: int
    offset: int
    more: str


def words_of(broker: BrokerProcess, words: dict[str, object]) -> list[str]:
    """Return the arguments of ``Share.java``: ``words``, and defaults for a single member."""
    values = {"bootstrap": broker.bootstrap, "members": 1, "idle_ms": 500, **words}
    return [f"{key}={value}" for key, value in values.items()]


def read_event(line: str) -> Event | None:
    """Read a line of ``Share.java``."""
    if not line.startswith(("got ", "done ", "refused ")):
        return None
    what, member, partition, offset, more = line.split()
    return Event(what, int(member), int(partition), int(offset), more)


def share(broker: BrokerProcess, **words: object) -> list[Event]:
    """Run ``Share.java`` to its end, which the program's own limit brings at the latest; return the events."""
    done = run_program(SHARE_MEMBERS, words_of(broker, words), timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return [event for event in map(read_event, done.stdout.splitlines()) if event is not None]


class ShareMembers:
    """A running ``Share.java``."""

    def __init__(self, broker: BrokerProcess, **words: object) -> None:
        command = [*java_program(SHARE_MEMBERS), *words_of(broker, words)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._events: list[Event] = []
        self._confirmed = 0

    def wait_for_confirmed(self, count: int) -> None:
        """Wait until the acknowledgements of so many records are confirmed."""
        assert self.process.stdout is not None
        while self._confirmed < count:
            line = self.process.stdout.readline()
            assert line, f"the members ended before {count} records were confirmed"
            self._note(line)

    def events(self) -> list[Event]:
        """Wait for the end, which the program's own limit brings at the latest, and return the events."""
        with self.process as process:
            assert process.stdout is not None
            for line in process.stdout:
                self._note(line)
        assert self.process.returncode == 0
        return self._events

    def _note(self, line: str) -> None:
        event = read_event(line)
        if event is not None:
            self._events.append(event)
            self._confirmed += event.what == "done"


def configure(broker: BrokerProcess, group: str, **configs: str) -> None:
    """Set configs of a group; it reads from the earliest record."""
    pairs = {"share.auto.offset.reset": "earliest", **{key.replace("_", "."): value for key, value in configs.items()}}
    text = ",".join(f"{key}={value}" for key, value in pairs.items())
    entity = ("--entity-type", "groups", "--entity-name", group)
    run([(CONFIG_COMMAND, "--bootstrap-server", broker.bootstrap, *entity, "--alter", "--add-config", text)])


def produce(broker: BrokerProcess, topic: str, *texts: str) -> None:
    """Produce one record per text, to a topic of one partition."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1})
    for text in texts:
        producer.produce(topic, text.encode(), partition=0)
    assert producer.flush(30) == 0


@pytest.mark.java
def test_each_record_is_acknowledged_by_itself(broker: BrokerProcess) -> None:
    kinds = ["accept", "reject", "release", "again", "renew", "accept"]
    Admin(broker.bootstrap).create("ways")
    produce(broker, "ways", *kinds)
    configure(broker, "ways-group", share_delivery_count_limit="3")
    events = share(broker, group="ways-group", topic="ways", count=5, idle_ms=2_000)
    outputs = run([described(broker, "ways-group")])[0]
    deliveries = Counter(event.offset for event in events if event.what == "got")
    assert deliveries == {0: 1, 1: 1, 2: 3, 3: 2, 4: 1, 5: 1}
    ends = {event.offset: event.more for event in events if event.what == "done"}
    assert ends == {0: "accept", 1: "reject", 2: "release", 3: "accept", 4: "accept", 5: "accept"}
    assert re.search(r"ways-group\s+ways\s+0\s+6\s+0", outputs), outputs


@pytest.mark.java
def test_a_record_whose_lock_has_expired_is_delivered_again(tmp_path: Path) -> None:
    """Its late acknowledgement is refused.

    The consumer may fetch while the record is held, if its ``poll`` asked for more just when the record came: it asks
    until it is given something. It is given the next record then. Without one it would get the held record again,
    unseen by the program, and the late acknowledgement would count for that delivery.
    """
    with TidelogProcess(tmp_path / "data", LOCKS) as broker:
        Admin(broker.bootstrap).create("held")
        produce(broker, "held", "hold", "accept", "accept")
        configure(broker, "held-group")
        words = {"group": "held-group", "topic": "held", "count": 3, "mode": "record_limit", "records": 1}
        events = share(broker, **words, idle_ms=2_000)
    once, again = (
        [("got", "1"), ("done", "accept")],
        [("got", "1"), ("refused", "accept"), ("got", "2"), ("done", "accept")],
    )
    ways = [[(event.what, event.more) for event in events if event.offset == offset] for offset in range(3)]
    assert ways[0] == again
    assert ways[1] in (once, again), "fetched meanwhile, its lock ran out as well"
    assert ways[2] == once


@pytest.mark.java
@pytest.mark.parametrize("mode", ["batch_optimized", "record_limit"])
def test_two_members_share_one_partition(broker: BrokerProcess, mode: str) -> None:
    topic = f"shared-{mode}"
    Admin(broker.bootstrap).create(topic)
    for number in range(40):
        produce(broker, topic, *(f"accept {number}" for _ in range(10)))
    configure(broker, f"{topic}-group")
    words = {"group": f"{topic}-group", "topic": topic, "members": 2, "count": 400, "mode": mode, "records": 20}
    events = share(broker, **words)
    got = Counter(event.offset for event in events if event.what == "got")
    assert got == dict.fromkeys(range(400), 1), "each record once, to one of them"
    assert len({event.member for event in events}) == 2


@pytest.mark.java
def test_confirmed_acknowledgements_survive_a_kill_and_no_record_is_lost(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path / "data", LOCKS) as broker:
        Admin(broker.bootstrap).create("killed")
        for number in range(120):
            produce(broker, "killed", *(f"accept {number}" for _ in range(20)))
        configure(broker, "killed-group")
        members = ShareMembers(
            broker, group="killed-group", topic="killed", members=2, count=2_400, records=50, idle_ms=4_000,
            limit_ms=200_000,
        )  # fmt: skip
        for confirmed_before in (600, 1_500):
            members.wait_for_confirmed(confirmed_before)
            broker.kill()
            broker.start()
        events = members.events()
    confirmed: dict[int, int] = {}
    again = []
    for position, event in enumerate(events):
        if event.what == "done":
            confirmed.setdefault(event.offset, position)
        elif event.what == "got" and event.offset in confirmed:
            again.append(event)
    assert set(confirmed) == set(range(2_400)), "a record was lost"
    assert again == [], "a record came again though its acknowledgement was confirmed"


def described(broker: BrokerProcess, group: str, *views: str) -> Call:
    return (SHARE_GROUPS, "--bootstrap-server", broker.bootstrap, "--describe", "--group", group, *views)


@pytest.mark.java
def test_kafkas_own_tools_list_describe_reset_and_delete(broker: BrokerProcess) -> None:
    topic, group = "share-tools", "share-tools-group"
    server = ("--bootstrap-server", broker.bootstrap)
    Admin(broker.bootstrap).create(topic)
    configure(broker, group)
    of = (SHARE_GROUPS, *server, "--group", group)
    reset = (*of, "--reset-offsets", "--topic", topic, "--execute")
    consume = (CONSOLE_SHARE_CONSUMER, *server, "--topic", topic, "--group", group, "--timeout-ms", "20000")
    outputs = run(
        [
            (VERIFIABLE_PRODUCER, *server, "--topic", topic, "--max-messages", "200", "--acks", "-1"),
            (*(VERIFIABLE_SHARE_CONSUMER, *server), "--topic", topic, "--group-id", group, "--max-messages", "200"),
            (SHARE_GROUPS, *server, "--list", "--state"),
            described(broker, group),
            described(broker, group, "--state"),
            described(broker, group, "--members"),
            (*reset, "--to-earliest"),
            (*consume, "--max-messages", "200"),
            (*reset, "--to-latest"),
            described(broker, group),
            (*of, "--delete-offsets", "--topic", topic),
            (*of, "--delete"),
            (SHARE_GROUPS, *server, "--list"),
        ],
    )
    consumed = [json.loads(line) for line in outputs[1].splitlines() if line.startswith("{")]
    assert sum(event["count"] for event in consumed if event["name"] == "records_consumed") == 200
    assert sum(event["count"] for event in consumed if event["name"] == "offsets_acknowledged") == 200
    assert re.search(rf"{group}\s+Empty", outputs[2]), outputs[2]
    assert re.search(rf"{group}\s+{topic}\s+0\s+200\s+0", outputs[3]), outputs[3]
    assert re.search(rf"{group}\s.*Empty\s+0", outputs[4]), outputs[4]
    assert re.search(rf"{group}\s+{topic}\s+0\s+0", outputs[6]), outputs[6]
    assert len(outputs[7].split()) >= 200, outputs[7]
    assert re.search(rf"{group}\s+{topic}\s+0\s+200\s+0", outputs[9]), outputs[9]
    assert re.search(rf"{topic}\s+Successful", outputs[10]), outputs[10]
    assert group not in outputs[12], outputs[12]


@pytest.mark.java
def test_kafkas_dump_tool_reads_the_state_topic(tmp_path: Path) -> None:
    one = {"share.coordinator.state.topic.num.partitions": "1"}
    with TidelogProcess(tmp_path / "data", one) as broker:
        Admin(broker.bootstrap).create("dumped")
        produce(broker, "dumped", *(f"accept {number}" for number in range(10)))
        configure(broker, "dumped-group")
        share(broker, group="dumped-group", topic="dumped", count=10)
    log = tmp_path / "data" / "data" / "__share_group_state-0" / f"{0:020d}.log"
    outputs = run([(dump_log_segments(), "--files", str(log), "--share-group-state-decoder")])[0]
    assert '"startOffset":-1' in outputs, outputs
    assert '"startOffset":10' in outputs, outputs
    assert '"groupId":"dumped-group"' in outputs, outputs


@pytest.mark.parametrize("strict", [False, True])
def test_franz_go_shares(broker: BrokerProcess, strict: bool) -> None:
    topic = f"franz-{strict}"
    Admin(broker.bootstrap).create(topic, 2)
    command = go_program("share")
    values = [f"v{number}" for number in range(200)]
    question = {"bootstrap": broker.bootstrap, "topic": topic, "group": f"{topic}-group", "values": values}
    answer = ask(command, {**question, "strict": strict, "members": 3})
    assert Counter(record["value"] for record in answer["accepted"]) == dict.fromkeys(values, 1)
    again = [record for record in answer["accepted"] if record["deliveries"] == 2]
    assert len(again) == 20, "every tenth record is released once"
    assert answer["ack_errors"] == 0
