"""A short part of R1, R2 and R3 (docs/internals/faults.md) for CI: one fault of each, in an order drawn from a seed."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest

from tests.support.cluster_clients import WAIT_S
from tests.support.faulty_cluster.clients import Pairs, Reader, Writer, read_all
from tests.support.faulty_cluster.cluster import FaultyCluster
from tests.support.faulty_cluster.history import History
from tests.support.faulty_cluster.report import conclude
from tests.support.faulty_cluster.scenes import LONELY, Scene, cut_off, freeze_leader, return_with_a_stale_tail
from tests.support.kraft_node import wait_until

pytestmark = [pytest.mark.java, pytest.mark.slow]
SEED = int(os.environ.get("TIDELOG_CLUSTER_SEED", "0"))
SCENES: list[Scene] = [freeze_leader, partial(cut_off, name="controller"), return_with_a_stale_tail]
TOPICS = {"slice": 1, "pairs": 2}


def test_one_fault_of_each_kind_loses_nothing(tmp_path: Path) -> None:
    history = History()
    with FaultyCluster(tmp_path, "TTJ") as cluster:
        for topic, partitions in TOPICS.items():
            cluster.create(topic, partitions=partitions)
        with (
            Reader(cluster.bootstrap, TOPICS, history) as reader,
            Writer(cluster.bootstrap, "slice", history) as writer,
            Pairs(cluster.bootstrap, "pairs", history) as pairs,
        ):
            writer.wait_for(20)
            again = [scene(cluster, writer) for scene in random.Random(SEED).sample(SCENES, len(SCENES))]
            pairs.wait_for(2)
            wait_until(lambda: pairs.aborted > 0, "an aborted transaction", WAIT_S)
            wait_until(lambda: {one.topic for one in history.reads["r"]} == set(TOPICS), "reads of each topic", WAIT_S)
            reader.check()
        assert writer.errors == []
        cluster.wait_equal_files(*TOPICS)
        final = [one for one in read_all(cluster.bootstrap, TOPICS) if not one.value.startswith(LONELY.encode())]
    history.forget(LONELY)
    conclude("slice", "TTJ", history, history.findings(final), again)
