"""Apache Kafka's own tools for groups, offsets and transactions, unmodified, under both group protocols.

What members would hold open (described with members in it) is held by librdkafka consumers meanwhile.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
from tests.support.apache_kafka import PRODUCER_PERFORMANCE, run_tool
from tests.support.broker import TidelogProcess
from tests.support.questions import Broker
from tests.support.scripts.streams import EMPTY, beat, join
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

pytestmark = [pytest.mark.java, pytest.mark.slow]

TOOLS = "org.apache.kafka.tools"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
STREAMS_GROUPS = f"{TOOLS}.streams.StreamsGroupCommand"
TRANSACTIONS = f"{TOOLS}.TransactionsCommand"
VERIFIABLE_PRODUCER = f"{TOOLS}.VerifiableProducer"
VERIFIABLE_CONSUMER = f"{TOOLS}.VerifiableConsumer"
CONSOLE_CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
PROTOCOLS = ("classic", "consumer")
RECORDS = 200
TIMEOUT_S = 120

Call = tuple[str, ...]


def run(calls: list[Call]) -> list[str]:
    """Run the calls, which must all succeed, and return what each printed on standard output."""
    outputs = []
    for name, *arguments in calls:
        done = run_tool(name, arguments, timeout_s=TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        outputs.append(done.stdout)
    return outputs


@contextmanager
def member(broker: BrokerProcess, group: str, topic: str, protocol: str) -> Iterator[Consumer]:
    """A consumer that owns its partitions."""
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": protocol}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "client.id": "held"})
    consumer.subscribe([topic])
    while len(consumer.assignment()) < 2:
        consumer.poll(0.1)
    try:
        yield consumer
    finally:
        consumer.close()


def test_members_are_described(broker: BrokerProcess) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    Admin(broker.bootstrap).create("held", 2)
    views = ("--members", "--state", "--offsets")
    calls: list[Call] = [
        (GROUPS, *server, "--describe", "--group", f"held-{name}", view) for name in PROTOCOLS for view in views
    ]
    calls.append((GROUPS, *server, "--list", "--state"))
    with member(broker, "held-classic", "held", "classic"), member(broker, "held-consumer", "held", "consumer"):
        *outputs, listed = run(calls)
    for position, protocol in enumerate(PROTOCOLS):
        members, state, offsets = outputs[position * 3 : position * 3 + 3]
        assert re.search(rf"held-{protocol}\s.*\sheld\s+2\s", members), members
        assert re.search(r"\sStable\s+.*\b1\s*$", state, re.MULTILINE), state
        assert len(re.findall(rf"held-{protocol}\s+held\s+[01]\s", offsets)) == 2, offsets
        assert re.search(rf"held-{protocol}\s+.*Stable", listed), listed


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_offsets_are_read_reset_and_deleted(broker: BrokerProcess, protocol: str) -> None:
    topic = group = f"tools-{protocol}"
    server = ("--bootstrap-server", broker.bootstrap)
    Admin(broker.bootstrap).create(topic)
    of = (GROUPS, *server, "--group", group)
    reset = (*of, "--reset-offsets", "--topic", topic, "--execute")
    outputs = run(
        [
            (VERIFIABLE_PRODUCER, *server, "--topic", topic, "--max-messages", str(RECORDS), "--acks", "-1"),
            (
                *(VERIFIABLE_CONSUMER, *server, "--topic", topic, "--group-id", group, "--reset-policy", "earliest"),
                *("--max-messages", str(RECORDS), "--group-protocol", protocol),
            ),
            (*of, "--describe", "--offsets"),
            (*reset, "--to-offset", "10"),
            (*reset, "--shift-by", "5"),
            (*of, "--describe", "--offsets"),
            (*of, "--delete-offsets", "--topic", topic),
            (*of, "--delete"),
            (GROUPS, *server, "--list"),
        ],
    )
    assert '"name":"offsets_committed"' in outputs[1], outputs[1]
    assert re.search(rf"{topic}\s+0\s+{RECORDS}\s+{RECORDS}\s+0\s", outputs[2]), outputs[2]
    assert re.search(rf"{topic}\s+0\s+15\s+{RECORDS}\s+{RECORDS - 15}\s", outputs[5]), outputs[5]
    assert re.search(rf"{topic}\s+0\s+Successful", outputs[6]), outputs[6]
    assert "was successful" in outputs[7], outputs[7]
    assert group not in outputs[8].split()


def test_transactions_are_listed_and_described(broker: BrokerProcess) -> None:
    topic = "in-transactions"
    server = ("--bootstrap-server", broker.bootstrap)
    Admin(broker.bootstrap).create(topic)
    performance = (
        *(PRODUCER_PERFORMANCE, "--topic", topic, "--num-records", "2000", "--record-size", "100"),
        *("--throughput", "-1", "--transactional-id", "perf", "--transaction-duration-ms", "50"),
        *("--producer-props", f"bootstrap.servers={broker.bootstrap}"),
    )
    committed = ("--isolation-level", "read_committed", "--max-messages", "2000", "--timeout-ms", "20000")
    outputs = run(
        [
            performance,
            (TRANSACTIONS, *server, "list"),
            (TRANSACTIONS, *server, "describe", "--transactional-id", "perf"),
            (TRANSACTIONS, *server, "describe-producers", "--topic", topic, "--partition", "0"),
            (TRANSACTIONS, *server, "find-hanging", "--broker-id", "1"),
            (CONSOLE_CONSUMER, *server, "--topic", topic, "--from-beginning", *committed),
        ],
    )
    assert "2000 records sent" in outputs[0], outputs[0]
    assert re.search(r"^perf\s+\d+\s+\d+\s+CompleteCommit", outputs[1], re.MULTILINE), outputs[1]
    assert re.search(r"perf\s.*CompleteCommit", outputs[2]), outputs[2]
    assert re.search(r"^\d+\s+\d+\s+", outputs[3], re.MULTILINE), outputs[3]
    assert len(outputs[5].splitlines()) == 2000


def streams_member(asked: Broker, group: str, topic: str) -> int:
    """Join as a member that has the one task there is, and commit offset 3 for it. Returns its epoch."""
    epoch: int = join(asked, group, "m", topic, quiet=True).member_epoch
    held = {**EMPTY, "active_tasks": [{"subtopology_id": "0", "partitions": [0]}]}
    outputs = beat(asked, group, "m", epoch, quiet=True, **held)
    assert (outputs.error_code, outputs.status) == (0, []), outputs
    partition = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
    topics = [{"name": topic, "partitions": [partition]}]
    member = {"group_id": group, "member_id": "m", "generation_id_or_member_epoch": epoch}
    answer = asked.ask_quietly("offset_commit", 9, **member, topics=topics)
    assert answer.topics[0].partitions[0].error_code == 0, answer
    return epoch


def test_streams_groups_are_described_reset_and_deleted(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path / "data", {"group.streams.initial.rebalance.delay.ms": "0"}) as broker:
        server = ("--bootstrap-server", broker.bootstrap)
        of = (STREAMS_GROUPS, *server, "--group", "words")
        Admin(broker.bootstrap).create("lines")
        asked = Broker(broker.bootstrap)
        streams_member(asked, "words", "lines")
        state, members, offsets, refused = run(
            [
                (*of, "--describe", "--state", "--verbose"),
                (*of, "--describe", "--members", "--verbose"),
                (*of, "--describe", "--verbose"),
                (*of, "--delete"),
            ],
        )
        beat(asked, "words", "m", -1, quiet=True)
        reset, forgotten, deleted, listed = run(
            [
                (*of, "--reset-offsets", "--input-topic", "lines", "--to-earliest", "--execute"),
                (*of, "--delete-offsets", "--input-topic", "lines"),
                (*of, "--delete"),
                (STREAMS_GROUPS, *server, "--list"),
            ],
        )
        asked.close()
    assert re.search(r"^words\s.*\sStable\s+2\s+2\s+1\s*$", state, re.MULTILINE), state
    assert re.search(r"ACTIVE: 0:\[0\]; TARGET-ACTIVE: 0:\[0\]", members), members
    assert re.search(r"^words\s+lines\s+0\s+3\s", offsets, re.MULTILINE), offsets
    assert "is not EMPTY" in refused, refused
    assert re.search(r"^words\s+lines\s+0\s+0\s*$", reset, re.MULTILINE), reset
    assert re.search(r"^lines\s+0\s+Successful", forgotten, re.MULTILINE), forgotten
    assert "was successful" in deleted, deleted
    assert "words" not in listed, listed


def leave_hanging(asked: Broker, topic: str) -> None:
    """Write a transactional batch of two hours ago that no coordinator knows: verification is switched off."""
    producer = asked.ask_quietly("init_producer_id", 3, transactional_id="hung", transaction_timeout_ms=60_000)
    options = BatchOptions(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    record = Record(0, int((time.time() - 7200) * 1000), None, b"value", [])
    data = [{"index": 0, "records": memoryview(build_batch([record], options))}]
    topics = [{"name": topic, "partition_data": data}]
    answer = asked.ask_quietly("produce", 7, transactional_id="hung", acks=-1, timeout_ms=5_000, topic_data=topics)
    assert answer.responses[0].partition_responses[0].error_code == 0, answer


def test_a_hanging_transaction_is_found_and_aborted(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path / "data", {"transaction.partition.verification.enable": "false"}) as broker:
        server = ("--bootstrap-server", broker.bootstrap)
        Admin(broker.bootstrap).create("hung")
        asked = Broker(broker.bootstrap)
        asked.ask_quietly("find_coordinator", 3, key="hung", key_type=1)
        leave_hanging(asked, "hung")
        find = (TRANSACTIONS, *server, "find-hanging", "--broker-id", "1")
        abort = (TRANSACTIONS, *server, "abort", "--topic", "hung", "--partition", "0", "--start-offset", "0")
        terminate = (TRANSACTIONS, *server, "forceTerminateTransaction", "--transactionalId", "hung")
        found, _, left, _ = run([find, abort, find, terminate])
        stable = asked.ask_quietly(
            "list_offsets",
            2,
            isolation_level=1,
            topics=[{"name": "hung", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        )
        asked.close()
    assert re.search(r"^hung\s+0\s+\d+\s+0\s+-1\s+0\s", found, re.MULTILINE), found
    assert "hung" not in left, left
    assert stable.topics[0].partitions[0].offset == 2, "the record and its marker: read_committed goes on"
