"""Faults of a replicated partition with a writer: a scene causes one, ends it, and waits until replicas are in sync.

A scene returns the seconds from the fault until a write that was sent later is acknowledged. If the old leader may
still acknowledge writes for a while, it returns the longest time without an acknowledgement.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.faulty_cluster.clients import Writer
from tests.support.faulty_cluster.cluster import LAG_S, FaultyCluster
from tests.support.faulty_cluster.history import History
from tests.support.faulty_cluster.links import Pair
from tests.support.faulty_cluster.stubborn import Stubborn
from tests.support.kraft_node import wait_until

LONELY = "lonely"
"""Name of the writer whose records only the lost leader had."""
FLAPS = 6
FLAP_S = 0.4
CUT_S = LAG_S + 2
"""Longer than replica.lag.time.max.ms: the followers leave the ISR."""

STILL_CUT_S = 1.0
"""Time in which the old leader is asked although another one has acknowledged a write."""

Scene = Callable[[FaultyCluster, Writer], float]


# ---- a leader ends


def kill_leader(cluster: FaultyCluster, writer: Writer) -> float:
    """Kill the leader with SIGKILL, and start it again after another leader has acknowledged a write."""
    lost = cluster.leader(writer.topic)
    since = time.monotonic()
    cluster.kill(lost)
    again = writer.wait_resumed(since)
    cluster.start(lost)
    cluster.wait_isr(writer.topic)
    return again


def freeze_leader(cluster: FaultyCluster, writer: Writer) -> float:
    """Stop the leader with SIGSTOP, until another leader has acknowledged a write."""
    lost = cluster.leader(writer.topic)
    since = time.monotonic()
    cluster.freeze(lost)
    again = writer.wait_resumed(since)
    cluster.thaw(lost)
    cluster.wait_isr(writer.topic)
    return again


# ---- cuts

Choice = Callable[[FaultyCluster, int], list[Pair]]
CUTS: dict[str, tuple[Choice, bool]] = {
    "controller": (lambda cluster, node: cluster.both(node, "c"), True),
    "to followers": (lambda cluster, node: cluster.of(node, *cluster.peers(node)), False),
    "from controller": (lambda cluster, node: cluster.to(node, "c"), True),
    "followers": (lambda cluster, node: cluster.both(node, *cluster.peers(node)), False),
    "to controller": (lambda cluster, node: cluster.of(node, "c"), True),
    "from followers": (lambda cluster, node: cluster.to(node, *cluster.peers(node)), False),
}
"""Name -> the directions from and to a leader that are cut, and whether another leader is elected then."""


def cut_off(cluster: FaultyCluster, writer: Writer, name: str) -> float:
    """Cut the leader off, and end the cut.

    Fails if the leader acknowledged a record that was sent after another leader had acknowledged one. Before that, a
    follower may still fetch from it what the next leader has too: brokers learn of an election one after the other.
    """
    choose, is_fenced = CUTS[name]
    old = cluster.leader(writer.topic)
    with Stubborn(cluster.brokers[old].bootstrap, writer.topic, f"s{time.monotonic_ns()}") as stubborn:
        wait_until(lambda: bool(stubborn.answers), "an answer before the cut")
        since, led = time.monotonic(), float("inf")
        cluster.links.cut(*choose(cluster, old))
        if is_fenced:
            cluster.wait_leader(writer.topic, old)
            writer.wait_resumed(time.monotonic())
            led = time.monotonic()
            time.sleep(STILL_CUT_S)
        else:
            time.sleep(CUT_S)
        cluster.links.heal()
        writer.wait_resumed(time.monotonic())
        again = writer.longest_gap(since)
    for answer in stubborn.answers:
        writer.history.acknowledge(answer.position)
    cluster.wait_isr(writer.topic)
    late = [answer for answer in stubborn.answers if answer.sent_at > led]
    assert not late, f"cut off from {name}, acknowledged what was sent after another one led: {late[:3]}"
    return again


def flap(cluster: FaultyCluster, writer: Writer) -> float:
    """Cut the leader off from all other nodes and end the cut, FLAPS times."""
    old = cluster.leader(writer.topic)
    since = time.monotonic()
    for _ in range(FLAPS):
        cluster.links.cut(*cluster.both(old, "c", *cluster.peers(old)))
        time.sleep(FLAP_S)
        cluster.links.heal()
        time.sleep(FLAP_S)
    writer.wait_resumed(time.monotonic())
    again = writer.longest_gap(since)
    cluster.wait_isr(writer.topic)
    return again


# ---- a former leader returns


def return_with_a_stale_tail(cluster: FaultyCluster, writer: Writer) -> float:
    """Cut the leader off from its followers, let it append records alone, and kill it before they are replicated."""
    old = cluster.leader(writer.topic)
    cluster.links.cut(*cluster.both(old, *cluster.peers(old)))
    lost = History()  # acks=1: records that only the old leader has are lost when another broker leads
    with Writer(cluster.brokers[old].bootstrap, writer.topic, lost, LONELY, acks=1) as tail:
        tail.wait_for(30)
    since = time.monotonic()
    cluster.kill(old)
    cluster.links.heal()
    again = writer.wait_resumed(since)
    cluster.start(old)
    cluster.wait_isr(writer.topic)
    return again


def lose_two_leaders(cluster: FaultyCluster, writer: Writer) -> float:
    """Kill the leader, and its successor as soon as there is one."""
    since = time.monotonic()
    first = cluster.leader(writer.topic)
    cluster.kill(first)
    second = cluster.wait_leader(writer.topic, first)
    cluster.kill(second)
    cluster.start(first, second)
    again = writer.wait_resumed(since)
    cluster.wait_isr(writer.topic)
    return again


def move_an_empty_partition(cluster: FaultyCluster, writer: Writer) -> float:
    """Kill the leader of the topic ``empty``, wait for another one, and start the old leader with its old epoch."""
    since = time.monotonic()
    old = cluster.leader("empty")
    cluster.kill(old)
    cluster.wait_leader("empty", old)
    again = writer.wait_resumed(since)
    cluster.start(old)
    for topic in ("empty", writer.topic):
        cluster.wait_isr(topic)
    return again
