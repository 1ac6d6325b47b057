"""Leaders that are killed and frozen again and again, with idempotent and transactional writers and a reader (R1 of
docs/internals/faults.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faulty_cluster.amount import MIXES, at_length, cycles
from tests.support.faulty_cluster.clients import Pairs, Reader, Writer, read_all
from tests.support.faulty_cluster.cluster import SESSION_S, FaultyCluster
from tests.support.faulty_cluster.history import History
from tests.support.faulty_cluster.report import conclude
from tests.support.faulty_cluster.scenes import freeze_leader, kill_leader

pytestmark = [pytest.mark.java, pytest.mark.slow]
TOPICS = {"r1": 1, "pairs": 2}


@at_length
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
                again.append((kill_leader, freeze_leader)[cycle % 2](cluster, writer))
                cluster.wait_isr("pairs")
                pairs.wait_for(2)
            reader.check()
        assert writer.errors == []
        cluster.wait_equal_files(*TOPICS)
        findings = history.findings(read_all(cluster.bootstrap, TOPICS))
    late = sum(one > SESSION_S + 2 for one in again)
    conclude("R1", mix, history, findings, again, transactions=pairs.committed, later_than_session_and_2_s=late)
