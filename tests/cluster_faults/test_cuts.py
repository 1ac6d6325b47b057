"""The leader is cut off from its followers or from the controller, in one or both directions, or repeatedly (R2 of
docs/internals/faults.md)."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.support.faulty_cluster.amount import CUTS as ASKED
from tests.support.faulty_cluster.amount import MIXES, at_length, cycles
from tests.support.faulty_cluster.clients import Writer, read_all
from tests.support.faulty_cluster.cluster import FaultyCluster
from tests.support.faulty_cluster.history import History
from tests.support.faulty_cluster.report import conclude
from tests.support.faulty_cluster.scenes import CUTS, Scene, cut_off, flap

pytestmark = [pytest.mark.java, pytest.mark.slow]
SCENES: dict[str, Scene] = {**{name: partial(cut_off, name=name) for name in CUTS}, "flapping": flap}
CHOSEN = [name for name in SCENES if name in (ASKED.split(",") if ASKED else SCENES)]


@at_length
@pytest.mark.parametrize("mix", MIXES)
def test_a_leader_that_is_cut_off_acknowledges_nothing_that_is_lost(mix: str, tmp_path: Path) -> None:
    history, again = History(), []
    counts: Counter[str] = Counter()
    with FaultyCluster(tmp_path, mix) as cluster:
        cluster.create("r2")
        pids = {node_id: node.pid for node_id, node in cluster.brokers.items()}
        with Writer(cluster.bootstrap, "r2", history) as writer:
            for cycle in range(cycles(1)):
                writer.wait_for(20)
                kind = CHOSEN[cycle % len(CHOSEN)]
                again.append(SCENES[kind](cluster, writer))
                counts[kind] += 1
            writer.wait_for(20)
        assert writer.errors == []
        cluster.wait_equal_files("r2")
        assert pids == {node_id: node.pid for node_id, node in cluster.brokers.items()}, "healed without a restart"
        findings = history.findings(read_all(cluster.bootstrap, {"r2": 1}))
    conclude("R2", mix, history, findings, again, kinds=dict(counts))
