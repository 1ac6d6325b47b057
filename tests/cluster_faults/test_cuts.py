"""R2: the leader is cut off from its followers or from the controller, in both directions or in one, or on and off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from tests.support.faulty_cluster.amount import MIXES, cycles
from tests.support.faulty_cluster.clients import Writer, read_all
from tests.support.faulty_cluster.cluster import FaultyCluster
from tests.support.faulty_cluster.history import History, Position
from tests.support.faulty_cluster.links import Pair
from tests.support.faulty_cluster.report import conclude
from tests.support.kraft_node import wait_until
from tidelog.client import Client, ClientError
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.record_batch import Record, build_batch

pytestmark = [pytest.mark.java, pytest.mark.slow]
TOPICS = {"r2": 1}
FLAPS = 6
FLAP_S = 0.4
CUT_S = 5.0
"""Longer than replica.lag.time.max.ms: the followers leave the ISR."""


class Answer(NamedTuple):
    """An acknowledgement of acks=all, and when it came."""

    at: float
    position: Position


class Stubborn:
    """A client that produces with acks=all to one broker alone, whatever it answers."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._bootstrap, self._name = bootstrap, name
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answers: list[Answer] = []
        self.sent: set[bytes] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._is_ended.is_set():
            try:
                with Client(self._bootstrap) as client:
                    metadata = client.call(MetadataRequest(topics=[MetadataRequestTopic(name="r2")]), MetadataResponse)
                    while not self._is_ended.is_set():
                        self._produce(client, metadata.topics[0].topic_id, f"{self._name}-{number}".encode())
                        number += 1
                        self._is_ended.wait(0.02)
            except (ClientError, KafkaError, OSError):
                self._is_ended.wait(0.1)
                number += 1

    def _produce(self, client: Client, topic_id: bytes, value: bytes) -> None:
        self.sent.add(value)
        batch = memoryview(build_batch([Record(0, 0, None, value)]))
        topic = TopicProduceData(
            name="r2", topic_id=topic_id, partition_data=[PartitionProduceData(index=0, records=batch)]
        )
        request = ProduceRequest(acks=-1, timeout_ms=2000, topic_data=[topic])
        answer = client.call(request, ProduceResponse).responses[0].partition_responses[0]
        if answer.error_code == 0:
            self.answers.append(Answer(time.monotonic(), Position("r2", 0, answer.base_offset, value)))


Choice = Callable[[FaultyCluster, int], list[Pair]]
CUTS: dict[str, tuple[Choice, bool]] = {
    "followers": (lambda cluster, node: cluster.both(node, *cluster.peers(node)), False),
    "controller": (lambda cluster, node: cluster.both(node, "c"), True),
    "to followers": (lambda cluster, node: cluster.of(node, *cluster.peers(node)), False),
    "from controller": (lambda cluster, node: cluster.to(node, "c"), True),
    "from followers": (lambda cluster, node: cluster.to(node, *cluster.peers(node)), False),
    "to controller": (lambda cluster, node: cluster.of(node, "c"), True),
}
"""What is cut, and whether another leader is elected for it."""


def cut_off(cluster: FaultyCluster, writer: Writer, name: str) -> tuple[float, int]:
    """Cut the leader off, heal; return how long until a write was acknowledged, and acknowledgements by the old leader
    after another one was shown."""
    choose, is_fenced = CUTS[name]
    old = cluster.leader("r2")
    with Stubborn(cluster.brokers[old].bootstrap, f"s{time.monotonic_ns()}") as stubborn:
        wait_until(lambda: bool(stubborn.answers), "an answer before the cut")
        since = time.monotonic()
        cluster.links.cut(*choose(cluster, old))
        if is_fenced:
            cluster.wait_leader("r2", old)
            shown = time.monotonic()
            again = writer.wait_resumed(since)
        else:
            shown = float("inf")
            time.sleep(CUT_S)
        cluster.links.heal()
        if not is_fenced:
            again = writer.wait_resumed(since)
    for answer in stubborn.answers:
        writer.history.acknowledge(answer.position)
    cluster.wait_isr("r2")
    return again, sum(answer.at > shown for answer in stubborn.answers)


def flap(cluster: FaultyCluster, writer: Writer) -> float:
    """Cut the leader off from all others and heal, again and again."""
    old = cluster.leader("r2")
    since = time.monotonic()
    for _ in range(FLAPS):
        cluster.links.cut(*cluster.both(old, "c", *cluster.peers(old)))
        time.sleep(FLAP_S)
        cluster.links.heal()
        time.sleep(FLAP_S)
    again = writer.wait_resumed(since)
    cluster.wait_isr("r2")
    return again


@pytest.mark.parametrize("mix", MIXES)
def test_a_leader_that_is_cut_off_acknowledges_nothing_that_is_lost(mix: str, tmp_path: Path) -> None:
    history, again, too_late = History(), [], 0
    kinds = ["controller", "to followers", "from controller", "followers", "to controller", "from followers", "flap"]
    with FaultyCluster(tmp_path, mix) as cluster:
        cluster.create("r2")
        pids = {node_id: node.pid for node_id, node in cluster.brokers.items()}
        with Writer(cluster.bootstrap, "r2", history) as writer:
            for cycle in range(cycles(1)):
                writer.wait_for(20)
                kind = kinds[cycle % len(kinds)]
                if kind == "flap":
                    again.append(flap(cluster, writer))
                else:
                    resumed, late = cut_off(cluster, writer, kind)
                    again.append(resumed)
                    too_late += late
            writer.wait_for(20)
        assert writer.errors == []
        cluster.wait_equal_files("r2")
        assert pids == {node_id: node.pid for node_id, node in cluster.brokers.items()}, "healed without a restart"
        findings = history.findings(read_all(cluster.bootstrap, TOPICS))
    conclude("R2", mix, history, findings, again, acknowledged_after_another_led=too_late)
    assert too_late == 0
