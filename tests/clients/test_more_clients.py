"""Further clients, unmodified: kafka-go of segmentio (Go) and @platformatic/kafka (Node).

Each makes a topic, writes records by key in every codec it has, reads them as a group, and deletes the topic again.
"""

from __future__ import annotations

from typing import Any

from benchmarks.rivals.process import BrokerProcess
from tests.support.toolchains import ask, go_program, node_program

COUNT = 40
PARTITIONS = 3


def job_of(broker: BrokerProcess, topic: str) -> dict[str, Any]:
    return {"bootstrap": broker.bootstrap, "topic": topic, "partitions": PARTITIONS, "count": COUNT}


def expected(*codecs: str) -> list[str]:
    return sorted(f"{codec}:{number}" for codec in codecs for number in range(COUNT))


def test_kafka_go_writes_reads_and_commits(broker: BrokerProcess) -> None:
    answer = ask(go_program("segmentio"), job_of(broker, "segmentio"))
    values = expected("0", "1", "2", "3", "4")
    assert sorted(answer["values"]) == values
    assert (answer["committed"], answer["lag"]) == (len(values), len(values))


def test_platformatic_writes_and_reads(broker: BrokerProcess) -> None:
    answer = ask(node_program("platformatic"), job_of(broker, "platformatic"))
    assert sorted(answer["values"]) == expected("none", "gzip", "snappy", "lz4")
    assert "platformatic" in answer["groups"]
