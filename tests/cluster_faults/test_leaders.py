"""R1: leaders that are killed and frozen, again and again, under idempotent and transactional writers and a reader."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.faulty_cluster.amount import MIXES, cycles
from tests.support.faulty_cluster.clients import Pairs, Reader, Writer, read_all
from tests.support.faulty_cluster.cluster import SESSION_S, FaultyCluster
from tests.support.faulty_cluster.history import History
from tests.support.faulty_cluster.report import conclude

pytestmark = [pytest.mark.java, pytest.mark.slow]
TOPICS = {"r1": 1, "pairs": 2}


def lose_leader(cluster: FaultyCluster, writer: Writer, *, is_frozen: bool) -> float:
    """Kill or freeze the leader of the writer's partition; return how long it took until a write was acknowledged."""
    lost = cluster.leader("r1")
    since = time.monotonic()
    if is_frozen:
        cluster.freeze(lost)
    else:
        cluster.kill(lost)
    again = writer.wait_resumed(since)
    if is_frozen:
        cluster.thaw(lost)
    else:
        cluster.start(lost)
    for topic in TOPICS:
        cluster.wait_isr(topic)
    return again


@pytest.mark.parametrize("mix", MIXES)
def test_leaders_are_killed_and_frozen(mix: str, tmp_path: Path) -> None:
    history, again = History(), []
    with FaultyCluster(tmp_path, mix) as cluster:
        for topic, partitions in TOPICS.items():
            cluster.create(topic, partitions=partitions)
        with (
            Reader(cluster.bootstrap, TOPICS, history) as reader,
            Writer(cluster.bootstrap, "r1", history) as writer,
            Pairs(cluster.bootstrap, "pairs", history) as pairs,
        ):
            for cycle in range(cycles(2)):
                writer.wait_for(50)
                again.append(lose_leader(cluster, writer, is_frozen=cycle % 2 == 1))
                pairs.wait_for(2)
            reader.check()
        assert writer.errors == []
        cluster.wait_equal_files(*TOPICS)
        findings = history.findings(read_all(cluster.bootstrap, TOPICS))
    late = sum(one > SESSION_S + 2 for one in again)
    conclude("R1", mix, history, findings, again, transactions=pairs.committed, later_than_session_and_2_s=late)
