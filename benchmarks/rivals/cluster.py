"""Clusters with one controller of Apache Kafka, whose brokers are all Tidelog or all Apache Kafka."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from benchmarks.rivals.apache_kafka import BROKER_HEAP, CLUSTER_ID, ApacheKafka
from benchmarks.rivals.process import BrokerError, BrokerProcess, free_port
from benchmarks.rivals.tidelog_broker import read_ready_line

HOST = "127.0.0.1"
CONTROLLER_ID = 9
NODE_IDS = (1, 2, 3)
PROTOCOLS = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
SESSION = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
SETTINGS = {
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}


class Controller(ApacheKafka):
    """The controller of either kind of cluster: one node of Apache Kafka."""

    name = "controller"
    java_options = ("-Xmx256M",)

    def properties(self) -> dict[str, str]:
        """Return server.properties as it will be written."""
        address = f"{self.host}:{self.port}"
        return {
            "process.roles": "controller",
            "node.id": str(CONTROLLER_ID),
            "controller.quorum.voters": f"{CONTROLLER_ID}@{address}",
            "listeners": f"CONTROLLER://{address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": PROTOCOLS,
            "log.dirs": str(self.data_directory),
            **SESSION,
        }


def member_properties(node_id: int, port: int, controller_port: int, data: Path) -> dict[str, str]:
    """Return the server properties of a broker of either kind."""
    return {
        "process.roles": "broker",
        "node.id": str(node_id),
        "controller.quorum.voters": f"{CONTROLLER_ID}@{HOST}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": PROTOCOLS,
        "listeners": f"PLAINTEXT://{HOST}:{port}",
        "log.dirs": str(data),
        **SETTINGS,
    }


class JavaMember(ApacheKafka):
    """A broker of Apache Kafka, with the same heap as in the other benchmarks."""

    java_options = BROKER_HEAP

    def __init__(self, directory: Path, node_id: int, controller_port: int) -> None:
        super().__init__(directory)
        self._node_id, self._controller_port = node_id, controller_port

    def properties(self) -> dict[str, str]:
        """Return server.properties as it will be written."""
        return member_properties(self._node_id, self.port, self._controller_port, self.data_directory)


class TidelogMember(BrokerProcess):
    """A Tidelog broker of a cluster."""

    name = "tidelog"
    start_timeout_s = 120.0
    stop_timeout_s = 120.0

    def __init__(self, directory: Path, node_id: int, controller_port: int) -> None:
        super().__init__(directory, free_port())
        self.data_directory = directory / "data"
        self._node_id, self._controller_port = node_id, controller_port

    @property
    def _properties_path(self) -> Path:
        return self.directory / "server.properties"

    def start(self) -> Self:
        """Format a new data directory, start, and wait until the broker is unfenced. Raises BrokerError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        keys = member_properties(self._node_id, self.port, self._controller_port, self.data_directory)
        self._properties_path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        words = ["format", "-t", CLUSTER_ID, "-c", str(self._properties_path), "--ignore-formatted"]
        done = subprocess.run([*self._tidelog, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BrokerError(done.stderr)
        return super().start()

    @property
    def _tidelog(self) -> list[str]:
        return [sys.executable, "-I", "-m", "tidelog.cli"]

    def command(self) -> list[str]:
        """Return the command line of ``tidelog serve``."""
        return [*self._tidelog, "serve", "--config", str(self._properties_path), "--log-level", "warning"]

    def environment(self) -> dict[str, str]:
        """Return the caller's environment, without settings of brokers."""
        return {key: value for key, value in os.environ.items() if not key.startswith(("KAFKA_", "TIDELOG_"))}

    def stdout(self) -> int:
        """Return a pipe: the ready line comes on it."""
        return subprocess.PIPE

    def wait_until_ready(self, deadline: float) -> None:
        """Read the ready line. Raises BrokerError."""
        read_ready_line(self, deadline)


class BrokerCluster:
    """A controller and brokers of one kind, by default three."""

    def __init__(
        self, directory: Path, kind: type[JavaMember] | type[TidelogMember], node_ids: Sequence[int] = NODE_IDS
    ) -> None:
        self.controller = Controller(directory / "controller")
        self.brokers: Mapping[int, JavaMember | TidelogMember] = {
            node_id: kind(directory / f"node-{node_id}", node_id, self.controller.port) for node_id in node_ids
        }

    def __enter__(self) -> Self:
        with ExitStack() as started:
            started.push(self.__exit__)
            self.controller.start()
            for broker in self.brokers.values():
                broker.start()
            started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for broker in (*self.brokers.values(), self.controller):
            broker.kill()

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())
