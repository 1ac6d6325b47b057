"""Nodes of an Apache Kafka cluster in KRaft mode: controllers, brokers, or both in one process; with small heaps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import free_port
from tests.support.kafka_jars import KAFKA_4
from tidelog.broker.cluster.quorum import Address

HOST = "127.0.0.1"
SHORT_SESSIONS = {"broker.session.timeout.ms": "3000"}
"""Setting of controllers: a broker that was killed is fenced after three seconds."""


class KraftNode(ApacheKafka):
    """One node; ``controllers`` maps ids of all voters to their ports. Without Java or Maven the test is skipped."""

    def __init__(
        self,
        directory: Path,
        node_id: int,
        controllers: Mapping[int, int],
        *,
        is_broker: bool = False,
        overrides: Mapping[str, str] | None = None,
        version: str = KAFKA_4,
        in_shared_jvm: bool = False,
    ) -> None:
        port = free_port() if is_broker else controllers[node_id]
        super().__init__(
            directory / f"node-{node_id}", overrides, version=version, port=port, in_shared_jvm=in_shared_jvm
        )
        self.java_options = self.tool_options
        self.node_id = node_id
        self.controllers = controllers
        self.is_broker = is_broker

    def properties(self) -> dict[str, str]:
        listeners = {"CONTROLLER": self.controllers[self.node_id]} if self.node_id in self.controllers else {}
        if self.is_broker:
            listeners["PLAINTEXT"] = self.port
        roles = [name for name, has in (("broker", self.is_broker), ("controller", "CONTROLLER" in listeners)) if has]
        return {
            "process.roles": ",".join(roles),
            "node.id": str(self.node_id),
            "controller.quorum.voters": ",".join(f"{one}@{HOST}:{port}" for one, port in self.controllers.items()),
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data_directory),
            "offsets.topic.replication.factor": "1",
            **self.overrides,
        }

    @property
    def metadata_directory(self) -> Path:
        """The node's ``__cluster_metadata-0``."""
        return self.data_directory / "__cluster_metadata-0"


def ports_of_controllers(count: int) -> dict[int, int]:
    """Choose a free port for each of ``count`` voters, by id."""
    return {node_id: free_port() for node_id in range(1, count + 1)}


def addresses(controllers: Mapping[int, int]) -> tuple[Address, ...]:
    """Return the bootstrap addresses of these voters."""
    return tuple(Address(HOST, port) for port in controllers.values())


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 120.0) -> None:
    """Wait until a condition holds; ``limit_s`` is long enough for a very busy machine."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
