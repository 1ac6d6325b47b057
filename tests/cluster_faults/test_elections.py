"""All in-sync replicas are lost: which replica may lead afterwards, with and without unclean elections (R4 of
docs/internals/faults.md)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.cluster_clients import WAIT_S
from tests.support.faulty_cluster.amount import MIXES, at_length, cycles
from tests.support.faulty_cluster.clients import QUICK, Writer, read_all
from tests.support.faulty_cluster.cluster import IDS, FaultyCluster
from tests.support.faulty_cluster.history import History
from tests.support.faulty_cluster.report import conclude
from tests.support.kraft_node import wait_until

pytestmark = [pytest.mark.java, pytest.mark.slow, at_length]
OFFLINE_S = 2.0
"""How long a partition has to stay without a leader."""


def lose_all(cluster: FaultyCluster, topic: str, *, is_clean: bool) -> list[int]:
    """Lose one in-sync replica after the other; return them, the last leader last."""
    last = cluster.leader(topic)
    order = [*(node_id for node_id in IDS if node_id != last), last]
    for number, node_id in enumerate(order, 1):
        if is_clean:
            cluster.stop(node_id)
        else:
            cluster.kill(node_id)
        left = order[number:]
        if left:
            cluster.wait_isr(topic, left, asked=left)
    return order


def check_offline(cluster: FaultyCluster, topic: str, node_id: int) -> None:
    """Check that a broker which is back and may not lead shows the partition without a leader."""
    bootstrap = cluster.brokers[node_id].bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wait_until(lambda: node_id in admin.list_topics(timeout=WAIT_S).brokers, f"{node_id} is back")
    wait_until(
        lambda: cluster.leader(topic, *(one for one in IDS if one != node_id)) == -1, "the last leader is fenced"
    )
    end = time.monotonic() + OFFLINE_S
    while time.monotonic() < end:
        found = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions[0]
        assert found.leader == -1, f"{found.leader} leads"
        time.sleep(0.2)


@pytest.mark.parametrize("mix", MIXES)
def test_without_unclean_elections_nothing_is_lost(mix: str, tmp_path: Path) -> None:
    history, again = History(), []
    with FaultyCluster(tmp_path, mix) as cluster:
        cluster.create("r4")
        for cycle in range(cycles(2)):
            with Writer(cluster.bootstrap, "r4", history, f"w{cycle}") as writer:
                writer.wait_for(50)
            first, second, last = lose_all(cluster, "r4", is_clean=cycle % 2 == 1)
            since = time.monotonic()
            cluster.start(first)
            check_offline(cluster, "r4", first)
            cluster.start(second, last)
            cluster.wait_isr("r4")
            again.append(time.monotonic() - since)
        cluster.wait_equal_files("r4")
        findings = history.findings(read_all(cluster.bootstrap, {"r4": 1}))
    conclude("R4-clean", mix, history, findings, again)


@pytest.mark.parametrize("mix", MIXES)
def test_a_member_of_the_elr_leads_when_it_returns(mix: str, tmp_path: Path) -> None:
    """Stopped cleanly it is still eligible (KIP-966), though the last leader is away."""
    history, again = History(), []
    with FaultyCluster(tmp_path, mix) as cluster:
        cluster.create("elr")
        for cycle in range(cycles(1)):
            with Writer(cluster.bootstrap, "elr", history, f"w{cycle}") as writer:
                writer.wait_for(50)
            first, second, last = lose_all(cluster, "elr", is_clean=True)
            since = time.monotonic()
            cluster.start(second)
            wait_until(lambda second=second: cluster.leader("elr", first, last) == second, "the ELR leads", WAIT_S)  # type: ignore[misc]  # noqa: B023
            again.append(time.monotonic() - since)
            cluster.start(first, last)
            cluster.wait_isr("elr")
        cluster.wait_equal_files("elr")
        findings = history.findings(read_all(cluster.bootstrap, {"elr": 1}))
    conclude("R4-elr", mix, history, findings, again)


def is_truncation_told(bootstrap: str, topic: str, offset: int, leader_epoch: int) -> bool:
    """Return whether a consumer that has read up to an offset of an epoch is told that the log was cut."""
    config = {**QUICK, "bootstrap.servers": bootstrap, "group.id": "t", "auto.offset.reset": "error"}
    consumer = Consumer(config)
    try:
        consumer.assign([TopicPartition(topic, 0, offset, leader_epoch=leader_epoch)])
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            message = consumer.poll(1)
            error = None if message is None else message.error()
            if error is not None and error.code() in (KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET):
                return True
        return False
    finally:
        consumer.close()


@pytest.mark.parametrize("mix", MIXES)
def test_an_unclean_election_loses_records_that_are_logged(mix: str, tmp_path: Path) -> None:
    history = History()
    with FaultyCluster(tmp_path, mix) as cluster:
        cluster.create("unclean", unclean_leader_election_enable="true", min_insync_replicas="1")
        with Writer(cluster.bootstrap, "unclean", history, "w") as writer:
            writer.wait_for(50)
            last = cluster.leader("unclean")
            first, second = (node_id for node_id in IDS if node_id != last)
            cluster.kill(first)
            cluster.wait_isr("unclean", [second, last], asked=[last])
            cluster.kill(second)
            cluster.wait_isr("unclean", [last], asked=[last])
            writer.wait_for(50)
        acknowledged = len(history.acknowledged)
        cluster.kill(last)
        since = time.monotonic()
        cluster.start(first)
        wait_until(lambda: cluster.leader("unclean", second, last) == first, "the unclean leader", WAIT_S)
        with Writer(cluster.brokers[first].bootstrap, "unclean", history, "x") as writer:
            again = [writer.wait_resumed(since)]
            cluster.start(second, last)
            cluster.wait_isr("unclean")
        cluster.wait_equal_files("unclean")
        final = read_all(cluster.bootstrap, {"unclean": 1})
        findings = history.findings(final)
        kept = sum(one.value.startswith(b"w-") for one in final)
        ends = max(one.offset for one in history.acknowledged if one.value.startswith(b"w-")) + 1
        if mix[last - 1] == "T":
            assert "unclean-0 is cut from" in cluster.brokers[last].log_path.read_text()
        assert is_truncation_told(cluster.bootstrap, "unclean", ends, 0)
    assert len(findings.lost) == acknowledged - kept > 0
    allowed = findings._replace(lost=[], changed=[])
    conclude("R4-unclean", mix, history, allowed, again, lost_as_allowed=acknowledged - kept)
