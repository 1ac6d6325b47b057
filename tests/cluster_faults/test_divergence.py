"""Leaders that return with a longer log that is stale, failovers in quick succession, epochs without a record (R3 of
docs/internals/faults.md)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.faulty_cluster.amount import MIXES, at_length, cycles
from tests.support.faulty_cluster.clients import Writer, read_all
from tests.support.faulty_cluster.cluster import IDS, FaultyCluster
from tests.support.faulty_cluster.history import History
from tests.support.faulty_cluster.report import conclude
from tests.support.faulty_cluster.scenes import (
    LONELY,
    Scene,
    lose_two_leaders,
    move_an_empty_partition,
    return_with_a_stale_tail,
)

pytestmark = [pytest.mark.java, pytest.mark.slow]
TOPICS = {"r3": 1, "empty": 1}
MAX_FETCHES_PER_S = 20
"""Of one follower at one leader, for one partition (R3)."""
REST_S = 2.0


def busiest_follower(cluster: FaultyCluster) -> float:
    """Return the most requests a second that a broker sends to another one while nothing is written."""
    before = dict(cluster.links.pieces)
    time.sleep(REST_S)
    names = [str(node_id) for node_id in IDS]
    counts = [
        cluster.links.pieces[one, other] - before.get((one, other), 0)
        for one in names
        for other in names
        if one != other
    ]
    return max(counts) / REST_S


SCENES: tuple[Scene, ...] = (return_with_a_stale_tail, lose_two_leaders, move_an_empty_partition)


@at_length
@pytest.mark.parametrize("mix", MIXES)
def test_logs_become_equal_after_stale_tails_and_double_fail_overs(mix: str, tmp_path: Path) -> None:
    history, again = History(), []
    with FaultyCluster(tmp_path, mix) as cluster:
        for topic in TOPICS:
            cluster.create(topic)
        with Writer(cluster.bootstrap, "r3", history) as writer:
            for cycle in range(cycles(2)):
                writer.wait_for(50)
                again.append(SCENES[cycle % len(SCENES)](cluster, writer))
            writer.wait_for(50)
        assert writer.errors == []
        for topic in TOPICS:
            cluster.wait_isr(topic)
        cluster.wait_equal_files(*TOPICS)
        busiest = busiest_follower(cluster)
        final = [one for one in read_all(cluster.bootstrap, TOPICS) if not one.value.startswith(LONELY.encode())]
        cuts = sum(
            node.log_path.read_text(errors="replace").count(" is cut from ") for node in cluster.brokers.values()
        )
    conclude("R3", mix, history, history.findings(final), again, cuts=cuts, fetches_per_s=busiest)
    assert busiest < MAX_FETCHES_PER_S * sum(TOPICS.values())
