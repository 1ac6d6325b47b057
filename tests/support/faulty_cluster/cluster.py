"""A controller and three brokers, each Tidelog or Apache Kafka, that connect to each other only through ``links``.

Clients connect directly to the brokers. A mix is a word such as ``TTJ``: brokers 1 and 2 are Tidelog, broker 3 is Java.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.rivals.process import BrokerProcess, free_port
from tests.support.cluster_clients import WAIT_S, digests, isr, leader
from tests.support.faulty_cluster.links import Links, Pair
from tests.support.kraft_node import HOST, KraftNode, wait_until
from tests.support.member import MemberNode

CONTROLLER = 9
SESSION_S = 3.0
"""broker.session.timeout.ms of the controller."""
LAG_S = 3.0
"""replica.lag.time.max.ms of the brokers."""
IDS = (1, 2, 3)
SETTINGS = {
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": str(int(1000 * LAG_S)),
    "replica.socket.timeout.ms": "2000",
    "replica.fetch.backoff.ms": "200",
    "controller.socket.timeout.ms": "2000",
    "broker.session.timeout.ms": str(int(1000 * SESSION_S)),
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
}
CONTROLLER_SETTINGS = {"broker.session.timeout.ms": str(int(1000 * SESSION_S)), "broker.heartbeat.interval.ms": "500"}
LINES_SHOWN = 60
"""Number of the last log lines of each node that a failed run prints."""
Node = MemberNode | KraftNode
MakeMember = Callable[[Path, int, Mapping[int, int], Mapping[str, str]], MemberNode]


def last_lines(node: Node) -> str:
    """Return the last lines that a node has logged, for a run that fails."""
    return "\n".join((f"--- {node.log_path}", *node.output().splitlines()[-LINES_SHOWN:]))


class FaultyCluster:
    """The processes of the cluster, with methods that kill, freeze and cut off brokers."""

    def __init__(
        self,
        directory: Path,
        mix: str,
        *,
        controller: Mapping[str, str] | None = None,
        broker: Mapping[str, str] | None = None,
        make_member: MakeMember = MemberNode,
    ) -> None:
        self.mix = mix
        self._directory = directory
        self._settings = {**SETTINGS, **(broker or {})}
        self._controller_settings = {**CONTROLLER_SETTINGS, **(controller or {})}
        self._make_member = make_member
        self.links = Links(self._processes)
        self.brokers: dict[int, Node] = {}
        self.frozen: set[int] = set()
        self.events: list[str] = []
        """Starts, kills and other events of brokers, with local times as in their logs."""

    def _processes(self) -> dict[int, str]:
        """Map the process ids of running nodes to their names."""
        nodes: dict[str, BrokerProcess] = {"c": self.controller, **{str(one): two for one, two in self.brokers.items()}}
        return {node.process.pid: name for name, node in nodes.items() if node.process is not None}

    def __enter__(self) -> Self:
        self.links.__enter__()
        try:
            self._make()
            self.controller.start()
            self.start(*IDS)
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        if kind is not None:
            print(
                "",
                *self.events,
                *self.links.failures,
                *map(last_lines, (self.controller, *self.brokers.values())),
                sep="\n",
            )
        for node_id in list(self.frozen):
            self.thaw(node_id)
        for node in (*self.brokers.values(), self.controller):
            node.kill()
        self.links.__exit__()

    def _make(self) -> None:
        port = free_port()
        proxy = self.links.add("c", port)
        controllers = {CONTROLLER: proxy}
        own = {"listeners": f"CONTROLLER://{HOST}:{port}", "advertised.listeners": f"CONTROLLER://{HOST}:{proxy}"}
        self.controller = KraftNode(
            self._directory, CONTROLLER, controllers, overrides={**self._controller_settings, **own}
        )
        self.controller.port = port
        for node_id, kind in zip(IDS, self.mix, strict=True):
            self.brokers[node_id] = self._broker(node_id, kind, controllers)

    def _broker(self, node_id: int, kind: str, controllers: Mapping[int, int]) -> Node:
        if kind == "J":
            java = KraftNode(self._directory, node_id, controllers, is_broker=True)
            java.overrides.update(self._listeners(node_id, java.port))
            return java
        member = self._make_member(self._directory, node_id, controllers, {})
        member.overrides.update(self._listeners(node_id, member.port))
        return member

    def _listeners(self, node_id: int, port: int) -> dict[str, str]:
        """Return settings of a broker whose peers reach it over a proxy."""
        inner = free_port()
        proxy = self.links.add(str(node_id), inner)
        plain = f"PLAINTEXT://{HOST}:{port}"
        return {
            **self._settings,
            "listeners": f"INNER://{HOST}:{inner},{plain}",
            "advertised.listeners": f"INNER://{HOST}:{proxy},{plain}",
            "inter.broker.listener.name": "INNER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }

    # ---- questions

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""
        return self.others()

    def others(self, *without: int) -> str:
        """Join the addresses of all brokers except these."""
        return ",".join(node.bootstrap for node_id, node in self.brokers.items() if node_id not in without)

    def leader(self, topic: str, *without: int) -> int:
        """Return the leader of partition 0 according to the brokers except these; -1 if there is none."""
        return leader(self.others(*without), topic)

    def wait_leader(self, topic: str, *without: int) -> int:
        """Wait until another broker than these leads, and return it; a later call may still return the old leader."""
        found = -1

        def is_found() -> bool:
            nonlocal found
            found = self.leader(topic, *without)
            return found not in (*without, -1)

        wait_until(is_found, f"{topic}: a leader", WAIT_S)
        return found

    def wait_isr(self, topic: str, members: Iterable[int] = IDS, asked: Iterable[int] = IDS) -> None:
        """Wait until these are the in-sync replicas of partition 0 according to each of the brokers ``asked``."""
        wanted = sorted(members)
        for node_id in asked:
            node = self.brokers[node_id]
            wait_until(
                lambda node=node: isr(node, topic) == wanted,  # type: ignore[misc]
                f"{topic}: {wanted} in sync at {node_id}\n{node.output()}",
                WAIT_S,
            )

    def files(self, topic: str, partition: int = 0) -> list[dict[str, str]]:
        """Digest the segments of a partition at each broker."""
        return [digests(Path(node.data_directory) / f"{topic}-{partition}") for node in self.brokers.values()]

    def wait_equal_files(self, *topics: str) -> None:
        """Wait until all brokers have equal segments of all partitions of these topics."""
        for topic in topics:
            for partition in range(self.partition_count(topic)):
                wait_until(
                    lambda one=(topic, partition): len(set(map(str, self.files(*one)))) == 1,  # type: ignore[misc]
                    f"{topic}-{partition}: equal files",
                    WAIT_S,
                )

    def partition_count(self, topic: str) -> int:
        """Return the highest number of partitions of a topic that a broker has in its directory."""
        paths = [path for node in self.brokers.values() for path in Path(node.data_directory).glob(f"{topic}-*")]
        numbers = [int(path.name[len(topic) + 1 :]) for path in paths if path.name[len(topic) + 1 :].isdigit()]
        return max(numbers, default=0) + 1

    # ---- changes

    def note(self, event: str) -> None:
        """Note an event, which is printed if the run fails."""
        self.events.append(f"{datetime.now().astimezone():%H:%M:%S.%f} {event}")

    def create(self, topic: str, replicas: Iterable[int] = IDS, partitions: int = 1, **configs: str) -> None:
        """Create a topic with these replicas for each partition, min.insync.replicas 2 unless told otherwise."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = {"min.insync.replicas": "2", **{key.replace("_", "."): value for key, value in configs.items()}}
        assignment = [list(replicas)] * partitions
        new = NewTopic(topic, partitions, replica_assignment=assignment, config=wanted)
        for future in admin.create_topics([new]).values():
            try:
                future.result()
            except KafkaException as error:  # the client repeats the request if the response was late
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        self.wait_isr(topic, replicas)

    def start(self, *nodes: int) -> None:
        """Start brokers at the same time, and wait until they are ready."""
        self.note(f"start {nodes}")
        with ThreadPoolExecutor(len(nodes)) as threads:
            for done in [threads.submit(self.brokers[node_id].start) for node_id in nodes]:
                done.result()
        self.note(f"started {nodes}")

    def kill(self, *nodes: int) -> None:
        """Kill brokers with SIGKILL."""
        for node_id in nodes:
            self.note(f"kill {node_id}")
            self.brokers[node_id].kill()

    def stop(self, *nodes: int) -> None:
        """Stop brokers with SIGTERM, one after the other."""
        for node_id in nodes:
            self.note(f"stop {node_id}")
            self.brokers[node_id].terminate()

    def freeze(self, node_id: int) -> None:
        """Send SIGSTOP to a broker."""
        self.note(f"freeze {node_id}")
        os.kill(self.brokers[node_id].pid, signal.SIGSTOP)
        self.frozen.add(node_id)

    def thaw(self, node_id: int) -> None:
        """Send SIGCONT to a broker."""
        self.note(f"thaw {node_id}")
        os.kill(self.brokers[node_id].pid, signal.SIGCONT)
        self.frozen.discard(node_id)

    # ---- cuts

    def both(self, node_id: int, *others: str) -> list[Pair]:
        """Return both directions between a broker and other nodes."""
        return [*self.to(node_id, *others), *self.of(node_id, *others)]

    def of(self, node_id: int, *others: str) -> list[Pair]:
        """Return the directions from a broker to other nodes."""
        return [(str(node_id), other) for other in others]

    def to(self, node_id: int, *others: str) -> list[Pair]:
        """Return the directions from other nodes to a broker."""
        return [(other, str(node_id)) for other in others]

    def peers(self, node_id: int) -> list[str]:
        """Return the names of the other brokers."""
        return [str(other) for other in IDS if other != node_id]
