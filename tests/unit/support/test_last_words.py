"""The brokers whose output is shown beside a failed test."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from benchmarks.rivals.process import BrokerProcess
from tests.support.last_words import brokers_of


def test_brokers_and_those_of_clusters_are_found(tmp_path: Path) -> None:
    alone, leader, follower = (BrokerProcess(tmp_path / name) for name in ("alone", "leader", "follower"))
    cluster = SimpleNamespace(leader=leader, follower=follower, size=2)
    assert list(brokers_of([tmp_path, alone, cluster, 7, "text"])) == [alone, leader, follower]
