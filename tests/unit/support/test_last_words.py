"""The brokers whose output is shown beside a failed test."""

from __future__ import annotations

from pathlib import Path

from benchmarks.rivals.process import BrokerProcess
from tests.support.last_words import brokers_of


class Cluster:
    """Two brokers, as fixtures of clusters hold them."""

    def __init__(self, leader: BrokerProcess, follower: BrokerProcess) -> None:
        self.leader = leader
        self.follower = follower
        self.size = 2


class StandIn:
    """An object that answers no question but that for its type, as a library's proxy outside of its context."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


def test_brokers_and_those_of_clusters_are_found(tmp_path: Path) -> None:
    alone, leader, follower = (BrokerProcess(tmp_path / name) for name in ("alone", "leader", "follower"))
    cluster = Cluster(leader, follower)
    assert list(brokers_of([tmp_path, alone, cluster, 7, "text"])) == [alone, leader, follower]


def test_a_stand_in_is_not_asked(tmp_path: Path) -> None:
    alone = BrokerProcess(tmp_path)
    holder = Cluster(alone, StandIn())  # type: ignore[arg-type]
    stranger = type("Stranger", (StandIn,), {"__module__": "elsewhere"})()
    assert list(brokers_of([stranger, holder])) == [alone]
